"""Right to first order, wrong to second: one defect a class."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class SavedIntermediate(Function):
    """sinh by two exponentials: they are constants in backward, and cosh's own derivative is lost."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        up, down = x.exp(), (-x).exp()
        ctx.save_for_backward(up, down)  # expect: PB206
        return (up - down) / 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        up, down = ctx.saved_tensors
        return g * (up + down) / 2

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class IntermediateOnCtx(Function):
    """The same loss by way of an attribute of ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.twice = x + x  # expect: PB206
        return ctx.twice**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.twice * 4

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class OpaqueBackward(Function):
    """backward computes in NumPy, where autograd can't follow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.detach().numpy() * 2 * x.detach().numpy())  # expect: PB207

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


def without_graph(backward: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A decorator of the kind that projects write for their kernels: what comes out carries no graph."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, g: Tensor) -> Tensor:
        return backward(ctx, g).detach()

    return wrapped


class LosesItsGuard(Function):
    """Declared once differentiable, and the decorator around it strips the node that would raise.

    Its kernel knows float32 alone, so that no finite difference can tell the second derivative.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("the kernel takes float32")
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @without_graph
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g  # expect: PB207

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x**2

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2).detach().float().requires_grad_(),)


class WrongDoubleBackward(pullback.Function):
    """The derivative of 3x² is given as 3x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        (g,) = ctx.grad_outputs
        return 3 * x**2 * gg, 3 * x * g * gg  # expect: PB205

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class ShortFormOfASum(pullback.Function):
    """Every output depends on every element, so one returned tensor can't stand for the whole second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.sum() + (g * x).sum()

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> Tensor:
        return 2 * gg  # expect: PB212

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class VaryingConstant(pullback.Function):
    """exp(x) is declared a constant, and isn't one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        grown = x.exp()
        ctx.save_for_backward(constants=(grown,))  # expect: PB217
        return grown * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (grown,) = ctx.saved_tensors
        return 2 * g * grown

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class GradientDespiteDeclaration(pullback.Function):
    """base is declared without a gradient, and gets one."""

    nondiff_argnames = ("base",)

    @staticmethod
    def forward(ctx: Any, x: Tensor, base: Tensor) -> Tensor:
        return x + base

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g.clone(), g.clone()  # expect: PB222

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2), leaf(2)
