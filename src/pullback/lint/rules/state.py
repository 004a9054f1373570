"""State that outlives a call: attributes of the class, and globals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.flow import Flow
from pullback.lint.values import Value

_Place = tuple[str, str]  # ("class", attribute) or ("global", name)


def kept(analysis: Analysis) -> Iterator[Finding]:
    """PB504: forward leaves something on the class or in a global that backward reads."""
    keepers = [flow for flow in (analysis.forward, analysis.setup_context) if flow is not None and analysis.owns(flow)]
    readers = [flow for flow in (analysis.backward, analysis.jvp) if flow is not None]
    read = {place for flow in readers for place, _ in _read(analysis, flow)}
    read -= {place for flow in readers for place, _, _ in _written(analysis, flow)}  # what it sets itself, it may read
    for flow in keepers:
        told: set[_Place] = set()
        for place, node, value in _written(analysis, flow):
            if place not in read or place in told or _is_made_once(flow, node, place[1]) or _is_switch(value):
                continue
            told.add(place)
            kind, name = place
            what = f"the attribute {name} of the class" if kind == "class" else f"the global {name}"
            yield analysis.finding(
                "PB504",
                node,
                f"{flow.method.name} writes {what}, and backward reads it: a second call before backward replaces it.",
                where=flow.method.name,
                expected=f"ctx.{name}" if value.is_tensor is False else f"ctx.save_for_backward({name})",
                got=ast.unparse(node),
            )


def _is_made_once(flow: Flow, node: ast.expr, name: str) -> bool:
    """Whether it is written where a condition asks for it, as what is made once and then kept."""
    tests = [guard.test for guard in flow.guards(node) if guard.test is not None]
    return any(re.search(rf"\b{re.escape(name)}\b", ast.unparse(test)) for test in tests)


def _is_switch(value: Value) -> bool:
    """Whether it is a flag, which most often is turned on once."""
    return value.kinds <= {"bool", "none"}


def _written(analysis: Analysis, flow: Flow) -> Iterator[tuple[_Place, ast.expr, Value]]:
    names = {name for one in flow.nodes(ast.Global) for name in one.names}
    for node in flow.nodes(ast.Attribute):
        if isinstance(node.ctx, ast.Store) and _is_class(analysis, flow, node.value):
            yield ("class", node.attr), node, flow.value(node)
    for name in flow.nodes(ast.Name):
        if isinstance(name.ctx, ast.Store) and name.id in names:
            yield ("global", name.id), name, flow.value(name)


def _read(analysis: Analysis, flow: Flow) -> Iterator[tuple[_Place, ast.expr]]:
    for node in flow.nodes(ast.Attribute):
        if isinstance(node.ctx, ast.Load) and _is_class(analysis, flow, node.value):
            yield ("class", node.attr), node
    own = flow.method.scope.bindings.keys() - {name for one in flow.nodes(ast.Global) for name in one.names}
    for name in flow.nodes(ast.Name):
        if isinstance(name.ctx, ast.Load) and name.id not in own:
            yield ("global", name.id), name


def _is_class(analysis: Analysis, flow: Flow, node: ast.expr) -> bool:
    """Whether an expression names the very class."""
    if not isinstance(node, ast.Name):
        return False
    if flow.method.bound == "class" and node.id == flow.method.receiver:
        return True
    return flow.method.scope.qualified(node, node.lineno) == analysis.function.dotted
