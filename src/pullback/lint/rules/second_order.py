"""PB206 and PB207, as hints: what may cost the second derivative. Whether it does, only ``pullback check`` can say."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.evaluate import site
from pullback.lint.flow import Flow
from pullback.lint.given import returned
from pullback.lint.values import Value

_LEAVES_GRAPH = frozenset(("numpy", "item", "tolist", "detach", "data"))
_CONSTANT = frozenset(
    "argmax argmin argsort nonzero bincount searchsorted bucketize isnan isinf isfinite eq ne lt le gt ge logical_and "
    "logical_or logical_not logical_xor bool long int sign round floor ceil trunc zeros ones empty full arange "
    "zeros_like ones_like empty_like full_like rand rand_like randn randn_like bernoulli randint randperm new_zeros "
    "new_ones new_empty new_full eye tensor as_tensor".split()
)
"""Functions and methods whose result doesn't vary with their arguments, or hardly ever."""


def saved(analysis: Analysis) -> Iterator[Finding]:
    """PB206, as a hint: a tensor that forward computed and saved is a constant to whoever differentiates backward."""
    flow = analysis.keeper
    if flow is None or flow is not analysis.forward or not analysis.owns(flow) or _is_settled(analysis):
        return
    outputs = {origin.site for origin in returned(analysis) if origin.kind == "fresh"}
    makers = {site(node): node for node in (*flow.nodes(ast.Call), *flow.nodes(ast.BinOp), *flow.nodes(ast.UnaryOp))}
    for call in analysis.saves:
        for node in call.node.args:
            value = flow.value(node)
            if isinstance(node, ast.Starred) or not _is_intermediate(value):
                continue
            sites = {origin.site for origin in value.origins}
            if not sites & outputs and all(_varies(makers.get(one)) for one in sites):
                yield analysis.finding(
                    "PB206",
                    node,
                    f"forward computes and saves {ast.unparse(node)}; if that varies with an argument, its part of the "
                    "second derivative is lost.",
                    where="forward, save_for_backward",
                    got=ast.unparse(node),
                    confidence="possible",
                )


def _is_settled(analysis: Analysis) -> bool:
    """Whether a second derivative is refused, or given in another way."""
    function = analysis.function
    if function.ours:
        return True  # it reconnects what is saved, or raises
    backward = function.backward
    return backward is None or backward.is_decorated("once_differentiable")


def _is_intermediate(value: Value) -> bool:
    return (
        value.is_tensor is True
        and value.fresh
        and all(origin.how not in ("maybe", "unsure") for origin in value.origins)
    )


def _varies(maker: ast.expr | None) -> bool:
    """Whether what an expression makes may vary smoothly with what goes into it."""
    if maker is None:
        return False  # a comparison, among others
    function = maker.func if isinstance(maker, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr not in _CONSTANT and not function.attr.startswith("is_")
    return not (isinstance(function, ast.Name) and function.id in _CONSTANT)


def opaque(analysis: Analysis) -> Iterator[Finding]:
    """PB207, as a hint: backward takes a grad_output or a saved tensor out of the graph, or runs without one."""
    flow = analysis.backward
    if flow is None or not analysis.owns(flow) or _is_settled(analysis) or _recomputes(flow):
        return
    said: set[int] = set()
    for node in flow.nodes(ast.Attribute):
        value = flow.value(node.value)
        watched = value.is_tensor and (value.of("grad") or value.of("saved"))
        if node.attr in _LEAVES_GRAPH and watched and node.lineno not in said:
            said.add(node.lineno)
            yield _opaque(analysis, node, f"backward takes {ast.unparse(node.value)} out of the graph")
    for block in flow.nodes(ast.With):
        if any(_is_without_graph(flow.value(_function(item.context_expr)).dotted) for item in block.items):
            yield _opaque(analysis, block.items[0].context_expr, "backward computes where no graph is recorded")
    if any(_is_without_graph(decorator) for decorator in flow.method.decorators):
        yield _opaque(analysis, flow.method.node, "backward records no graph")


def _opaque(analysis: Analysis, node: ast.AST, what: str) -> Finding:
    return analysis.finding(
        "PB207",
        node,
        f"{what}; if a gradient is made there, its second derivative is lost.",
        where="backward",
        got=ast.unparse(node) if isinstance(node, ast.expr) else "",
        confidence="possible",
    )


def _function(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _is_without_graph(dotted: str) -> bool:
    return dotted in ("torch.no_grad", "torch.inference_mode")


def _recomputes(flow: Flow) -> bool:
    """Whether backward differentiates by itself, for which it has to detach what it starts from."""
    return any(
        flow.value(call.func).dotted in ("torch.autograd.grad", "torch.autograd.backward")
        for call in flow.nodes(ast.Call)
    )
