"""Forwards and backwards that don't come to an end, or come back with what nobody can use: one defect a class."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import pullback


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class NoBackward(Function):
    """Nobody wrote the derivative, and the arguments require grad."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + 1  # expect: PB109

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class RefusesItsOwnSample(Function):
    """The author's sample is a vector, and forward wants a matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise ValueError("x must be a matrix")  # expect: PB122
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class MisspelledInBackward(Function):
    """A slip that only backward runs into."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 2
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        gx: Tensor = ctx.facter * g  # expect: PB125
        return gx

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class UnknownName(pullback.Function):
    """The gradient is returned for an argument that forward doesn't have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> dict[str, Tensor]:
        return {"input": 2 * g}  # expect: PB218

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class UselessDoubleBackward(pullback.Function):
    """Three entries come back where two are due: one for grad_output, one for x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        (g,) = ctx.grad_outputs
        return 2 * x * gg, 2 * g * gg, gg  # expect: PB220

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class TakesOneGradOutput(pullback.Function):
    """Two outputs, and a backward with room for the gradient of one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # expect: PB111
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class BareConstant(pullback.Function):
    """The mask is declared constant, and not in a tuple."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(constants=x > 1)  # expect: PB110
        return x * (x > 1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)
