"""What needs more of a saved tensor than its values: one defect a class."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class ByIdentity(Function):
    """Takes another object for another call's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0.5
        ctx.save_for_backward(mask)
        ctx.expected = id(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask if id(mask) == ctx.expected else torch.zeros_like(g)  # expect: PB519

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class ByAddress(Function):
    """A kernel's handle is kept under the address of the mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0.5
        ctx.save_for_backward(mask)
        ctx.handles = {mask.data_ptr(): 2.0}
        return 2 * x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask * ctx.handles[mask.data_ptr()]  # expect: PB519

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class NoteOnTheTensor(Function):
    """A Python attribute of a tensor is lost with the object."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0.5
        mask.scale = 2.0
        ctx.save_for_backward(mask)
        return 2 * x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask * mask.scale  # expect: PB519

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class TransposedMemory(Function):
    """What was transposed when it was saved is contiguous when it comes back from the CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = (x > 0.5).contiguous()
        ctx.save_for_backward(mask.t())
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (transposed,) = ctx.saved_tensors
        return g * transposed.t().view(-1).view(g.shape)  # expect: PB519

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class WholeFromAColumn(Function):
    """A column was saved, and the memory around it is read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0.5
        ctx.save_for_backward(mask[:, 0])
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (column,) = ctx.saved_tensors
        return g * column.as_strided(g.shape, (g.shape[1], 1))  # expect: PB519

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class ByVersion(Function):
    """A copy has been written to less often."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = torch.empty_like(x, dtype=torch.bool).copy_(x > 0.5)
        ctx.save_for_backward(mask)
        ctx.version = mask._version
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        if mask._version != ctx.version:  # expect: PB519
            raise RuntimeError("the mask was changed")
        return g * mask

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
