"""GEGLU, the gate of T5's and Gemma's feed-forward blocks: it keeps its two inputs and nothing else.

    y = gelu(a) · u        a the gate, u what goes up

    none:   gelu(a) = a Φ(a),   Φ the normal distribution function
    tanh:   gelu(a) = a (1 + tanh(√(2/π) (a + 0.044715 a³))) / 2

PyTorch's own two operations keep gelu(a) as well, a third tensor of the same size. Here backward computes it again,
which costs one pass and saves a third of the bytes.

Source: N. Shazeer, GLU Variants Improve Transformer, 2020, arXiv:2002.05202, equation 6; D. Hendrycks and K. Gimpel,
Gaussian Error Linear Units, 2016, arXiv:1606.08415, section 2, for gelu and its approximation.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.context import Context
from pullback.errors import OperationError
from pullback.function import Function
from pullback.ops.gated import activation_gradient, check_gated
from pullback.ops.plain import plain
from pullback.ops.samples import leaf
from pullback.ops.scratch import times

APPROXIMATIONS = ("none", "tanh")


def geglu(gate: Tensor, up: Tensor, approximate: str = "tanh") -> Tensor:
    """Multiply `up` by the GELU of `gate`.

    Args:
        gate: What is put through gelu; any shape, usually (B, T, H).
        up: What it gates, of a shape that broadcasts with gate's.
        approximate: "none" for the normal distribution function, "tanh" for its approximation, as in ``F.gelu``. The
            default is what models with this gate use, and not ``F.gelu``'s.

    Returns:
        ``F.gelu(gate, approximate=approximate) * up``. For backward it keeps gate and up, and no other byte.

    Raises:
        OperationError: PB130, there is no such approximation, the shapes don't broadcast, or an argument isn't of
            floating-point numbers.
    """
    check_gated("geglu", gate, up)
    if approximate not in APPROXIMATIONS:
        raise OperationError(
            "PB130",
            "geglu: there is no such approximation of gelu.",
            expected="approximate is 'none' or 'tanh'",
            got=repr(approximate),
            remedy="Leave approximate out for 'tanh', which models with this gate use.",
        )
    if plain():
        return GeGLU.reference(gate, up, approximate)
    result: Tensor = GeGLU.apply(gate, up, approximate)
    return result


class GeGLU(Function):
    """y = gelu(gate) · up."""

    @staticmethod
    def forward(ctx: Context, gate: Tensor, up: Tensor, approximate: str) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.approximate = approximate
        return times(F.gelu(gate, approximate=approximate), up)

    # dy = up gelu'(gate) dgate + gelu(gate) dup, elementwise, so
    #   ggate = g up gelu'(gate)        gup = g gelu(gate)
    # each summed over the axes along which its argument was broadcast. With φ the normal density, and with
    # t = tanh(z), z = √(2/π) (a + 0.044715 a³), the derivatives that PyTorch's gelu_backward multiplies by are
    #   none: Φ(a) + a φ(a)        tanh: (1 + t) / 2 + a (1 − t²) z' / 2
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        gate, up = ctx.saved_tensors
        how = ctx.approximate
        ggate = gup = None
        if ctx.needs_input_grad[0]:
            ggate = activation_gradient(torch.ops.aten.gelu_backward, g * up, gate, approximate=how)
        if ctx.needs_input_grad[1]:
            gup = times(F.gelu(gate, approximate=how), g).sum_to_size(up.shape)
        return ggate, gup, None

    @staticmethod
    def reference(gate: Tensor, up: Tensor, approximate: str) -> Tensor:
        """The two operations as PyTorch has them."""
        return F.gelu(gate, approximate=approximate) * up

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, Tensor, str]]:
        """Draw a batch, and one row that is broadcast."""
        yield leaf(2, 3, 4), leaf(2, 3, 4, seed=1), "tanh"
        yield leaf(3, 4), leaf(4, seed=1), "none"
