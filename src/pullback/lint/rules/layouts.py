"""PB405 and PB406: a backward that takes each grad_output to be contiguous."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.flow import Flow
from pullback.lint.parts import integer
from pullback.lint.values import Value
from pullback.lint.walks import is_plain

_FEW = 3
"""Sizes of a view with -1 among them: with more, they most often take a dimension apart."""

_KEEPERS = frozenset("append add get setdefault insert index count debug info format join remove discard".split())
"""Methods of lists, sets, dicts, strings and loggers."""


def gradients(analysis: Analysis) -> Iterator[Finding]:
    """PB405 and PB406: view, or a raw pointer, of a grad_output that nothing made contiguous."""
    flow = analysis.backward
    if flow is None or not analysis.owns(flow) or _is_prepared(analysis, flow):
        return
    for call in flow.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "view" and _is_gradient(flow, call.func.value):
            confidence = _needs_contiguous(flow, call)
            if confidence is not None:
                yield _view(analysis, flow, call, call.func.value, confidence)
        else:
            yield from _pointers(analysis, flow, call)


def _is_prepared(analysis: Analysis, flow: Flow) -> bool:
    """Whether something outside of the expressions sees to the layout, or may: a decorator, a declaration, a test."""
    if not is_plain(flow.method) or analysis.function.declares("contiguous_grads") is not None:
        return True
    asked = ("is_contiguous", "stride", "assert_contiguous")
    return any(
        isinstance(node, ast.Attribute) and node.attr in asked and flow.value(node.value).of("grad")
        for node in flow.nodes(ast.Attribute)
    )


def _is_gradient(flow: Flow, node: ast.expr) -> bool:
    """Whether an expression is a grad_output as it came, or a view of it."""
    value = flow.value(node)
    return value.surely("grad") and all(origin.how in ("same", "view") for origin in value.origins)


def _needs_contiguous(flow: Flow, call: ast.Call) -> Confidence | None:
    """How sure it is that a view joins dimensions, which strides may forbid; None where it surely doesn't.

    A view to another dtype, to the tensor's own shape or to a column never fails, and neither does one that only takes
    a dimension apart. Whether sizes like ``(b, t, h, d)`` do that, or join, the source doesn't say.
    """
    if not call.args or call.keywords:
        return None
    first = call.args[0]
    sizes = first.elts if len(call.args) == 1 and isinstance(first, (ast.Tuple, ast.List)) else call.args
    if any(flow.value(size).kinds == {"dtype"} for size in sizes):
        return None
    numbers = [integer(size) for size in sizes]
    if len(sizes) == 1 and numbers[0] is None:
        return "possible" if flow.value(sizes[0]).kinds == {"shape"} and not _is_own_shape(flow, sizes[0]) else None
    if len(sizes) > 1 and sum(number != 1 for number in numbers) < 2:
        return None
    if any(isinstance(size, ast.Starred) for size in sizes):
        return "possible"
    joins = numbers[0] == -1 or (-1 in numbers and len(sizes) <= _FEW) or any(map(_is_product, sizes))
    return "likely" if joins else "possible"


def _is_product(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def _is_own_shape(flow: Flow, node: ast.expr) -> bool:
    base = node.func if isinstance(node, ast.Call) else node
    return isinstance(base, ast.Attribute) and _is_gradient(flow, base.value)


def _view(analysis: Analysis, flow: Flow, call: ast.Call, target: ast.expr, confidence: Confidence) -> Finding:
    name = _name(flow, flow.value(target))
    return analysis.finding(
        "PB406",
        call,
        f"view is asked of {name} as it came; view refuses a gradient that isn't contiguous.",
        where=f"backward, {name}",
        expected=ast.unparse(call).replace(".view(", ".reshape(", 1),
        got=ast.unparse(call),
        confidence=confidence,
    )


def _pointers(analysis: Analysis, flow: Flow, call: ast.Call) -> Iterator[Finding]:
    """A call that is handed the address of a grad_output, and not its strides; a launch of a kernel does that, too."""
    if _only_looks(flow, call):
        return
    for argument in _arguments(call):
        if isinstance(call.func, ast.Subscript) and _is_gradient(flow, argument):
            name = _name(flow, flow.value(argument))
            yield analysis.finding(
                "PB405",
                argument,
                f"A kernel is launched on {name} as it came; if it takes no strides, it reads a contiguous tensor.",
                where=f"backward, {name}",
                expected=f"{name} = {name}.contiguous()",
                got=ast.unparse(call.func),
                confidence="possible",
            )
        if not (isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute)):
            continue
        if argument.func.attr == "data_ptr" and _is_gradient(flow, argument.func.value):
            name = _name(flow, flow.value(argument.func.value))
            yield analysis.finding(
                "PB405",
                argument,
                f"The address of {name} is handed on, and nothing says how its elements lie.",
                where=f"backward, {name}",
                expected=f"{name} = {name}.contiguous()",
                got=ast.unparse(argument),
                confidence="likely",
            )


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of a call, and what stands in lists among them."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(argument, (ast.List, ast.Tuple)):
            yield from argument.elts
        else:
            yield argument


def _only_looks(flow: Flow, call: ast.Call) -> bool:
    """Whether a call does nothing with an address but to keep, print or compare it."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in _KEEPERS or call.func.attr.startswith("assert")
    module, _, name = flow.value(call.func).dotted.rpartition(".")
    return module == "builtins" and hasattr(builtins, name)


def _name(flow: Flow, value: Value) -> str:
    names = [parameter.name for parameter in flow.method.positional]
    index = value.of("grad")[0].index
    return names[index] if 0 <= index < len(names) else "a grad_output"
