"""Dropout and the residual connection after it: it keeps a key of 16 bytes, and no mask.

    y = r + x k / (1 − p)        k = 0 with probability p, else 1, for each element

PyTorch's own two operations keep a mask, which on CPUs has the dtype of x and so its size. Here the numbers behind k
depend on nothing but the key and the place of the element, so backward draws them again (see pullback.ops.draws).

Source: N. Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, JMLR 15, 2014; for
adding the residual, A. Vaswani et al., Attention Is All You Need, 2017, arXiv:1706.03762, section 5.4.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.context import Context
from pullback.errors import OperationError
from pullback.function import Function
from pullback.ops import draws
from pullback.ops.arguments import check_tensors, is_number
from pullback.ops.plain import in_forward_mode
from pullback.ops.samples import leaf


def dropout_add(input: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Drop elements of `input`, scale the others by 1 / (1 − p), and add `residual`.

    A dropped element is multiplied by 0, as in PyTorch: infinity and NaN become NaN. Which ones are dropped depends on
    the seed and on an element's place in logical order, and not on strides or dtype. The key comes from the device's
    default generator, so ``torch.manual_seed`` repeats it, checkpointing restores it, and ``torch.func.vmap`` wants to
    know ``randomness="same"`` or ``"different"``. For the same seed ``F.dropout`` drops others.

    Args:
        input: Any shape and layout, usually (B, T, H).
        residual: Of the same shape.
        p: The probability that an element is dropped, from 0 to 1.
        training: False drops nothing.

    Returns:
        ``F.dropout(input, p, training) + residual``. For backward it keeps 16 bytes; none where p is 0 or 1, or
        without training.

    Raises:
        OperationError: PB130, p isn't a probability, the shapes differ, or a tensor isn't of floating-point numbers.
    """
    _check(input, residual, p)
    if not training or p == 0:
        return residual + input
    if p == 1:
        return residual + input * 0
    key = draws.key(input.device)
    if in_forward_mode():
        return DropoutAdd.reference(input, residual, key, float(p))
    result: Tensor = DropoutAdd.apply(input, residual, key, float(p))
    return result


class DropoutAdd(Function):
    """y = residual + input k / (1 − p), k of the key."""

    @staticmethod
    def forward(ctx: Context, input: Tensor, residual: Tensor, key: Tensor, p: float) -> Tensor:
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(key)
        ctx.p, ctx.dtype = p, input.dtype
        return torch.addcmul(residual, input, _kept(key, input, p), value=1 / (1 - p))

    # dy = dr + k / (1 − p) dx, elementwise:   gx = g k / (1 − p)        gr = g
    # addcmul does both steps of a product in one pass and, in a low precision, with one rounding.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        ginput = None
        if ctx.needs_input_grad[0]:
            (key,) = ctx.saved_tensors
            ginput = torch.addcmul(g.new_zeros(()), g, _kept(key, g, ctx.p), value=1 / (1 - ctx.p)).to(ctx.dtype)
        return ginput, g if ctx.needs_input_grad[1] else None, None, None

    @staticmethod
    def reference(input: Tensor, residual: Tensor, key: Tensor, p: float) -> Tensor:
        """The operations as PyTorch has them, on the numbers of the same key."""
        return residual + input * _kept(key, input, p) / (1 - p)

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, Tensor, Tensor, float]]:
        """Draw a batch in which many are dropped, and one in the order of turned axes in which few are."""
        key = torch.tensor([20, -9])
        yield leaf(2, 3, 4), leaf(2, 3, 4, seed=1), key, 0.6
        yield leaf(5, 4).t(), leaf(4, 5, seed=1), key, 0.1


def _kept(key: Tensor, like: Tensor, p: float) -> Tensor:
    """Ones and zeros of the shape and dtype of `like`."""
    return draws.kept(key, like.numel(), p, like.dtype).view(like.shape)


def _check(input: Tensor, residual: Tensor, p: float) -> None:
    check_tensors("dropout_add", input=input, residual=residual)
    message = expected = got = ""
    if not is_number(p, 0, 1):
        message, got = "p is no probability", f"p={p!r}"
        expected, remedy = "a number from 0 to 1", "Give the share of elements that are dropped, as a Python number."
    elif input.shape != residual.shape:
        message, got = "input and residual differ in shape", f"{tuple(input.shape)} and {tuple(residual.shape)}"
        expected, remedy = "one shape for both", "Expand the smaller one first: residual.expand_as(input)."
    elif not (input.is_floating_point() and residual.is_floating_point()):
        message, got = "input and residual aren't both floating-point", f"{input.dtype} and {residual.dtype}"
        expected, remedy = "two floating-point tensors", "Convert them, with .float() for instance."
    if message:
        raise OperationError("PB130", f"dropout_add: {message}.", expected=expected, got=got, remedy=remedy)
