"""What can be seen where a class is defined: methods that don't go together, or that PyTorch never calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.functions import FunctionClass
from pullback.lint.walks import is_twofold

_OLD_AMP = frozenset(
    f"torch.cuda.amp.{module}{name}" for module in ("", "autocast_mode.") for name in ("custom_fwd", "custom_bwd")
)


def bound(analysis: Analysis) -> Iterator[Finding]:
    """PB101: a method takes self and ctx."""
    for name, method in analysis.function.own.items():
        if method.bound == "plain" and method.receiver and method.ctx:
            yield analysis.finding(
                "PB101",
                method.node,
                f"{name} takes {method.receiver} and {method.ctx}, and PyTorch calls it with ctx alone in front.",
                where=name,
                expected=f"@staticmethod def {name}({method.ctx}, ...)",
                got=f"def {name}({method.receiver}, {method.ctx}, ...)",
            )


def unrun(analysis: Analysis) -> Iterator[Finding]:
    """PB113: a method that is async, or a generator."""
    for node in analysis.function.unrun:
        is_async = isinstance(node, ast.AsyncFunctionDef)
        yield analysis.finding(
            "PB113",
            node,
            f"{node.name} {'is async' if is_async else 'has a yield'}: a call runs nothing of it, and gives back "
            f"{'a coroutine' if is_async else 'a generator'}.",
            where=node.name,
            expected=f"def {node.name}" if is_async else "return",
            got=f"async def {node.name}" if is_async else "yield",
        )


def twofold(analysis: Analysis) -> Iterator[Finding]:
    """PB102: both backward and vjp."""
    own = analysis.function.own
    if "backward" in own and "vjp" in own:
        first, second = sorted((own["backward"], own["vjp"]), key=lambda method: method.line)
        yield analysis.finding(
            "PB102",
            second.node,
            f"{second.name} is another name for {first.name}, and both are defined.",
            where=second.name,
        )


def styles(analysis: Analysis) -> Iterator[Finding]:
    """PB104: setup_context beside a forward whose first parameter is ctx."""
    function = analysis.function
    forward, setup = function.forward, function.setup_context
    if forward is None or setup is None or not forward.ctx or function not in (forward.owner, setup.owner):
        return
    if is_twofold(analysis, "forward") or is_twofold(analysis, "setup_context"):
        return  # `if torch.__version__ …`: one of them goes with it
    yield analysis.finding(
        "PB104",
        (forward if forward.owner is function else setup).node,
        f"forward takes {forward.ctx}, and beside setup_context it is called without: its first argument lands there.",
        where="forward",
        expected="forward without ctx, or no setup_context",
        got=f"forward({forward.ctx}, ...)",
    )


def double_backward(analysis: Analysis) -> Iterator[Finding]:
    """PB132 and PB103: a double_backward that nobody calls, or that has nothing to differentiate."""
    function = analysis.function
    method = function.own.get("double_backward")
    if method is None or function.is_open:
        return
    if function.ours:
        if function.backward is None and not function.is_abstract and not _assigns(function, "backward", "vjp"):
            yield analysis.finding(
                "PB103", method.node, "double_backward is defined, and backward isn't.", where="double_backward"
            )
        return
    if function.source.text.count("double_backward") > 1:  # somebody may call it
        return
    yield analysis.finding(
        "PB132",
        method.node,
        "double_backward of a torch.autograd.Function is never called: second derivatives are those of backward's own "
        "operations.",
        where="double_backward",
        expected=f"class {function.node.name}(pullback.Function)",
    )


def _assigns(function: FunctionClass, *names: str) -> bool:
    return any(name in one.assigned for one in function.lineage() for name in names)


def autocast(analysis: Analysis) -> Iterator[Finding]:
    """PB521: decorators of autocast that don't go together, or not with setup_context."""
    function = analysis.function
    forward, backward = function.forward, function.backward
    if forward is None or function not in (forward.owner, backward.owner if backward else None):
        return
    decorated = forward.is_decorated("custom_fwd")
    if decorated and function.setup_context is not None:
        yield analysis.finding(
            "PB521",
            forward.node,
            "custom_fwd keeps its state on forward's first argument, which beside setup_context is a tensor, not ctx.",
            where="forward",
            expected="cast_inputs on a pullback.Function, or forward(ctx, ...) that saves by itself",
            got="custom_fwd beside setup_context",
        )
    elif backward is not None and backward.is_decorated("custom_bwd") and not decorated and not forward.is_wrapped:
        yield analysis.finding(
            "PB521",
            backward.node,
            f"custom_bwd reads from ctx what custom_fwd puts there, and forward isn't decorated: {backward.name} ends "
            "in an AttributeError.",
            where=backward.name,
            expected="custom_fwd on forward",
            got="custom_bwd alone",
            remedy="Decorate forward with torch.amp.custom_fwd, or neither of them.",
        )


def old_autocast(analysis: Analysis) -> Iterator[Finding]:
    """PB540: the decorators of torch.cuda.amp, said of the first one in a class."""
    scope = analysis.function.scope
    used = [
        (method, decorator, decorator.func if isinstance(decorator, ast.Call) else decorator)
        for method in sorted(analysis.function.own.values(), key=lambda method: method.line)
        for decorator in method.node.decorator_list
    ]
    for method, decorator, called in used:
        full = scope.qualified(called)
        if full not in _OLD_AMP or _has_fallback(analysis.function, called):
            continue
        name = full.rpartition(".")[2]
        yield analysis.finding(
            "PB540",
            decorator,
            f"torch.cuda.amp.{name} is deprecated: it warns where the class is defined, and knows CUDA alone.",
            where=method.name,
            expected=f'torch.amp.{name}(device_type="cuda")',
            got=f"torch.cuda.amp.{name}",
        )
        return


def _has_fallback(function: FunctionClass, called: ast.expr) -> bool:
    """Whether the name is bound more than once, as where an old release gets one and a new one the other."""
    while isinstance(called, ast.Attribute):
        called = called.value
    if not isinstance(called, ast.Name):
        return True
    found = function.scope.binding(called.id)
    return found is None or len(found[1].bindings[called.id]) > 1
