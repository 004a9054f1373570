"""What forward returns in a container, which PyTorch's own Function doesn't look into."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.flow import Flow
from pullback.lint.values import Value


def returned(analysis: Analysis) -> Iterator[Finding]:
    """PB502: forward of a torch.autograd.Function returns a list or a dict of tensors, or has one among its outputs."""
    flow = analysis.forward
    if flow is None or analysis.function.ours or not analysis.owns(flow) or flow.method.is_wrapped:
        return
    for one in flow.returns:
        values: tuple[Value, ...] = (one.value,)
        written: Sequence[ast.expr | None] = [one.node.value]
        if one.value.kinds == {"tuple"} and one.value.items is not None:
            values = one.value.items
            written = one.node.value.elts if isinstance(one.node.value, ast.Tuple) else [None] * len(values)
        whole = values == (one.value,)
        for value, expression in zip(values, written, strict=False):
            kind = next(iter(value.kinds))
            if value.kinds not in ({"list"}, {"dict"}) or not _holds_tensors(flow, value, expression):
                continue
            yield analysis.finding(
                "PB502",
                one.node,
                f"forward returns {'a' if whole else 'among others a'} {kind} of tensors: PyTorch tracks only "
                "tensors that are the output, or stand in the tuple that is returned, so these don't require grad.",
                where="forward",
                expected="a tensor, or a tuple of tensors",
                got=f"a {kind}",
            )


def _holds_tensors(flow: Flow, value: Value, shown: ast.expr | None) -> bool:
    """Whether some item is surely a tensor."""
    if value.items is not None:
        return any(item.is_tensor for item in value.items)
    if isinstance(shown, ast.Name):
        written = [n for n in flow.nodes(ast.Assign) if any(_is(target, shown.id) for target in n.targets)]
        shown = written[0].value if len(written) == 1 else None
    if isinstance(shown, ast.Dict):
        return any(flow.value(one).is_tensor for one in shown.values)
    if isinstance(shown, ast.ListComp):
        return flow.value(shown.elt).is_tensor is True
    return False


def _is(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name
