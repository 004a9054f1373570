"""Autograd inside backward: for which arguments it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.alternatives import Made
from pullback.lint.analysis import Analysis
from pullback.lint.ctx import escapes
from pullback.lint.flow import Flow
from pullback.lint.functions import Method
from pullback.lint.walks import gradients, owed, walk

_MAKES_LEAVES = ("requires_grad_", "requires_grad", "is_tensor", "is_floating_point", "needs_input_grad")
"""Whoever says one of these decides for what a gradient is computed, or makes leaves of his own."""


def unasked(analysis: Analysis) -> Iterator[Finding]:
    """PB234: backward runs autograd for several arguments, and never asks which of them need a gradient."""
    flow, due, walked = analysis.backward, owed(analysis), walk(analysis)
    if flow is None or due is None or walked is None or not analysis.owns(flow) or escapes(flow.method):
        return
    filled = {
        index
        for returned in walked.returns
        for index, entry in enumerate(gradients(returned, alone=False))
        if any(isinstance(one.thing, Made) for one in entry)
    }
    if _says(flow.method, "needs_input_grad"):
        return
    given = {one.thing.node for returned in walked.returns for one in returned.what if isinstance(one.thing, Made)}
    for node in flow.nodes(ast.Call):
        if flow.value(node.func).dotted != "torch.autograd.grad":
            continue
        inputs = _inputs(node)
        if inputs is None:
            continue
        count = len(inputs.elts) if isinstance(inputs, (ast.Tuple, ast.List)) else 0
        if count < 2 or any(isinstance(one, ast.Starred) for one in getattr(inputs, "elts", ())):
            continue
        due_to = {*range(count)} if node in given else filled
        if len(due_to) < 2:
            continue
        own_leaves = any(_says(flow.method, word) for word in _MAKES_LEAVES)
        names = ", ".join(due.name(index) for index in sorted(due_to))
        yield analysis.finding(
            "PB234",
            node,
            f"{flow.method.name} has autograd differentiate for {count} tensors, "
            f"and never asks which of {names} need a gradient.",
            where=f"{flow.method.name}, torch.autograd.grad",
            expected=f"{flow.method.ctx or 'ctx'}.needs_input_grad is asked",
            got=ast.unparse(inputs),
            confidence="possible" if own_leaves else "likely",
            path=flow.method.owner.source.path,
        )


def into_leaves(analysis: Analysis) -> Iterator[Finding]:
    """PB234: backward calls backward, which differentiates for every leaf that it meets; a hint."""
    flow = analysis.backward
    if flow is None or not analysis.owns(flow) or escapes(flow.method) or _says(flow.method, "needs_input_grad"):
        return
    for node in flow.nodes(ast.Call):
        function = flow.value(node.func)
        of_tensor = isinstance(node.func, ast.Attribute) and node.func.attr == "backward" and not function.dotted
        if function.dotted != "torch.autograd.backward" and not (of_tensor and _is_tensor(flow, node.func)):
            continue
        if any(keyword.arg == "inputs" for keyword in node.keywords):
            continue
        yield analysis.finding(
            "PB234",
            node,
            f"{flow.method.name} runs backward through a graph of its own: for every leaf in it, and into its .grad, "
            "whichever argument needs a gradient.",
            where=f"{flow.method.name}, {ast.unparse(node.func)}",
            expected="torch.autograd.grad, for those arguments that need a gradient",
            got=ast.unparse(node.func),
            confidence="possible",
            path=flow.method.owner.source.path,
        )


def _is_tensor(flow: Flow, function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and flow.value(function.value).is_tensor is True


def _inputs(node: ast.Call) -> ast.expr | None:
    for keyword in node.keywords:
        if keyword.arg == "inputs":
            return keyword.value
    return node.args[1] if len(node.args) > 1 else None


def _says(method: Method, word: str) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr == word) or (isinstance(node, ast.keyword) and node.arg == word)
        for node in method.nodes
    )
