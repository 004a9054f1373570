"""PB110 and PB330 to PB332: what is done with saved tensors, and with save_for_backward."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from pullback.finding import Finding
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.flow import Flow
from pullback.lint.record import CtxCall
from pullback.lint.values import Kind, Origin, Value

_UNSAVABLE: frozenset[Kind] = frozenset(
    ("bool", "number", "text", "shape", "dtype", "device", "tuple", "list", "dict", "set", "function", "class")
)


def requires_grad(analysis: Analysis) -> Iterator[Finding]:
    """PB330: requires_grad is set on an argument, a saved argument or a grad_output."""
    for flow in analysis.own_flows():
        for node, target in _set_requires_grad(flow):
            value = flow.value(target)
            origins = [origin for origin in value.origins if _is_others(analysis, origin)]
            if not origins or value.is_tensor is False:
                continue
            sure = len(origins) == len(value.origins) and all(one.how == "same" for one in origins)
            confidence: Confidence = "certain" if sure and origins[0].kind != "saved" else "likely"
            yield analysis.finding(
                "PB330",
                node,
                f"{flow.method.name} sets requires_grad on {_called(flow, origins[0])}.",
                where=flow.method.name,
                expected=f"{ast.unparse(target)}.detach().requires_grad_()",
                got=ast.unparse(node),
                confidence=confidence,
            )


def _set_requires_grad(flow: Flow) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr]]:
    """Each place where requires_grad is set to a constant, and on what: a kept flag most often puts it back."""
    for call in flow.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_" and flow.reached(call):
            if all(isinstance(one, ast.Constant) for one in (*call.args, *(word.value for word in call.keywords))):
                yield call, call.func.value
    for node in flow.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
                if isinstance(node.value, ast.Constant):
                    yield node, target.value


def _is_others(analysis: Analysis, origin: Origin) -> bool:
    """Whether this is a tensor that somebody else has: a view of one made here is an object of its own."""
    if origin.how in ("view", "apart", "unsure"):
        return False
    if origin.kind in ("input", "grad", "output"):
        return True
    if origin.kind not in ("saved", "ctx"):
        return False
    value = analysis.came_from(origin)
    if not value.origins:
        return origin.kind == "saved" and value.kinds == {"unknown"} and not analysis.saves
    return any(one.kind in ("input", "output") and one.how in ("same", "maybe") for one in value.origins)


def _called(flow: Flow, origin: Origin) -> str:
    if origin.kind == "input":
        return f"the argument {origin.name}" if origin.name else "an argument"
    names = [parameter.name for parameter in flow.method.positional]
    if origin.kind == "grad" and 0 <= origin.index < len(names):
        return names[origin.index]
    return {"grad": "a grad_output", "saved": "a saved tensor", "output": "an output"}.get(
        origin.kind, f"the tensor that is kept as ctx.{origin.name}"
    )


def twice(analysis: Analysis) -> Iterator[Finding]:
    """PB331: a call of save_for_backward that a later one always replaces."""
    for flow in (analysis.forward, analysis.setup_context):
        if flow is None or not analysis.owns(flow):
            continue
        for name in ("save_for_backward", "save_for_forward"):
            for first, later in pairwise(flow.calls(name)):
                if _always_follows(first, later) and ast.dump(first.node) != ast.dump(later.node):
                    yield analysis.finding(
                        "PB331",
                        later.node,
                        f"ctx.{name} replaces what line {first.node.lineno} saved.",
                        where=flow.method.name,
                        got=ast.unparse(first.node),
                    )


def _always_follows(first: CtxCall, later: CtxCall) -> bool:
    """Whether the later call is made wherever the first one was: it stands under nothing but what that one does."""
    return all(guard in first.guards for guard in later.guards) and all(one.kind != "except" for one in first.guards)


def not_tensors(analysis: Analysis) -> Iterator[Finding]:
    """PB332: save_for_backward or save_for_forward is given what is no tensor; PB110: constants aren't in a tuple."""
    for flow in (analysis.forward, analysis.setup_context):
        if flow is None or not analysis.owns(flow):
            continue
        for name in ("save_for_backward", "save_for_forward"):
            for call in flow.calls(name):
                yield from _not_tensors(analysis, flow, call)


def _not_tensors(analysis: Analysis, flow: Flow, call: CtxCall) -> Iterator[Finding]:
    where = f"{flow.method.name}, {call.name}"
    for node in call.node.args:
        value = flow.value(node)
        if not isinstance(node, ast.Starred) and value.kinds and value.kinds <= _UNSAVABLE:
            kind = _kind(value)
            yield analysis.finding(
                "PB332", node, f"ctx.{call.name} is given a {kind}.", where=where, got=ast.unparse(node)
            )
    for keyword in call.node.keywords:
        if analysis.function.ours and keyword.arg == "constants" and flow.value(keyword.value).is_tensor:
            message = "constants is a tensor, which would be taken apart along its first dimension."
            shown = ast.unparse(keyword.value)
            yield analysis.finding(
                "PB110", call.node, message, where=where, expected=f"constants=({shown},)", got=shown
            )
        if keyword.arg is not None and not (analysis.function.ours and keyword.arg == "constants"):
            yield analysis.finding(
                "PB332",
                call.node,
                f"ctx.{call.name} takes no argument by name, and is given {keyword.arg}.",
                where=where,
                got=ast.unparse(call.node),
            )


def _kind(value: Value) -> str:
    return " or ".join(sorted(value.kinds))
