"""Layer normalisation: it keeps its input and two numbers a row, and its gradients are right in low precision too.

    y = x̂ w + b        x̂ = (x − μ) r        μ = Σ x / H,   r = (ε + Σ (x − μ)² / H)^(−1/2)

with one μ and one r for each row x of H elements. PyTorch's own kernel does the work; but on a CPU in bfloat16 and
float16 that kernel keeps μ and r in the low dtype and adds up the gradients of weight and bias in it, over all rows, so
that they come out wrong by percents. Here they are kept and added up in float32, and rounded in the end.

Source: J. L. Ba, J. R. Kiros and G. E. Hinton, Layer Normalization, 2016, arXiv:1607.06450, equation 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pullback.context import Context
from pullback.function import Function
from pullback.ops.arguments import check_eps
from pullback.ops.plain import in_forward_mode
from pullback.ops.rows import Gradients, axes_of, low_on_cpu, row_shape, rows_of, summed_gradients, wide, widened
from pullback.ops.samples import leaf
from pullback.ops.scratch import shaped, times

_PIECE = 2**18
"""How many elements x̂ is made of at a time: what stays in a cache."""


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Shift and scale each row to mean 0 and variance 1.

    Args:
        input: What is normalised, such as (B, T, H); float64, float32, bfloat16 or float16.
        normalized_shape: The shape of a row, the last axes of input; a number where it is one axis.
        weight: What each element of a row is multiplied by afterwards, of shape normalized_shape.
        bias: What is added in the end, of the same shape.
        eps: Added to the variance.

    Returns:
        ``F.layer_norm(input, normalized_shape, weight, bias, eps)``, of input's shape and dtype. For backward it keeps
        input, weight and bias, and 8 bytes a row (16 for a float64 input).

    Raises:
        OperationError: PB130, normalized_shape isn't the end of input's shape, weight's or bias's shape is another, or
            one of them isn't a tensor of floating-point numbers, or eps is no number.
    """
    check_eps("layer_norm", eps)
    axes = axes_of("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    if in_forward_mode():
        return LayerNorm.reference(input, weight, bias, axes, eps)
    result: Tensor = LayerNorm.apply(input, weight, bias, axes, eps)
    return result


class LayerNorm(Function):
    """y = x̂ w + b, for rows over the last `axes` axes."""

    @staticmethod
    def forward(
        ctx: Context, input: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, eps: float
    ) -> Tensor:
        y, mean, rstd = normalised(rows_of(input, axes), weight, bias, eps)
        # Backward has no need of bias and ε; the reference does, which gives the second derivative.
        ctx.save_for_backward(input, weight, bias, mean, rstd)
        ctx.axes, ctx.eps = axes, eps
        return shaped(y, input.shape)

    # For one row, with v = w g (g the cotangent): dx̂ is r dx without its parts along 1 and x̂, so
    #   gx = r (v − Σ v / H − x̂ (v, x̂) / H)        gw = Σ g x̂,  gb = Σ g  over all rows
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        input, weight, bias, mean, rstd = ctx.saved_tensors
        shape, wanted = row_shape(input, ctx.axes), ctx.needs_input_grad[:3]
        rows = rows_of(g, ctx.axes), rows_of(input, ctx.axes), mean, rstd
        gx, gw, gb = gradients(*rows, weight, bias, ctx.eps, wanted)
        return (
            None if gx is None else gx.view(input.shape),
            None if gw is None else gw.view(shape).to(weight.dtype),
            None if gb is None else gb.view(shape).to(bias.dtype),
            None,
            None,
        )

    @staticmethod
    def reference(input: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, eps: float) -> Tensor:
        """The formula, computed in float32 or float64."""
        # Not F.layer_norm: its own second derivative raises for a bias without a weight (it misses the weight), and is
        # wrong between weight and input where torch.func.hessian batches it.
        x = input.to(wide(input.dtype))
        variance, mean = torch.var_mean(x, tuple(range(-axes, 0)), correction=0, keepdim=True)
        y = (x - mean) * (variance + eps).rsqrt()
        y = y if weight is None else y * weight.to(x.dtype)
        return (y if bias is None else y + bias.to(x.dtype)).to(input.dtype)

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, Tensor | None, Tensor | None, int, float]]:
        """Draw a batch with weight and bias, and rows over two axes without."""
        yield leaf(2, 3, 4), leaf(4, seed=1), leaf(4, seed=2), 1, 1e-5
        yield leaf(3, 2, 4), None, None, 2, 1e-3


def normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The values of rows x (M, H), in x's dtype, and μ and r (M, 1) in the wide one."""
    dtype, length = wide(x.dtype), x.shape[1]
    w, b = widened(weight, dtype), widened(bias, dtype)
    if low_on_cpu(x):
        y, mean, rstd = torch.native_layer_norm(x, [length], ones(x) if w is None else w, b, eps)
    else:
        y, mean, rstd = torch.native_layer_norm(x.to(dtype), [length], w, b, eps)
    return y.to(x.dtype), mean, rstd


def gradients(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    wanted: tuple[bool, ...],
) -> Gradients:
    """The gradients by rows x (M, H), in their dtype, and by weight and bias; None where one isn't wanted."""
    w = widened(weight, rstd.dtype)
    if not low_on_cpu(x):
        return summed_gradients(lambda *rows: by_kernel(rows, w, wanted), g, x, mean, rstd)
    # For the rows the kernel computes wide inside, but it adds up what is summed over them in the low dtype.
    gx = gw = gb = None
    if wanted[0]:
        gx, _, _ = by_kernel((g, x, mean, rstd), ones(x) if w is None else w, (True, False, False))
    sums = wanted[1], wanted[2]
    if any(sums):
        if all(parameter is None or parameter.dtype == x.dtype == torch.bfloat16 for parameter in (weight, bias)):
            gw, gb = rounded_sums(g, x, eps, sums)
        else:
            _, gw, gb = summed_gradients(lambda *rows: by_kernel(rows, w, (False, *sums)), g, x, mean, rstd)
    return gx, gw, gb


def rounded_sums(g: Tensor, x: Tensor, eps: float, wanted: tuple[bool, bool]) -> tuple[Tensor | None, Tensor | None]:
    """Σ g x̂ and Σ g over all rows of bfloat16, for parameters that are to have them in bfloat16.

    PyTorch adds up bfloat16 in float32 and rounds the sum, so that nothing has to be widened. Beside that only x̂ and
    g x̂ are rounded, as y was and g is. Not for float16, where g x̂ can lie beyond its range.
    """
    many = max(1, _PIECE // max(1, x.shape[1]))
    weights = []
    for some_g, some_x in zip(g.split(many), x.split(many), strict=True) if wanted[0] else ():
        normal, _, _ = torch.native_layer_norm(some_x, [x.shape[1]], ones(x), None, eps)
        weights.append(times(normal, some_g).sum(0))
    return torch.stack(weights).sum(0) if wanted[0] else None, g.sum(0) if wanted[1] else None


def by_kernel(rows: tuple[Tensor, ...], w: Tensor | None, wanted: tuple[bool, ...]) -> Gradients:
    """The same by PyTorch's kernel, of cotangent, rows, means and 1/σ."""
    g, x, mean, rstd = rows
    # A bias is asked for only to know the shape of its gradient: any row does.
    row = g.new_empty(x.shape[1], dtype=rstd.dtype) if w is None else w
    found = torch.ops.aten.native_layer_norm_backward(g, x, [x.shape[1]], mean, rstd, w, row, wanted)
    gx, gw, gb = (gradient if wants else None for gradient, wants in zip(found, wanted, strict=True))
    return gx, gw, gb


def ones(x: Tensor) -> Tensor:
    """A weight of ones in the wide dtype, which beside low rows is the kernel's word for wide statistics."""
    return x.new_ones(x.shape[1], dtype=wide(x.dtype))
