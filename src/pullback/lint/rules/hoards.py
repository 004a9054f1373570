"""PB306: tensors that pile up outside of the call."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.flow import Flow

_GROW = frozenset(("append", "appendleft", "extend", "insert", "add"))


def hoarded(analysis: Analysis) -> Iterator[Finding]:
    """PB306: a method leaves tensors in a list on the class or in a global, and nothing in the file takes them out."""
    for flow in analysis.own_flows():
        for call in flow.nodes(ast.Call):
            if not (isinstance(call.func, ast.Attribute) and call.func.attr in _GROW and call.args):
                continue
            place, kept = call.func.value, flow.value(call.args[-1])
            if (
                kept.is_tensor
                and kept.origins
                and _is_outside(analysis, flow, place)
                and not _is_emptied(analysis, place)
            ):
                name = ast.unparse(place)
                yield analysis.finding(
                    "PB306",
                    call,
                    f"Each call leaves a tensor in {name}, and nothing takes it out again.",
                    where=flow.method.name,
                    got=ast.unparse(call),
                    confidence="likely",
                )


def _is_outside(analysis: Analysis, flow: Flow, node: ast.expr) -> bool:
    """Whether an expression is a global of the file, or an attribute of the class."""
    own = flow.method.scope.bindings
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if flow.method.bound == "class" and node.value.id == flow.method.receiver:
            return True
        return flow.method.scope.qualified(node.value, node.lineno) == analysis.function.dotted
    if not isinstance(node, ast.Name) or node.id in own:
        return False
    found = flow.method.scope.binding(node.id)
    if found is None:
        return False
    binding, scope = found
    return isinstance(scope.node, ast.Module) and isinstance(binding.node, (ast.List, ast.Set, ast.Call))


def _is_emptied(analysis: Analysis, node: ast.expr) -> bool:
    """Whether anything in the file takes something out of it, hands it on, or replaces it."""
    name = re.escape(node.attr if isinstance(node, ast.Attribute) else ast.unparse(node))
    text = analysis.function.source.text
    if re.search(rf"\b{name}\s*\.\s*(pop|popleft|clear|remove|discard)\b|\bdel\s+[\w.]*\b{name}\b|maxlen", text):
        return True
    return len(re.findall(rf"\b{name}\s*(?::[^=\n]*)?=[^=]", text)) > 1 or bool(re.search(rf"\b{name}\b\s*[,)]", text))
