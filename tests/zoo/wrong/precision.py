"""Gradients that lose digits, intent or their reference: one defect a class."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class SinglePrecisionDetour(Function):
    """backward multiplies in float32 and hands the result back as float64: half of the digits are gone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (2 * x.float() * g.float()).to(x.dtype)  # expect: PB214

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(5),)


class GradientInSinglePrecision(Function):
    """A float64 argument gets a float32 gradient, which the engine casts in silence."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 4

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return (g * 4).to(torch.float32)  # expect: PB215

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(5),)


class SilentStraightThrough(Function):
    """Rounding with the identity's gradient; no surrogate says that it is meant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone()  # expect: PB216

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class OffFromReference(Function):
    """The kernel adds a small constant that its reference doesn't have; the derivative is the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin() + 1e-3  # expect: PB219

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class WorksForNobody(Function):
    """Both products are computed, whoever asked: two matrix products where one may be due."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        g = g.to(w.dtype)  # under autocast it comes in bfloat16
        return g @ w.t(), x.t() @ g  # expect: PB601

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3, 2)


class CosineInSingle(Function):
    """One factor is computed in float32: the gradient has an error in the eighth digit."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.float().cos().to(x.dtype)  # expect: PB214

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(5),)


class GradientInDoublePrecision(Function):
    """A float32 argument gets a float64 gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 4

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return (g * 4).double()  # expect: PB215

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(5).detach().float().requires_grad_(),)
