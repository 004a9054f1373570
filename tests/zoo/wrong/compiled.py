"""What torch.compile, which runs Python once and on tensors without values, sees otherwise: one defect a class."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class ApproximatesWhenCompiled(Function):
    """The formula for the compiler is another function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        if torch.compiler.is_compiling():  # expect: PB515
            return x - x**3 / 6
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class TellsLeavesApart(Function):
    """Weights are scaled and activations aren't: what another operation gave has another value and gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 3.0 if x.is_leaf else 2.0  # expect: PB504
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.factor

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class AsksTheGraph(Function):
    """While the compiler looks on, ctx has no place in the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g * len(ctx.next_functions)  # expect: PB515

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class AsksForItsName(Function):
    """While the compiler looks on, ctx is of another class."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g if type(ctx).__name__ == "AsksForItsNameBackward" else g  # expect: PB515

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class DemandsANode(Function):
    """The same, asked by isinstance."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 3.0 if isinstance(ctx, BackwardCFunction) else 2.0  # expect: PB515
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.factor

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
