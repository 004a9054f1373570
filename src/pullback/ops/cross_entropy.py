"""Cross entropy of logits: beside its arguments it keeps one number a row, and backward makes one tensor, the gradient.

    loss = (1 - s) w_y (lse - x_y) + s/C Σ_c w_c (lse - x_c)         lse = log Σ_c exp x_c

for a row x of C logits with the target class y, class weights w and the label smoothing s. PyTorch keeps log softmax(x)
for backward, a second tensor of the logits' size. Here each row keeps Σ_c exp(x_c - max x), in float32 (float64 for
logits in float64), from which backward makes the softmax again, in blocks that stay in the cache.

Source: C. Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2015, arXiv:1512.00567, section 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.context import Context
from pullback.errors import OperationError
from pullback.function import Function
from pullback.ops.arguments import autocasts, check_tensors
from pullback.ops.chunks import accumulated
from pullback.ops.logits import Cut
from pullback.ops.plain import in_forward_mode
from pullback.ops.samples import leaf
from pullback.ops.scratch import shaped
from pullback.ops.targets import (
    Options,
    check_options,
    losses,
    nothing_ignored,
    out_of_bounds,
    owed,
    read_targets,
    reduced,
)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute what `torch.nn.functional.cross_entropy` computes, to the same names and defaults.

    Args:
        input: Logits of shape (V,), (B, V) or (B, V, d1, …), with V classes.
        target: Class indices of shape (), (B,) or (B, d1, …), of any integer dtype; or probabilities, of input's shape
            and a floating-point dtype. The latter are PyTorch's own operation, with what that keeps.
        weight: A factor for each class, of shape (V,).
        size_average: Deprecated in PyTorch; must be None.
        ignore_index: The target of rows that don't count.
        reduce: Deprecated in PyTorch; must be None.
        reduction: ``"none"``, ``"sum"``, or ``"mean"``, which divides by the sum of the weights of all targets.
        label_smoothing: The share of the probability that is spread over all classes, from 0 to 1.

    Returns:
        A scalar, or with ``"none"`` the loss of each row in target's shape. It is computed in float32 where input's
        dtype is lower. For backward it keeps its arguments and 4 bytes a row (8 where input is in float64).

    Raises:
        OperationError: PB130, for shapes, dtypes, options or class indices that mean nothing.
    """
    if size_average is not None or reduce is not None:
        raise _deprecated(size_average, reduce)
    check_tensors("cross_entropy", ("weight",), input=input, target=target, weight=weight)
    options = Options(reduction, ignore_index, label_smoothing)
    probabilities = target.is_floating_point() and target.shape == input.shape
    _check_shapes(input, target, probabilities)
    classes = input.shape[min(1, input.dim() - 1)]
    check_options("cross_entropy", target, weight, classes, options, probabilities=probabilities)
    if probabilities:
        if ignore_index >= 0:
            raise nothing_ignored("cross_entropy", ignore_index, target)
        return F.cross_entropy(input, target, weight, None, ignore_index, None, reduction, label_smoothing)
    call = CrossEntropy.reference if in_forward_mode() else CrossEntropy.apply
    if torch.compiler.is_compiling():
        compiled: Tensor = call(input, target, weight, *options)
        return compiled
    try:
        result: Tensor = call(input, target, weight, *options)
    except (RuntimeError, IndexError):
        wrong = out_of_bounds("cross_entropy", target, ignore_index, classes)
        if wrong is None:
            raise
        raise wrong from None
    return result


