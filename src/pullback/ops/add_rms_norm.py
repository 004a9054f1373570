"""A residual sum and its root mean square normalisation: between two layers they keep one number a row.

    s = x + z        y = s r w        r = (ε + Σ s² / H)^(−1/2)

A transformer block adds what a layer made of its normalised input to the residual stream, and normalises the sum for
the next layer. The sum is an output, which lives on as the next residual anyway; beside it only r is kept. It is a
sum and `rms_norm` of it, with the Function and the derivation of that: a sum keeps nothing, and autograd adds up the
gradients of its two uses.

Source: B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, 2019, arXiv:1910.07467, equation 4; norm and sum
are placed as in R. Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, arXiv:2002.04745.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pullback.errors import OperationError
from pullback.ops.arguments import check_tensors
from pullback.ops.rms_norm import rms_norm


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Add two tensors, and divide each row of the sum by its root mean square.

    Args:
        input: What a layer made, such as (B, T, H); float64, float32, bfloat16 or float16.
        residual: What it is added to, of the same shape and dtype.
        normalized_shape: The shape of a row, the last axes of input; a number where it is one axis.
        weight: What each element of a row is multiplied by afterwards, of shape normalized_shape.
        eps: Added to the mean square; None as in rms_norm.

    Returns:
        The norm and the sum, in this order: ``rms_norm(input + residual, …)`` and ``input + residual``. For backward
        it keeps the sum, weight, and 4 bytes a row (8 for float64).

    Raises:
        OperationError: PB130, input and residual differ in shape or dtype, or as in rms_norm.
    """
    check_tensors("add_rms_norm", input=input, residual=residual)
    if input.shape != residual.shape or input.dtype != residual.dtype:
        raise OperationError(
            "PB130",
            "add_rms_norm adds two tensors of one shape and dtype; `residual` has another.",
            expected=f"residual of shape {list(input.shape)}, of {input.dtype}, as input",
            got=f"residual of shape {list(residual.shape)}, of {residual.dtype}",
            remedy="Expand or convert it before the call.",
        )
    total = input + residual
    return rms_norm(total, normalized_shape, weight, eps), total
