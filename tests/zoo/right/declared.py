"""Right because their authors said what they mean: a finding about one of them scolds a declaration."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class StraightThrough(Function):
    """Rounding with the identity's gradient, declared by a surrogate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone()

    @staticmethod
    def surrogate(x: Tensor) -> Tensor:
        return x

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class Reversed(Function):
    """The identity with its gradient turned round, declared."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -g

    @staticmethod
    def surrogate(x: Tensor) -> Tensor:
        return -x

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class DoubledInPlace(Function):
    """An in-place operation, marked dirty and returned."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class OnceOnly(Function):
    """An intermediate is saved, and a second differentiation is refused by declaration."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        grown = (2 * x).exp()
        ctx.save_for_backward(grown)
        return grown.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (grown,) = ctx.saved_tensors
        return 2 * g * grown

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class ClipsDeclared(pullback.Function):
    """Clips its gradient, and says so."""

    nonlinear_backward = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clamp(-0.1, 0.1)

    @staticmethod
    def expected_backward(
        inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], grad_outputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        return (grad_outputs[0].clamp(-0.1, 0.1),)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class FrozenBase(pullback.Function):
    """base never gets a gradient, by declaration."""

    nondiff_argnames = ("base",)

    @staticmethod
    def forward(ctx: Any, x: Tensor, base: Tensor) -> Tensor:
        return 2 * x + base

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return 2 * g, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2), leaf(2)


class CubeTwice(pullback.Function):
    """x³ with the short form of its second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 6 * x * gg

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class ConstantMask(pullback.Function):
    """A float mask, declared a constant, and constant almost everywhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = (x > 0.5).to(x.dtype)
        ctx.save_for_backward(constants=(mask,))
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(4),)


class Quantised(Function):
    """Rounding to a learned step; the surrogate's values are those of round, its derivative isn't."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor) -> Tensor:
        ctx.save_for_backward(x, step)
        return (x / step).round() * step

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, step = ctx.saved_tensors
        q = x / step
        gx = g.clone() if ctx.needs_input_grad[0] else None
        return gx, (g * (q.round() - q)).sum() if ctx.needs_input_grad[1] else None

    @staticmethod
    def surrogate(x: Tensor, step: Tensor) -> Tensor:
        q = x / step
        return ((q.round() - q).detach() + q) * step

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield 3 * leaf(2, 3).detach(), torch.tensor(0.5, dtype=torch.float64)


class SignWithinBounds(Function):
    """The sign with the identity's gradient between -1 and 1: the surrogate detaches what lies beyond."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.abs() <= 1)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (within,) = ctx.saved_tensors
        return g * within

    @staticmethod
    def surrogate(x: Tensor) -> Tensor:
        return torch.where(x.abs() <= 1, x, x.detach())

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (3 * leaf(2, 3).detach() - 2,)


class RandomMaskReplayed(pullback.Function):
    """A random mask in float: how pullback remembers the random state is no affair of the author's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = (torch.rand(x.shape) < 0.5).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
