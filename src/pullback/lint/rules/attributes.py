"""Names of torch that no release since 2.0 has."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint import tensors
from pullback.lint.analysis import Analysis
from pullback.lint.flow import Flow

_BACKENDS = frozenset("npu mlu musa hpu gcu dml xla ipex sdaa dipu supa corex vacc privateuseone ptpu poptorch".split())
"""Modules that packages for other devices put into torch."""


def unknown(analysis: Analysis) -> Iterator[Finding]:
    """PB133: a name of torch, or a method of a tensor made here, that doesn't exist."""
    for flow in analysis.own_flows():
        for node in flow.nodes(ast.Attribute):
            if not isinstance(node.ctx, ast.Load) or node.attr.startswith("_"):
                continue
            module = flow.value(node.value).dotted
            if not module:
                module = "torch.Tensor" if _is_made_here(flow, node) else ""
            names = tensors.torch_names().get(module)
            if names is None or node.attr in names or node.attr in _BACKENDS:
                continue
            if _is_tried(flow, node) or _is_put_there(analysis, node.attr):
                continue
            close = difflib.get_close_matches(node.attr, names, n=1)
            yield analysis.finding(
                "PB133",
                node,
                f"{module} has no {node.attr} in any release since 2.0: this line ends in an AttributeError.",
                where=flow.method.name,
                expected=f"{module}.{close[0]}, perhaps" if close else "",
                got=ast.unparse(node),
            )


def _is_made_here(flow: Flow, node: ast.Attribute) -> bool:
    """Whether it is of a plain tensor that this method made, so that nobody can have given it an attribute."""
    value = flow.value(node.value)
    return value.is_tensor is True and value.fresh and isinstance(node.value, ast.Call)


def _is_tried(flow: Flow, node: ast.Attribute) -> bool:
    """Whether a ``try`` or a question for the name stands around it."""
    for guard in flow.guards(node):
        if guard.kind in ("try", "except"):
            return True
        if guard.test is not None and re.search(r"hasattr|version|getattr", ast.unparse(guard.test)):
            return True
    return not flow.reached(node)


def _is_put_there(analysis: Analysis, name: str) -> bool:
    """Whether the file itself gives torch, or a class of tensors, such an attribute."""
    text = analysis.function.source.text
    return re.search(rf"\.{name}\s*=[^=]|setattr\([^)]*{name}|hasattr\([^)]*['\"]{name}", text) is not None
