"""Writes into other people's tensors, and readers of raw memory: one defect a class."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


def memory_of(t: Tensor) -> Tensor:
    """The first elements of t's memory in t's shape, zeros after its end: what a kernel that knows no strides reads."""
    flat = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())[t.storage_offset() :]
    flat = torch.cat([flat, torch.zeros(t.numel(), dtype=t.dtype)])[: t.numel()]
    return flat.view(t.shape)


class DirtyUnmarked(Function):
    """The caller's x is doubled, and autograd isn't told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)  # expect: PB401
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class WritesToAFrozenArgument(Function):
    """The bias, which needs no gradient, is overwritten by the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return bias.add_(x).clone()  # expect: PB401

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.clone(), None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2), leaf(2).detach()


class RawWriteToInput(Function):
    """x is doubled through its raw memory: no version counter sees it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        raw = x.detach().numpy()
        raw *= 2  # expect: PB402
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class MutatesGradient(Function):
    """The gradient is tripled in place, for every other branch that shares it too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.mul_(3)  # expect: PB403

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class WritesToSaved(Function):
    """The saved argument is used as scratch memory; .data hides it from the version counter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gx = 2 * x * g
        x.data.zero_()  # expect: PB404
        return gx

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class FlipsSavedMask(Function):
    """The saved mask is inverted in place: a second backward gets its complement."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        off = x < 0.5
        ctx.save_for_backward(off)
        return x.masked_fill(off, 0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (off,) = ctx.saved_tensors
        return g * off.logical_not_()  # expect: PB404

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(4),)


class StrideBlind(Function):
    """backward reads grad_output's memory in order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * memory_of(g)  # expect: PB405

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class ViewOnGradient(Function):
    """view refuses the gradients that Tensor.t and Tensor.sum send."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return (3 * g.view(-1)).view(g.shape)  # expect: PB406

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class StrideBlindForward(Function):
    """forward reads its argument's memory in order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * memory_of(x.detach())  # expect: PB407

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class TellsApartByIdentity(Function):
    """A square is recognised by identity, and only one of its two halves gets a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        distinct = {id(t): t for t in (x, y)}
        ctx.save_for_backward(*distinct.values())
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
        saved = ctx.saved_tensors
        return g * saved[-1], g * saved[0] if len(saved) == 2 else None  # expect: PB408

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), leaf(3)
