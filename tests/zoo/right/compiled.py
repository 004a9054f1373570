"""Right Functions that do in Python what a compiler may trip over: a finding about one of them is a false alarm."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


_log: list[tuple[int, ...]] = []


class KeepsALog(Function):
    """The log is beside the point."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _log.append(tuple(x.shape))
        del _log[:-3]
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class BranchesOnValues(Function):
    """A compiler can't follow; it runs this as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.negative = bool(x.sum() < 0)
        return -x if ctx.negative else 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -g if ctx.negative else 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class HelpsTheCompiler(Function):
    """Another road to the same numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x if torch.compiler.is_compiling() else x.square()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * g * x

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class CountsOnCtx(Function):
    """What backward leaves on ctx, it reads only in the same run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Tensor:
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        ctx.product = ctx.k
        return g * ctx.product, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), 3
