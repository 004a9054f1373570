"""What forward declares to PyTorch: mark_dirty, mark_non_differentiable, and that each counts once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from pullback.finding import Finding
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.flow import Flow
from pullback.lint.record import CtxCall
from pullback.lint.values import Origin, Value
from pullback.rules import Severity

_MARKS = ("mark_dirty", "mark_non_differentiable")
_SAVES = ("save_for_backward", "save_for_forward")


def dirty(analysis: Analysis) -> Iterator[Finding]:
    """PB240: a tensor is marked dirty that isn't returned, or that is no argument."""
    keeper, forward = analysis.keeper, analysis.forward
    if keeper is None or forward is None or not analysis.owns(keeper):
        return
    for call in keeper.calls("mark_dirty"):
        for node, value in _arguments(call):
            origin = _identity(value)
            if origin is None:
                continue
            if _is_never_returned(forward, origin):
                yield _declared(
                    analysis,
                    "PB240",
                    keeper,
                    node,
                    "marked dirty, and forward doesn't return it",
                    "an output of forward",
                )
            elif origin.kind == "fresh" and keeper is forward and not call.guards:
                yield _declared(
                    analysis,
                    "PB240",
                    keeper,
                    node,
                    "marked dirty, and it is no argument",
                    "an argument",
                    Severity.WARNING,
                )


def non_differentiable(analysis: Analysis) -> Iterator[Finding]:
    """PB241: a tensor is marked as non-differentiable that isn't returned."""
    keeper, forward = analysis.keeper, analysis.forward
    if keeper is None or forward is None or not analysis.owns(keeper):
        return
    for call in keeper.calls("mark_non_differentiable"):
        for node, value in _arguments(call):
            origin = _identity(value)
            if origin is not None and _is_never_returned(forward, origin):
                what = "marked as non-differentiable, and forward doesn't return it, so that the mark has no effect"
                # Of an argument it was only meant to say that it gets no gradient: idle, and nothing goes wrong.
                sure: Confidence = "possible" if origin.kind == "input" else "likely"
                yield _declared(analysis, "PB241", keeper, node, what, "an output of forward", confidence=sure)


def _arguments(call: CtxCall) -> list[tuple[ast.expr, Value]]:
    plain = not any(isinstance(argument, ast.Starred) for argument in call.node.args)
    return (
        list(zip(call.node.args, call.values, strict=True)) if plain and len(call.node.args) == len(call.values) else []
    )


def _identity(value: Value) -> Origin | None:
    """The one thing that a value is; None where it may be several, or a view."""
    if len(value.origins) != 1 or value.is_tensor is False:
        return None
    (origin,) = value.origins
    return origin if origin.kind in ("input", "fresh") and origin.how == "same" else None


def _is_never_returned(forward: Flow, origin: Origin) -> bool:
    """Whether each return is known, and none of them gives this very thing back."""
    if not forward.returns or forward.falls_off:
        return False
    for one in forward.returns:
        items = one.value.items if one.value.items is not None else (one.value,)
        for item in items:
            if item.kinds <= {"none", "number", "bool", "text", "shape", "dtype", "device"}:
                continue
            if not item.origins or any(_may_be(other, origin) for other in item.origins):
                return False
    return True


def _may_be(returned: Origin, marked: Origin) -> bool:
    if returned.kind not in ("input", "fresh"):
        return True
    return returned.is_of(marked) and returned.how not in ("view", "unsure")


def _declared(
    analysis: Analysis,
    rule: str,
    flow: Flow,
    node: ast.expr,
    what: str,
    expected: str,
    severity: Severity | None = None,
    confidence: Confidence = "likely",
) -> Finding:
    name = ast.unparse(node)
    return analysis.finding(
        rule,
        node,
        f"{name} is {what}.",
        where=f"{flow.method.name}, {name}",
        expected=expected,
        got=name,
        confidence=confidence,
        severity=severity,
        path=flow.method.owner.source.path,
    )


def twice(analysis: Analysis) -> Iterator[Finding]:
    """PB235: a second call replaces what the first one marked; in a loop, PB331 for what is saved too."""
    keeper = analysis.keeper
    if keeper is None or not analysis.owns(keeper):
        return
    for name in _MARKS:
        for first, second in pairwise(keeper.calls(name)):
            if _both_run(first, second) and not _repeats(first, second):
                what = f"a second call of {name} replaces the one in line {first.node.lineno}"
                yield _replaced(analysis, keeper, second, "PB235", what)
    for name in (*_MARKS, *_SAVES):
        for call in keeper.calls(name):
            if _is_by_rounds(call):
                what = f"each round of the loop replaces what the one before gave {name}"
                yield _replaced(analysis, keeper, call, "PB331" if name in _SAVES else "PB235", what)


def _both_run(first: CtxCall, second: CtxCall) -> bool:
    """Whether there is a path on which both run: the guards of one are the first ones of the other."""
    shorter = min(len(first.guards), len(second.guards))
    return first.guards[:shorter] == second.guards[:shorter] and not any(
        guard.kind in ("except", "try") for guard in (*first.guards, *second.guards)
    )


def _repeats(first: CtxCall, second: CtxCall) -> bool:
    """Whether the second call gives all that the first one gave."""
    given = {ast.unparse(argument) for argument in second.node.args}
    return {ast.unparse(argument) for argument in first.node.args} <= given


def _is_by_rounds(call: CtxCall) -> bool:
    """Whether a call stands in a loop and gives what changes from round to round."""
    loops = [guard.test for guard in call.guards if guard.kind == "for" and guard.test is not None]
    if not loops or any(isinstance(argument, ast.Starred) for argument in call.node.args):
        return False
    return any(
        value.origins != frozenset() or isinstance(node, ast.Name)
        for node, value in zip(call.node.args, call.values, strict=True)
    )


def _replaced(analysis: Analysis, flow: Flow, call: CtxCall, rule: str, what: str) -> Finding:
    return analysis.finding(
        rule,
        call.node,
        f"{flow.method.name}: {what}.",
        where=f"{flow.method.name}, {call.name}",
        expected="one call, with everything",
        got=ast.unparse(call.node),
        confidence="likely",
        path=flow.method.owner.source.path,
    )
