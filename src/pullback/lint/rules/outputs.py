"""Outputs whose gradient backward never looks at."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.flow import Flow
from pullback.lint.values import Value
from pullback.lint.walks import concerns, is_twofold


def ignored(analysis: Analysis) -> Iterator[Finding]:
    """PB209: a grad_output is never read, and its output isn't marked as non-differentiable; a hint.

    Whether such an output is made of floating-point numbers, so that it can be differentiated at all, source doesn't
    say.
    """
    method, flow = analysis.function.backward, analysis.forward
    if method is None or flow is None or not concerns(analysis, "forward", "backward", "vjp"):
        return
    if is_twofold(analysis, "forward") or is_twofold(analysis, "backward") or len(flow.returns) != 1:
        return
    items = flow.returns[0].value.items
    returns = [node for node in method.nodes if isinstance(node, ast.Return) and node.value is not None]
    if items is None or len(items) < 2 or not returns:
        return
    loaded = {one.id for one in method.nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    for parameter, item in zip(method.positional, items, strict=False):
        if parameter.name in loaded or item.is_tensor is not True or not _is_computed(flow, item):
            continue
        if _is_marked(analysis):
            return
        yield analysis.finding(
            "PB209",
            returns[0] if len(returns) == 1 else parameter.node,
            f"{method.name} never reads {parameter.name}, the gradient of an output that isn't marked as "
            "non-differentiable.",
            where=f"{method.name}, {parameter.name}",
            expected="a term with it, or ctx.mark_non_differentiable for the output",
            got="no use",
            confidence="possible",
            path=method.owner.source.path,
        )


def _is_computed(flow: Flow, item: Value) -> bool:
    """Whether an output is made by this forward, by something that isn't a comparison."""
    sites = {origin.site[:2] for origin in item.origins if origin.kind == "fresh"}
    compares = {(node.lineno, node.col_offset) for node in flow.nodes(ast.Compare)}
    return bool(sites) and not sites & compares


def _is_marked(analysis: Analysis) -> bool:
    """Whether any output is marked: which one, isn't always known."""
    return any(
        one.calls("mark_non_differentiable") for one in (analysis.forward, analysis.setup_context) if one is not None
    )
