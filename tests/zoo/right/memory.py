"""Right Functions that keep, cache and draw at random: a finding about one of them is a false alarm."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class SavedMask(Function):
    """The bool mask doesn't vary with x: nothing of the second derivative is lost with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = x > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class SavesItsOutput(Function):
    """An output that was saved is connected to the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g * y

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class Dropout(Function):
    """Two calls differ, as they should: the draws are the generator's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        kept = torch.rand_like(x) >= p
        ctx.save_for_backward(kept)
        ctx.scale = 1 / (1 - p)
        return x * kept * ctx.scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return g * kept * ctx.scale, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(6), 0.4


class InPlaceOnAClone(Function):
    """Writes, but to a tensor of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone().mul_(2).add_(1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        gx = g.clone()
        gx.mul_(2)
        return gx

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


_ramps: dict[tuple[int, torch.dtype], Tensor] = {}


class CachedConstant(Function):
    """The cache is keyed by all that its constant depends on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        key = (x.numel(), x.dtype)
        if key not in _ramps:
            _ramps[key] = torch.arange(x.numel(), dtype=x.dtype)
        ctx.ramp = _ramps[key].view(x.shape)
        return x * ctx.ramp

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        ramp: Tensor = ctx.ramp
        return g * ramp

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


WEIGHTS = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)


class GlobalBuffer(Function):
    """The global is a buffer: it requires no grad, and is never written to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * WEIGHTS

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * WEIGHTS

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class SavesForOneOfTwo(Function):
    """w is read only while x needs a gradient, x only while w does: neither is saved in vain."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        gx = g * w if ctx.needs_input_grad[0] else None
        gw = g * x if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), leaf(3).detach()
        yield leaf(3).detach(), leaf(3)


class SavesForItsShape(Function):
    """Only the size of the saved tensor is read: the tensor is an empty one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.expand(ctx.shape)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2, 3),)


class CountsForStatistics(Function):
    """Counts its calls, and the count touches no result."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        CountsForStatistics.calls += 1
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class DropoutLikeItsArgument(Function):
    """The mask is drawn in memory order, so a transposed argument of the same values gets another one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kept = torch.rand_like(x) < 0.5
        ctx.save_for_backward(kept)
        return torch.where(kept, 2 * x, 0.0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        return torch.where(kept, 2 * g, 0.0)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3, 4),)


class RunningMean(Function):
    """Centres a batch, and updates a buffer that no result depends on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, running: Tensor) -> Tensor:
        mean = x.mean(0)
        running.mul_(0.9).add_(0.1 * mean)
        return x - mean

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g - g.mean(0), None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(4, 3), torch.zeros(3, dtype=torch.float64)
