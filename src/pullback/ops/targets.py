"""Class indices as the target of a cross entropy: which rows count, by how much, and what each owes to its classes.

With logits x of a row, its target y, class weights w (1 where none are given), C classes and the smoothing s:

    loss = (1 - s) w_y (lse - x_y) + s/C Σ_c w_c (lse - x_c)         lse = log Σ_c exp x_c

and 0 for a row whose target is ignored. The mean divides the sum of them by Σ w_y over the rows that count.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pullback.errors import OperationError
from pullback.ops.arguments import is_index, is_number
from pullback.torch_private import is_wrapped

REDUCTIONS = ("none", "mean", "sum")


class Options(NamedTuple):
    """What is asked of a cross entropy, by PyTorch's names."""

    reduction: str
    ignore_index: int
    label_smoothing: float


class Targets(NamedTuple):
    """The targets of all rows.

    Attributes:
        chosen: The class of each row; 0 where it is ignored.
        counted: Whether it counts.
        weight: w_y; 0 where it is ignored.
    """

    chosen: Tensor
    counted: Tensor
    weight: Tensor


class Owed(NamedTuple):
    """The gradient of a row's logits: `spread` · softmax - `smooth` · w_c - `drawn` at the target's class.

    Attributes:
        spread: The factor of the softmax.
        smooth: The factor of the class weights.
        drawn: What the target's class gets off.
    """

    spread: Tensor
    smooth: Tensor
    drawn: Tensor


def read_targets(target: Tensor, weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Targets:
    """Take a target apart, with weights in `dtype`."""
    target = target.long()  # in a narrow dtype ignore_index would wrap around: for uint8, -100 to the class 156
    counted = target != ignore_index
    index = torch.where(counted, target, 0)
    if weight is None:
        return Targets(index, counted, counted.to(dtype))
    drawn = weight.to(dtype).gather(0, index.flatten()).view(index.shape)
    return Targets(index, counted, torch.where(counted, drawn, 0))


def losses(
    targets: Targets, options: Options, classes: int, weight: Tensor | None, terms: tuple[Tensor, Tensor, Tensor | None]
) -> Tensor:
    """The loss of each row.

    Args:
        targets: The targets.
        options: What is asked for.
        classes: C.
        weight: The class weights.
        terms: lse, x_y and, where there is smoothing, Σ_c w_c x_c; all less the same number in each row.
    """
    lse, own, total = terms
    rows = (1 - options.label_smoothing) * targets.weight * (lse - own)
    if total is not None:
        every = classes if weight is None else weight.to(lse.dtype).sum()
        rows = rows + options.label_smoothing / classes * (every * lse - total)
    return torch.where(targets.counted, rows, 0)


def reduced(rows: Tensor, targets: Targets, options: Options) -> Tensor:
    """The losses, their sum or their mean."""
    if options.reduction == "none":
        return rows
    return rows.sum() / targets.weight.sum() if options.reduction == "mean" else rows.sum()


# dloss = (1 - s) w_y (Σ_c p_c dx_c - dx_y) + s/C Σ_c w_c (Σ_k p_k dx_k - dx_c),   p = softmax(x), so with the
# cotangent r of a row
#   gx_c = r ((1 - s) w_y + s/C Σ w) p_c - r s/C w_c - [c = y] r (1 - s) w_y
def owed(targets: Targets, options: Options, classes: int, weight: Tensor | None, cotangent: Tensor) -> Owed:
    """What each row owes to its logits for the cotangent of the result."""
    row = cotangent.to(targets.weight.dtype)
    if options.reduction == "mean":
        row = row / targets.weight.sum()
    row = torch.where(targets.counted, row, 0)
    drawn = row * (1 - options.label_smoothing) * targets.weight
    smooth = row * (options.label_smoothing / classes if options.label_smoothing else 0)
    every = classes if weight is None else weight.to(row.dtype).sum()
    return Owed(drawn + smooth * every if options.label_smoothing else drawn, smooth, drawn)


def check_options(
    name: str, target: Tensor, weight: Tensor | None, classes: int, options: Options, *, probabilities: bool = False
) -> None:
    """Refuse options, targets and weights that mean nothing.

    Args:
        name: What the user called.
        target: The targets.
        weight: The class weights.
        classes: C.
        options: What is asked for.
        probabilities: Whether targets are probabilities, and not classes.

    Raises:
        OperationError: PB130, naming the argument.
    """
    if options.reduction not in REDUCTIONS:
        raise OperationError(
            "PB130",
            f"{name}: `reduction` is none of its three values.",
            expected="'none', 'mean' or 'sum'",
            got=repr(options.reduction),
        )
    if not is_number(options.label_smoothing, 0, 1):
        raise OperationError(
            "PB130",
            f"{name}: `label_smoothing` is a share of the target's probability.",
            expected="a number from 0 to 1",
            got=repr(options.label_smoothing),
        )
    if not is_index(options.ignore_index):
        raise OperationError(
            "PB130",
            f"{name}: `ignore_index` is no class index.",
            expected="an integer of 64 bits",
            got=repr(options.ignore_index),
            remedy="Leave it out where all targets count.",
        )
    if not probabilities and (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool):
        raise OperationError(
            "PB130",
            f"{name}: `target` of shape {tuple(target.shape)} has class indices, which are integers.",
            expected="torch.int64, or another integer dtype",
            got=str(target.dtype),
            remedy="Give indices as torch.long; probabilities have the shape of the logits.",
        )
    if weight is not None:
        _check_weight(name, weight, classes, probabilities)


def _check_weight(name: str, weight: Tensor, classes: int, probabilities: bool) -> None:
    if weight.shape != (classes,) or not weight.is_floating_point():
        raise OperationError(
            "PB130",
            f"{name}: `weight` has a factor for each of the {classes} classes.",
            expected=f"floating-point numbers of shape ({classes},)",
            got=f"{weight.dtype} of shape {tuple(weight.shape)}",
        )
    if weight.requires_grad and torch.is_grad_enabled() and not probabilities:
        raise OperationError(
            "PB130",
            f"{name} has no gradient for `weight`, the class weights, as PyTorch has none.",
            expected="a tensor that doesn't require grad",
            got="one that does",
            remedy="Pass weight.detach().",
        )


def nothing_ignored(name: str, ignore_index: int, target: Tensor) -> OperationError:
    """The error for a class to ignore where targets are no classes."""
    return OperationError(
        "PB130",
        f"{name}: `ignore_index` has no meaning where `target` has probabilities.",
        expected="no ignore_index",
        got=f"ignore_index={ignore_index}, and `target` of the logits' shape {tuple(target.shape)}",
        remedy="Leave rows out by probabilities of 0.",
    )


def out_of_bounds(name: str, target: Tensor, ignore_index: int, classes: int) -> OperationError | None:
    """The error for the first target that is no class; None where all are, or where their values can't be read."""
    if is_wrapped(target) or target.is_meta:
        return None
    target = target.long()
    wrong = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
    if not wrong.numel():
        return None
    return OperationError(
        "PB130",
        f"{name}: Target {int(wrong[0])} is out of bounds.",
        expected=f"class indices from 0 to {classes - 1}, or ignore_index, which is {ignore_index}",
        got=f"{wrong.numel()} of {target.numel()} targets outside, the first {int(wrong[0])}",
        remedy="Mend `target`, or pass the number that marks rows to leave out as ignore_index.",
    )
