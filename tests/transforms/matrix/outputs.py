"""Kinds that differ in what forward returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import Draw
from tests.transforms.matrix.kind import Kinds, floats
from tests.transforms.operations import intermediate_with_setup_context

KINDS = Kinds()


def sin_and_product() -> Any:
    """Make the class of two outputs, with intermediates saved."""

    class SinAndProduct(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            s, c = x.sin(), x.cos()
            ctx.save_for_backward(x, y, s, c)
            return s * y, c.sum(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            _, y, s, c = ctx.saved_tensors
            return g * c * y - h.unsqueeze(-1) * s, g * s

    return SinAndProduct


def _sin_and_product(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin() * y, x.cos().sum(-1)


@KINDS.kind(_sin_and_product, floats((3,), (3,)))
def two_outputs() -> Any:
    """Return two outputs of different shapes."""
    return sin_and_product()


@KINDS.kind(_sin_and_product, floats((3,), (3,)), use=lambda f, x, y: f(x, y)[1])
def one_output_unused() -> Any:
    """Leave the first of two outputs unused."""
    return sin_and_product()


@KINDS.kind(_sin_and_product, floats((3,), (3,)), use=lambda f, x, y: f(x, y)[0] * f(y, x)[0])
def called_twice() -> Any:
    """Call the Function twice, with the arguments exchanged."""
    return sin_and_product()


@KINDS.kind(lambda x: (x.sin(), x * x), floats((3,)), use=lambda f, x: f(x)[1])
def materialize_off() -> Any:
    """Take None for an unused output's gradient."""

    class SinAndSquare(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x)
            return x.sin(), x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Tensor | None:
            (x,) = ctx.saved_tensors
            parts = [] if g is None else [g * x.cos()]
            parts += [] if h is None else [2 * x * h]
            return sum(parts[1:], parts[0]) if parts else None

    return SinAndSquare


@KINDS.kind(lambda x: tuple(x.sort(-1)), floats((2, 3)))
def integer_output() -> Any:
    """Return indices too, marked as non-differentiable."""

    class Sort(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            values, indices = x.sort(-1)
            ctx.mark_non_differentiable(indices)
            ctx.save_for_backward(indices)
            return values, indices

        @staticmethod
        def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
            (indices,) = ctx.saved_tensors
            return torch.zeros_like(g).scatter(-1, indices, g)

    return Sort


@KINDS.kind(lambda x: tuple(x.square().sort(-1)), floats((3,)))
def integer_output_setup() -> Any:
    """Do the same in setup_context style."""

    class SortSquares(pullback.Function):
        @staticmethod
        def forward(x: Tensor) -> tuple[Tensor, Tensor]:
            values, indices = (x * x).sort(-1)
            return values, indices

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(inputs[0], output[1])

        @staticmethod
        def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
            x, indices = ctx.saved_tensors
            return 2 * x * torch.zeros_like(g).scatter(-1, indices, g)

    return SortSquares


@KINDS.kind(lambda x: (x.tanh(), (1 - x.tanh() ** 2).detach()), floats((3,)))
def float_output_without_gradient() -> Any:
    """Return a float output that is marked as non-differentiable, and save it."""

    class TanhAndSlope(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.tanh()
            slope = 1 - y * y
            ctx.mark_non_differentiable(slope)
            ctx.save_for_backward(x, slope)
            return y, slope

        @staticmethod
        def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

    return TanhAndSlope


@KINDS.kind(lambda x: (x.tanh(), (1 - x.tanh() ** 2).detach()), floats((3,)))
def float_output_without_gradient_setup() -> Any:
    """Do the same in setup_context style: PyTorch's own recipe for saving an intermediate under torch.func."""
    return intermediate_with_setup_context()


@KINDS.kind(lambda x: (x.exp(), x > 0.8), floats((3,)))
def bool_output() -> Any:
    """Return a mask beside the output that is saved."""

    class ExpAndMask(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y, mask = x.exp(), x > 0.8
            ctx.mark_non_differentiable(mask)
            ctx.save_for_backward(y)
            return y, mask

        @staticmethod
        def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return ExpAndMask


@KINDS.kind(lambda x: x.exp().sum().log(), floats((2, 3)))
def reduction() -> Any:
    """Reduce to a scalar, saving the softmax."""

    class LogSumExp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            total = x.exp().sum()
            ctx.save_for_backward(x, x.exp() / total)
            return total.log()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

    return LogSumExp


@KINDS.kind(lambda x: x.mT, floats((2, 3)), use=lambda f, x: f(x).sin())
def view_returned() -> Any:
    """Return a view of the argument."""

    class Transpose(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.mT

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.mT

    return Transpose


@KINDS.kind(lambda x, y: (x, x * y), floats((3,), (3,)))
def argument_returned() -> Any:
    """Return the argument itself as one of two outputs."""

    class Beside(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            ctx.save_for_backward(x, y)
            return x, x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return g + h * y, h * x

    return Beside


@KINDS.kind(lambda x: (None, x * x), floats((3,)), use=lambda f, x: f(x)[1])
def none_output() -> Any:
    """Return None beside a tensor."""

    class NoneAndSquare(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[None, Tensor]:
            ctx.save_for_backward(x)
            return None, x * x

        @staticmethod
        def backward(ctx: Any, _: None, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    return NoneAndSquare


def _around(draw: Draw) -> tuple[Tensor]:
    return (draw.constant(4) * torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64),)


@KINDS.kind(lambda x: x.index_select(0, (x > 0).nonzero(as_tuple=True)[0]) ** 2, _around, shape_by_data=True)
def shape_by_data() -> Any:
    """Return as many elements as the values ask for."""

    class PositiveSquares(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            (where,) = (x > 0).nonzero(as_tuple=True)
            ctx.save_for_backward(x, where)
            return x[where] ** 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, where = ctx.saved_tensors
            return torch.zeros_like(x).index_put((where,), 2 * x[where] * g)

    return PositiveSquares
