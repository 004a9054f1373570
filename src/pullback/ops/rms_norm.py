"""Root mean square normalisation, the norm of Llama: it keeps its input and one number a row.

    y = x r w        r = (ε + Σ x² / H)^(−1/2),   one r for each row x of H elements

PyTorch composes it of seven operations, which keep three tensors of the input's size. Here r alone is kept, in float32
(float64 for a float64 input), and backward is a single pass of the kernel that layer normalisation has.

Source: B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, 2019, arXiv:1910.07467, equation 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.context import Context
from pullback.function import Function
from pullback.ops.arguments import autocasts, check_eps
from pullback.ops.plain import plain
from pullback.ops.rows import Gradients, axes_of, in_wide, row_shape, rows_of, summed_gradients, whole, wide, widened
from pullback.ops.samples import leaf
from pullback.ops.scratch import shaped


def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divide each row by its root mean square.

    Args:
        input: What is normalised, such as (B, T, H); float64, float32, bfloat16 or float16.
        normalized_shape: The shape of a row, the last axes of input; a number where it is one axis.
        weight: What each element of a row is multiplied by afterwards, of shape normalized_shape.
        eps: Added to the mean square. None is the machine epsilon of what is computed in: float64's for a float64
            input, else float32's.

    Returns:
        ``F.rms_norm(input, normalized_shape, weight, eps)``, of input's shape and dtype. For backward it keeps input,
        weight, and 4 bytes a row (8 for a float64 input).

    Raises:
        OperationError: PB130, normalized_shape isn't the end of input's shape, weight's shape is another, or one of
            them isn't a tensor of floating-point numbers, or eps is no number.
    """
    axes = axes_of("rms_norm", input, normalized_shape, weight=weight)
    if eps is None:
        eps = torch.finfo(wide(input.dtype)).eps
    else:
        check_eps("rms_norm", eps)
    if plain():
        return RMSNorm.reference(input, weight, axes, eps)
    result: Tensor = RMSNorm.apply(input, weight, axes, eps)
    return result


class RMSNorm(Function):
    """y = x r w, for rows over the last `axes` axes."""

    @staticmethod
    def forward(ctx: Context, input: Tensor, weight: Tensor | None, axes: int, eps: float) -> Tensor:
        y, rstd = normalised(rows_of(input, axes), weight, eps)
        ctx.save_for_backward(input, weight, rstd)
        ctx.axes, ctx.eps = axes, eps  # ε is for the reference, which gives the second derivative
        return shaped(y, input.shape)

    # The derivation stands above `gradients`.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        input, weight, rstd = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        ginput, gweight = gradients(g, input, weight, rstd, ctx.axes, wanted)
        return ginput, gweight, None, None

    @staticmethod
    def reference(input: Tensor, weight: Tensor | None, axes: int, eps: float) -> Tensor:
        """PyTorch's own, which composes it of differentiable operations."""
        dtype = wide(input.dtype)
        weight = None if weight is None else weight.to(dtype)
        return F.rms_norm(input.to(dtype), row_shape(input, axes), weight, eps).to(input.dtype)

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, Tensor | None, int, float]]:
        """Draw a batch with a weight, and rows over two axes without one."""
        yield leaf(2, 3, 4), leaf(4, seed=1), 1, 1e-6
        yield leaf(3, 2, 4), None, 2, 1e-3


def normalised(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The values of rows x (M, H), in x's dtype, and r (M, 1) in the wide one."""
    w = widened(weight, wide(x.dtype))

    def of_rows(x: Tensor) -> tuple[Tensor, Tensor]:
        # The norm reads the rows once and makes nothing of their size. No element is the mean of no elements: NaN.
        rstd = torch.linalg.vector_norm(x, dim=1, keepdim=True).square_().div_(x.shape[1]).add_(eps).rsqrt_()
        y = x * rstd  # first, so that no product overflows where the result doesn't
        return (y if w is None else y * w if whole() or w.device != y.device else y.mul_(w)), rstd

    y, rstd = in_wide(of_rows, x)
    return y, rstd


# For one row, with v = w g (g the cotangent) and x̂ = x r:
#   dr = −r³ (x, dx) / H,   so   (v, d(x r)) = (r v, dx) − r³ (v, x) (x, dx) / H
#   gx = r v − x̂ r (v, x̂) / H        gw = Σ g x̂ over all rows
# Layer normalisation's gradient, at a mean of zero, is
#   r v − x̂ r (v, x̂) / H − r Σ v / H        and        Σ g x̂ over all rows
# So its kernel, told that the mean is zero, gives gw, and gx but for r Σ v / H, which is added.
def gradients(
    g: Tensor, input: Tensor, weight: Tensor | None, rstd: Tensor, axes: int, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients by input and weight, each in its argument's dtype; None where it isn't wanted."""
    w = widened(weight, rstd.dtype)
    wants_x, wants_w = wanted

    def of_rows(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
        length = x.shape[1]
        mask = [wants_x, wants_w, False]
        gx, gw, _ = torch.ops.aten.native_layer_norm_backward(g, x, [length], mean, rstd, w, None, mask)
        if wants_x:
            gx.add_(row_sums(g, w).mul_(rstd).div_(max(1, length)))
        return gx if wants_x else None, gw if wants_w else None, None

    g, x = rows_of(g, axes), rows_of(input, axes)
    gx, gw, _ = summed_gradients(of_rows, g, x, torch.zeros_like(rstd), rstd, by_pieces=wants_w)
    ginput = None if gx is None else gx.view(input.shape)
    return ginput, None if gw is None or weight is None else gw.view(weight.shape).to(weight.dtype)


def row_sums(g: Tensor, w: Tensor | None) -> Tensor:
    """Σ g w of each row (M, 1)."""
    if w is None:
        return g.sum(1, keepdim=True)
    if autocasts(g.device):
        with torch.autocast(g.device.type, enabled=False):  # which would take the product in low precision
            return torch.mv(g, w).unsqueeze(1)
    return torch.mv(g, w).unsqueeze(1)
