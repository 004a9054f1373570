"""What isn't the same when forward runs a second time, as in a checkpoint: one defect a class."""

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class ReadsSavedTwice(Function):
    """A checkpoint hands out each saved tensor once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gx = g * ctx.saved_tensors[1] if ctx.needs_input_grad[0] else None
        gw = g * ctx.saved_tensors[0] if ctx.needs_input_grad[1] else None  # expect: PB518
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2), leaf(2)


class SavesByTurns(Function):
    """Every second call keeps its mask in another dtype, and the second run of a checkpoint is the other one."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        SavesByTurns.calls += 1
        mask = x > 0.5
        ctx.save_for_backward(mask.to(torch.uint8) if SavesByTurns.calls % 2 else mask)  # expect: PB518
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class SwapsByTurns(Function):
    """ctx says of the first run what the second one saved the other way round: a wrong gradient, in silence."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        SwapsByTurns.calls += 1
        ctx.swapped = bool(SwapsByTurns.calls % 2)
        kept, dropped = x > 0.6, x <= 0.6
        ctx.save_for_backward(*((dropped, kept) if ctx.swapped else (kept, dropped)))  # expect: PB518
        return x * kept - x * dropped

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        kept, dropped = reversed(ctx.saved_tensors) if ctx.swapped else ctx.saved_tensors
        return g * kept - g * dropped

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class Scrambled(Function):
    """The key comes from Python's generator, which a checkpoint doesn't put back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shift = random.randrange(x.numel())
        ctx.save_for_backward((x > 0.6).roll(ctx.shift))  # expect: PB518
        return x * (x > 0.6)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask.roll(-ctx.shift)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(8),)


class NumpyDropout(Function):
    """What is dropped the second time is something else: the gradient is that of another call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kept = torch.from_numpy(numpy.random.rand(*x.shape) < 0.5)
        ctx.save_for_backward(kept)  # expect: PB518
        return x * kept * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        return g * kept * 2

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(8),)
