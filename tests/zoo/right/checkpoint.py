"""Right Functions whose second run in a checkpoint looks as if it might differ, and doesn't."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class SeedsItsOwnGenerator(Function):
    """A generator of its own, seeded from torch's: a checkpoint repeats it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        kept = torch.rand(x.shape, generator=generator) < 0.5
        ctx.save_for_backward(kept)
        return x * kept * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        return g * kept * 2

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class CountsItsRuns(Function):
    """The count of calls is a statistic, and goes nowhere."""

    runs = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        CountsItsRuns.runs += 1
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * g * x

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class SavesWhatIsNeeded(Function):
    """How much is saved depends on who requires grad, in both runs alike."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        need_x, need_w = ctx.needs_input_grad
        ctx.save_for_backward(*[t for t, needed in ((w, need_x), (x, need_w)) if needed])
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        saved = list(ctx.saved_tensors)
        need_x, need_w = ctx.needs_input_grad
        gx = g * saved.pop(0) if need_x else None
        gw = g * saved.pop(0) if need_w else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2), leaf(2)


class ReadsOnceAndKeeps(Function):
    """Read once, used often."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        saved = ctx.saved_tensors
        return 3 * g * saved[0] * saved[0]

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
