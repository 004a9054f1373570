"""Rotary position embedding: it keeps the tables of cosines and sines, and nothing of its input.

    y₁ = x₁ cos θ₁ − x₂ sin θ₁        x = (x₁, x₂), the halves of the last axis, H / 2 elements each
    y₂ = x₂ cos θ₂ + x₁ sin θ₂        θ = (θ₁, θ₂), where an embedding has θ₁ = θ₂ = position · frequency

so y = x cos θ + rotate_half(x) sin θ with rotate_half(x) = (−x₂, x₁). This pairs element i with element i + H / 2, as
GPT-NeoX, Llama and Hugging Face's models do; the paper pairs 2i with 2i + 1, which is the same up to the order of
the elements.

Source: J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021, arXiv:2104.09864,
equation 34.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.context import Context
from pullback.errors import OperationError
from pullback.function import Function
from pullback.ops.arguments import check_tensors
from pullback.ops.plain import plain
from pullback.ops.rows import whole
from pullback.ops.samples import leaf


def rope(input: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + H/2) of the last axis by the angles of two tables.

    Args:
        input: What is rotated, such as queries or keys of shape (B, heads, T, H), H even.
        cos: The cosines, of shape (…, H) or (…, H/2), where … broadcasts with input's other axes: (T, H) for queries
            of shape (B, heads, T, H). A table of H/2 is used for both halves.
        sin: The sines, of cos's shape and dtype.

    Returns:
        ``input * cos + rotate_half(input) * sin``, of the shape that this has. For backward it keeps cos and sin; input
        too if one of them requires grad.

    Raises:
        OperationError: PB130, an argument is no tensor, H is odd or there is no axis, the tables differ in shape or
            dtype, are neither H nor H/2 wide, or don't broadcast with input.
    """
    check_tensors("rope", input=input, cos=cos, sin=sin)
    width = input.shape[-1] if input.dim() else 0
    if input.dim() == 0 or width % 2:
        raise OperationError(
            "PB130",
            "rope rotates pairs of elements, and the last axis of `input` has an odd number of them, or isn't there.",
            expected="input of shape (…, H), H even",
            got=f"input of shape {list(input.shape)}",
            remedy="Rotate an even number of elements: input[..., :H].",
        )
    if cos.shape != sin.shape or cos.dtype != sin.dtype:
        raise OperationError(
            "PB130",
            "rope takes one sine for each cosine; `sin` has another shape or dtype than `cos`.",
            expected=f"sin of shape {list(cos.shape)}, of {cos.dtype}, as cos",
            got=f"sin of shape {list(sin.shape)}, of {sin.dtype}",
            remedy="Make both of the same angles: angles.cos(), angles.sin().",
        )
    if cos.dim() == 0 or cos.shape[-1] not in (width, width // 2):
        raise OperationError(
            "PB130",
            "rope takes an angle for each element of the last axis of `input`, or for each pair.",
            expected=f"cos and sin of shape (…, {width}) or (…, {width // 2})",
            got=f"cos and sin of shape {list(cos.shape)}",
            remedy="Make the tables as wide as the head, or half as wide.",
        )
    _check_batch(input, cos)
    if plain():
        return Rope.reference(input, cos, sin)
    result: Tensor = Rope.apply(input, cos, sin)
    return result


def _check_batch(input: Tensor, cos: Tensor) -> None:
    sizes = zip(reversed(input.shape[:-1]), reversed(cos.shape[:-1]), strict=False)
    if any(size != other and 1 not in (size, other) for size, other in sizes):
        raise OperationError(
            "PB130",
            "rope broadcasts the tables along the other axes of `input`, and they don't fit.",
            expected="equal sizes along each axis but the last, counted from there, or 1",
            got=f"input of shape {list(input.shape)}, cos and sin of shape {list(cos.shape)}",
            remedy="Cut the tables to the positions of input: cos[:T], sin[:T].",
        )


class Rope(Function):
    """y = x cos + rotate_half(x) sin."""

    @staticmethod
    def forward(ctx: Context, input: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # A rotation needs what it rotated only for the angles' sake.
        ctx.save_for_backward(cos, sin, *((input,) if any(ctx.needs_input_grad[1:]) else ()))
        ctx.shape, ctx.dtype = input.shape, input.dtype
        return rotated(input, cos, *halves(sin, input.shape[-1]))

    # With halves c₁, c₂ of cos and s₁, s₂ of sin, (g₁, g₂) the cotangent:
    #   gx₁ = g₁ c₁ + g₂ s₂,   gx₂ = g₂ c₂ − g₁ s₁
    # This is the rotation of g with −s₂ and −s₁ in the place of s₁ and s₂: by minus the angle, where both halves have
    # one angle. And y is linear in the tables:
    #   gcos = (g₁ x₁, g₂ x₂),   gsin = (−g₁ x₂, g₂ x₁)
    # both summed over what a table was used for: the axes it was broadcast along, and both halves if it has H/2.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        cos, sin, *kept = ctx.saved_tensors
        ginput = gcos = gsin = None
        if ctx.needs_input_grad[0]:
            first, second = halves(sin, g.shape[-1])
            ginput = rotated(g, cos, second, first, sign=-1).sum_to_size(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            gcos = to_table(g * kept[0], cos)
        if ctx.needs_input_grad[2]:
            gsin = to_table(g * rotate_half(kept[0]), sin)
        return ginput, gcos, gsin

    @staticmethod
    def reference(input: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The formula as models write it."""
        width = input.shape[-1]
        return input * torch.cat(halves(cos, width), -1) + rotate_half(input) * torch.cat(halves(sin, width), -1)

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Draw heads with a table of full width, and of half width for each of a batch."""
        yield leaf(2, 2, 3, 4), leaf(3, 4, seed=1), leaf(3, 4, seed=2)
        yield leaf(2, 2, 3, 4), leaf(2, 1, 3, 2, seed=1), leaf(2, 1, 3, 2, seed=2)


def halves(table: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The entries for both halves of an axis of `width`; the same ones twice where the table has only half of them."""
    if table.shape[-1] != width:
        return table, table
    return table[..., : width // 2], table[..., width // 2 :]


def rotate_half(input: Tensor) -> Tensor:
    """(−x₂, x₁) for the halves (x₁, x₂) of the last axis."""
    first, second = halves(input, input.shape[-1])
    return torch.cat((-second, first), -1)


def rotated(x: Tensor, cos: Tensor, first: Tensor, second: Tensor, sign: int = 1) -> Tensor:
    """(x₁ c₁ − sign · x₂ s₁, x₂ c₂ + sign · x₁ s₂) for the halves s₁, s₂ of the sines."""
    width = x.shape[-1]
    one, two = halves(x, width)
    if whole():
        c1, c2 = halves(cos, width)
        turned = torch.addcmul(one * c1, two, first, value=-sign), torch.addcmul(two * c2, one, second, value=sign)
        return torch.cat(turned, -1)
    # The product is a new tensor, and the other half is added to it in place: two passes, where cat would need four.
    y = x * (cos if cos.shape[-1] == width else torch.cat((cos, cos), -1))
    out1, out2 = halves(y, width)
    out1.addcmul_(two, first, value=-sign)
    out2.addcmul_(one, second, value=sign)
    return y


def to_table(gradient: Tensor, table: Tensor) -> Tensor:
    """What belongs to the table of a gradient for each element of the result."""
    if table.shape[-1] != gradient.shape[-1]:
        first, second = halves(gradient, gradient.shape[-1])
        gradient = first + second
    return gradient.sum_to_size(table.shape).to(table.dtype)