class CrossEntropy(Function):
    """The mean, the sum or each of -log softmax(input)[target], weighted and smoothed."""

    nondiff_argnames = ("target", "weight")

    @staticmethod
    def forward(
        ctx: Context,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: str,
        ignore_index: int,
        label_smoothing: float,
    ) -> Tensor:
        options = Options(reduction, ignore_index, label_smoothing)
        dtype = accumulated(input.dtype)
        logits, due = _batched(input, target)
        targets = read_targets(due, weight, ignore_index, dtype)
        cut = Cut(logits, dtype)
        own, every, sums = [], [], []
        for piece, index in zip(cut.pieces(logits), cut.of_rows(targets.chosen), strict=True):
            part = cut.shifted(piece)
            own.append(part.gather(1, index).squeeze(1))
            if label_smoothing:
                every.append((part if weight is None else part * _along_classes(weight, part)).sum(1))
            sums.append(part.exp_().sum(1))
        sum_ = torch.cat(sums, cut.row_axis)
        terms = (sum_.log(), torch.cat(own, cut.row_axis), torch.cat(every, cut.row_axis) if every else None)
        result = reduced(losses(targets, options, logits.shape[1], weight, terms), targets, options)
        ctx.save_for_backward(input, target, weight, sum_)
        ctx.options = options
        result = result if autocasts(input.device) else result.to(input.dtype)
        return shaped(result, target.shape) if reduction == "none" else result

    # With m the row's largest logit and S = Σ exp(x - m), softmax(x) = exp(x - m) / S, and 1/S joins the row's factor.
    # What a row owes stands in `owed`: spread softmax(x) - smooth w, less drawn at the target.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.needs_input_grad[0]:
            return (None,) * 6
        input, target, weight, sum_ = ctx.saved_tensors
        options: Options = ctx.options
        logits, due = _batched(input, target)
        targets = read_targets(due, weight, options.ignore_index, sum_.dtype)
        spread, smooth, drawn = owed(targets, options, logits.shape[1], weight, g.reshape(due.shape) if g.dim() else g)
        cut = Cut(logits, sum_.dtype)
        made = torch.empty_like(logits) if cut.several else logits
        of_rows = map(cut.of_rows, (targets.chosen, spread / sum_, smooth, -drawn))
        for piece, place, index, factor, rest, off in zip(cut.pieces(logits), cut.pieces(made), *of_rows, strict=True):
            out = cut.room(piece)
            part = torch.mul(cut.shifted(piece).exp_(), factor, out=out)
            if options.label_smoothing:
                part = torch.sub(part, rest if weight is None else rest * _along_classes(weight, part), out=out)
            part = torch.scatter_add(part, 1, index, off, out=out)
            if cut.several:
                place.copy_(part)
            else:
                made = part.to(input.dtype)
        return made.view(input.shape), None, None, None, None, None

    @staticmethod
    def reference(
        input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: str,
        ignore_index: int,
        label_smoothing: float,
    ) -> Tensor:
        """PyTorch's own operation."""
        if weight is not None:
            weight = weight.to(input.dtype)
        return F.cross_entropy(input, target.long(), weight, None, ignore_index, None, reduction, label_smoothing)

    @staticmethod
    def samples() -> Iterator[tuple[Any, ...]]:
        """Draw a mean with a row that is ignored, and a weighted, smoothed loss of each pixel."""
        yield leaf(4, 3), torch.tensor([2, -100, 0, 1]), None, "mean", -100, 0.0
        weight = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
        yield leaf(2, 3, 2), torch.tensor([[0, 2], [1, 1]]), weight, "none", -100, 0.1


def _batched(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits with their classes on axis 1, and a target for each row."""
    return (input, target) if input.dim() > 1 else (input.unsqueeze(0), target.unsqueeze(0))


def _along_classes(weight: Tensor, part: Tensor) -> Tensor:
    """The class weights in a shape that broadcasts with logits."""
    return weight.to(part.dtype).view(-1, *[1] * (part.dim() - 2))


def _check_shapes(input: Tensor, target: Tensor, probabilities: bool) -> None:
    if not input.is_floating_point() or input.dim() == 0:
        raise OperationError(
            "PB130",
            "cross_entropy: `input` has the logits.",
            expected="floating-point numbers of shape (V,), (B, V) or (B, V, d1, …)",
            got=f"{input.dtype} of shape {tuple(input.shape)}",
        )
    if input.shape[min(1, input.dim() - 1)] == 0:
        raise OperationError(
            "PB130",
            "cross_entropy: `input` has no classes.",
            expected="at least one along axis 1, or along the only axis",
            got=f"shape {tuple(input.shape)}",
        )
    due = (*input.shape[:1], *input.shape[2:]) if input.dim() > 1 else ()
    if not probabilities and target.shape != due:
        raise OperationError(
            "PB130",
            f"cross_entropy: `target` doesn't fit to `input` of shape {tuple(input.shape)}.",
            expected=f"class indices of shape {due}, or probabilities of shape {tuple(input.shape)}",
            got=f"{target.dtype} of shape {tuple(target.shape)}",
            remedy="The classes are axis 1 of `input`; `target` has its other axes.",
        )


def _deprecated(size_average: bool | None, reduce: bool | None) -> OperationError:
    each = reduce is False
    meant = "none" if each else "sum" if size_average is False else "mean"
    return OperationError(
        "PB130",
        "cross_entropy: `size_average` and `reduce` are deprecated in PyTorch, and have no meaning here.",
        expected="None for both",
        got=f"size_average={size_average}, reduce={reduce}",
        remedy=f"Write reduction={meant!r}.",
    )
