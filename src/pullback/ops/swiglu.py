"""SwiGLU, the gate of Llama's feed-forward block: it keeps its two inputs and nothing else.

    y = silu(a) · u        silu(a) = a σ(a),   a the gate, u what goes up

PyTorch's own two operations keep silu(a) as well, a third tensor of the same size. Here backward computes it again,
which costs one pass and saves a third of the bytes.

Source: N. Shazeer, GLU Variants Improve Transformer, 2020, arXiv:2002.05202, equation 6.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.context import Context
from pullback.function import Function
from pullback.ops.gated import activation_gradient, check_gated
from pullback.ops.plain import plain
from pullback.ops.samples import leaf
from pullback.ops.scratch import times


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Multiply `up` by the SiLU of `gate`.

    Args:
        gate: What is put through silu; any shape, usually (B, T, H).
        up: What it gates, of a shape that broadcasts with gate's.

    Returns:
        ``F.silu(gate) * up``. For backward it keeps gate and up, and no other byte.

    Raises:
        OperationError: PB130, the shapes don't broadcast, or an argument isn't of floating-point numbers.
    """
    check_gated("swiglu", gate, up)
    if plain():
        return SwiGLU.reference(gate, up)
    result: Tensor = SwiGLU.apply(gate, up)
    return result


class SwiGLU(Function):
    """y = silu(gate) · up."""

    @staticmethod
    def forward(ctx: Context, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return times(F.silu(gate), up)

    # dy = up silu'(gate) dgate + silu(gate) dup, elementwise, so
    #   ggate = g up silu'(gate)        gup = g silu(gate)
    # each summed over the axes along which its argument was broadcast.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gate, up = ctx.saved_tensors
        ggate = gup = None
        if ctx.needs_input_grad[0]:
            ggate = activation_gradient(torch.ops.aten.silu_backward, g * up, gate)
        if ctx.needs_input_grad[1]:
            gup = times(F.silu(gate), g).sum_to_size(up.shape)
        return ggate, gup

    @staticmethod
    def reference(gate: Tensor, up: Tensor) -> Tensor:
        """The two operations as PyTorch has them."""
        return F.silu(gate) * up

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, Tensor]]:
        """Draw a batch, and one row that is broadcast."""
        yield leaf(2, 3, 4), leaf(2, 3, 4, seed=1)
        yield leaf(3, 4), leaf(4, seed=1)
