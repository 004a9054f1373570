"""What setup_context and jvp are called with, against what they take."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.flow import Flow
from pullback.lint.parts import integer
from pullback.lint.walks import Owed, concerns, is_plain, owed


def inputs(analysis: Analysis) -> Iterator[Finding]:
    """PB111: setup_context takes its inputs apart into another number than forward has parameters.

    PyTorch fills in the defaults, so that there are always as many.
    """
    flow, due = analysis.setup_context, owed(analysis)
    if flow is None or due is None or due.most is None or not concerns(analysis, "setup_context", "forward"):
        return
    name = flow.method.positional[0].name
    for node in flow.nodes(ast.Assign):
        target = node.targets[0]
        if isinstance(target, (ast.Tuple, ast.List)) and _is(node.value, name) and not _is_set(flow, name):
            stars = sum(isinstance(element, ast.Starred) for element in target.elts)
            count = len(target.elts) - stars
            if count > due.most or (count < due.most and not stars):
                yield _wrong(analysis, flow, due, node, f"takes {name} apart into {count}")
    for part in flow.nodes(ast.Subscript):
        index = integer(part.slice)
        if (
            _is(part.value, name)
            and index is not None
            and not -due.most <= index < due.most
            and not _is_set(flow, name)
        ):
            yield _wrong(analysis, flow, due, part, f"reads {name}[{index}]")


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_set(flow: Flow, name: str) -> bool:
    return any(node.id == name and not isinstance(node.ctx, ast.Load) for node in flow.nodes(ast.Name))


def _wrong(analysis: Analysis, flow: Flow, due: Owed, node: ast.AST, got: str) -> Finding:
    count = f"{due.most} argument{'' if due.most == 1 else 's'}"
    return analysis.finding(
        "PB111",
        node,
        f"setup_context {got}, and forward has {count}: {due.names}.",
        where="setup_context, inputs",
        expected=count,
        got=got,
        confidence="certain" if is_plain(analysis.function.forward) else "likely",
        path=flow.method.owner.source.path,
    )


def tangents(analysis: Analysis) -> Iterator[Finding]:
    """PB508: jvp can't take one tangent for each argument."""
    method, due = analysis.function.method("jvp"), owed(analysis)
    if method is None or due is None or due.most is None or not concerns(analysis, "jvp", "forward"):
        return
    few = not method.vararg and len(method.positional) < due.least
    if not few and len(method.required) <= due.most:
        return
    taken = len(method.positional) if few else len(method.required)
    needed = due.least if few else due.most
    yield analysis.finding(
        "PB508",
        method.node,
        f"jvp takes {taken} tangent{'' if taken == 1 else 's'}, and is called with one for each argument of forward: "
        f"{due.names}.",
        where="jvp, its parameters",
        expected=f"{needed} parameter{'' if needed == 1 else 's'} after {method.ctx or 'ctx'}",
        got=str(taken),
        confidence="certain" if is_plain(method) and is_plain(analysis.function.forward) else "likely",
        path=method.owner.source.path,
    )
