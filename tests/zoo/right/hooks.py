"""Right Functions that look at a saved tensor's memory or identity, and do without where it is a copy."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class SavesTransposed(Function):
    """Whatever its strides are, reshape copes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0.5
        ctx.save_for_backward(mask.t())
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (transposed,) = ctx.saved_tensors
        return g * transposed.t().reshape(-1).view(g.shape)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class KnowsItOrAsksAgain(Function):
    """The same object is a shortcut; for a copy the count is taken again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0.5
        ctx.save_for_backward(mask)
        ctx.known, ctx.count = id(mask), int(mask.sum())
        return x * mask / ctx.count

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        count = ctx.count if id(mask) == ctx.known else int(mask.sum())
        return g * mask / count

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (torch.tensor([0.25, 0.75, 1.0], dtype=torch.float64, requires_grad=True),)


class ReadsItsMemoryInOrder(Function):
    """As a kernel does, with strides of its own making."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0.5
        ctx.save_for_backward(mask.t())
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        mask = ctx.saved_tensors[0].t().contiguous()
        return g * torch.empty(0, dtype=mask.dtype).set_(mask.untyped_storage()).view(g.shape)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)
