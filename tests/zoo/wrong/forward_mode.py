"""Wrong in forward mode only: backward is right, and the jvp beside it isn't."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class _Product(Function):
    """gain · x · w, whose jvp is left to each inhabitant."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, gain: float) -> Tensor:
        return gain * x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, ctx.gain = inputs
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, w = ctx.saved_tensors
        gx = ctx.gain * g * w if ctx.needs_input_grad[0] else None
        gw = ctx.gain * g * x if ctx.needs_input_grad[1] else None
        return gx, gw, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), leaf(3), 2.5


class JvpForgetsTheGain(_Product):
    """The factor that isn't a tensor is missing from the second term of jvp."""

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, tw: Tensor, _: None) -> Tensor:
        x, w = ctx.saved_tensors
        return ctx.gain * tx * w + x * tw  # expect: PB507


class JvpIgnoresTheWeights(_Product):
    """Nobody thought that w may move."""

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, tw: Tensor, _: None) -> Tensor:
        _, w = ctx.saved_tensors
        return ctx.gain * tx * w  # expect: PB507


class JvpTakesNoNone(_Product):
    """set_materialize_grads(False) also makes the tangent of an argument that doesn't move None."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _Product.setup_context(ctx, inputs, output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        return (None, None, None) if g is None else _Product.backward(ctx, g)

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, tw: Tensor, _: None) -> Tensor:
        x, w = ctx.saved_tensors
        return ctx.gain * (tx * w + x * tw)  # expect: PB508


class JvpOfOneOutputOnly(Function):
    """The second output moves too, and jvp says that it doesn't."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.cos() - h * x.sin()

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return t * x.cos(), torch.zeros_like(t)  # expect: PB507

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class JvpReturnsNoneForAnOutput(JvpOfOneOutputOnly):
    """PyTorch takes None for non-differentiable outputs alone; here it ends in an internal assertion."""

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return t * x.cos(), None  # expect: PB508


class JvpOfTheTransposed(Function):
    """jvp multiplies by the transposed matrix, which is backward's part; the matrix is square, so nothing raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        ctx.save_for_forward(matrix)
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (matrix,) = ctx.saved_tensors
        return matrix.t() @ g.to(matrix.dtype), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Tensor:
        (matrix,) = ctx.saved_tensors
        product: Tensor = matrix.t() @ t  # expect: PB507
        return product

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), torch.arange(9.0, dtype=torch.float64).view(3, 3)
