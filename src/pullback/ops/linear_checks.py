"""What linear_cross_entropy asks of its arguments: shapes and dtypes that fit, and one of its two forms."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.errors import OperationError
from pullback.ops.arguments import check_tensors
from pullback.ops.targets import nothing_ignored

NAME = "linear_cross_entropy"


def has_probabilities(input: Tensor, linear_weight: Tensor, target: Tensor, ignore_index: int | None) -> bool:
    """Whether target has a probability for each class.

    Raises:
        OperationError: PB130, it has, and a class to ignore is given too.
    """
    shape = (*input.shape[:-1], linear_weight.shape[0], *linear_weight.shape[1:-1])
    found = target.is_floating_point() and target.shape == shape
    if found and ignore_index is not None:
        raise nothing_ignored(NAME, ignore_index, target)
    return found


def check_fit(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, weight: Tensor | None
) -> None:
    """Refuse what is no tensor, and shapes that no linear layer has.

    Raises:
        OperationError: PB130, naming the arguments.
    """
    layer = {"input": input, "linear_weight": linear_weight, "target": target}
    check_tensors(NAME, ("linear_bias", "weight"), **layer, linear_bias=linear_bias, weight=weight)
    features = input.shape[-1:]
    fits = input.dim() and linear_weight.dim() > 1 and linear_weight.shape[-1:] == features and linear_weight.shape[0]
    if not fits or (linear_weight.dim() > 2 and input.dim() != 2):
        raise OperationError(
            "PB130",
            f"{NAME}: `input` and `linear_weight` don't fit together.",
            expected="shapes (…, H) and (V, H), or (B, H) and (V, d1, …, H), with at least one class",
            got=f"{tuple(input.shape)} and {tuple(linear_weight.shape)}",
        )
    if linear_bias is not None and linear_bias.shape != linear_weight.shape[:-1]:
        raise OperationError(
            "PB130",
            f"{NAME}: `linear_bias` doesn't fit `linear_weight` of shape {tuple(linear_weight.shape)}.",
            expected=f"shape {tuple(linear_weight.shape[:-1])}",
            got=f"shape {tuple(linear_bias.shape)}",
        )


def common_dtype(lower: torch.dtype | None, *given: Tensor | None) -> torch.dtype:
    """The one dtype of the given tensors; after autocast to `lower`, which leaves float64 and what is no float.

    Raises:
        OperationError: PB130, there are several, or it isn't a floating-point one.
    """
    found = [t.dtype for t in given if t is not None]
    if lower is not None:
        found = [lower if dtype.is_floating_point and dtype != torch.float64 else dtype for dtype in found]
    if len({*found}) > 1 or not found[0].is_floating_point:
        raise OperationError(
            "PB130",
            f"{NAME}: `input`, `linear_weight` and `linear_bias` are of one floating-point dtype.",
            expected="one dtype, or autocast, which casts what is lower than float64",
            got=", ".join(str(t.dtype) for t in given if t is not None),
        )
    return found[0]


def check_target(input: Tensor, linear_weight: Tensor, target: Tensor) -> None:
    """Refuse classes of another shape than tokens, and further axes of the weight, have.

    Raises:
        OperationError: PB130, naming the target.
    """
    due = (*input.shape[:-1], *linear_weight.shape[1:-1])
    if target.shape != due:
        raise OperationError(
            "PB130",
            f"{NAME}: `target` doesn't fit to `input` of shape {tuple(input.shape)}.",
            expected=f"class indices of shape {due}",
            got=f"{target.dtype} of shape {tuple(target.shape)}",
            remedy="Give a class for each token: `target` has the axes of `input` but the last, and the weight's d1, …",
        )


def check_form(form: str) -> None:
    """Refuse what is no form.

    Raises:
        OperationError: PB130, naming it.
    """
    if form not in ("gradients", "recompute"):
        raise OperationError(
            "PB130",
            f"{NAME}: `form` is none of its two values.",
            expected="'gradients' or 'recompute'",
            got=repr(form),
        )
