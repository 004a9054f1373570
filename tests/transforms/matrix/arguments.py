"""Kinds that differ in what is passed: tensors without derivative, flags, keywords, random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import Draw
from tests.transforms.matrix.kind import Kinds, floats

KINDS = Kinds()


@KINDS.kind(lambda w, i: w.index_select(0, i) ** 2, lambda draw: (draw.constant(4, 2), torch.tensor([2, 0, 2])))
def integer_argument() -> Any:
    """Look rows up by index."""

    class Embedding(pullback.Function):
        @staticmethod
        def forward(ctx: Any, w: Tensor, i: Tensor) -> Tensor:
            ctx.save_for_backward(w, i)
            return w[i] ** 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            w, i = ctx.saved_tensors
            return torch.zeros_like(w).index_add(0, i, 2 * w[i] * g), None

    return Embedding


@KINDS.kind(
    lambda x, mask: torch.where(mask, x**3, 0.5 * x),
    lambda draw: (draw.constant(3), torch.tensor([True, False, True])),
)
def bool_argument() -> Any:
    """Take a mask."""

    class Masked(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
            ctx.save_for_backward(x, mask)
            return torch.where(mask, x**3, 0.5 * x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            x, mask = ctx.saved_tensors
            return g * torch.where(mask, 3 * x * x, 0.5), None

    return Masked


def _affine(x: Tensor, scale: float = 1.5, bias: Tensor | None = None, mode: str = "sin") -> Tensor:
    y = (scale * x).sin() if mode == "sin" else (scale * x).exp()
    return y if bias is None else y * bias


def affine() -> Any:
    """Make the class of a tensor, a number, perhaps a tensor, and a word."""

    class Affine(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, scale: float = 1.5, bias: Tensor | None = None, mode: str = "sin") -> Tensor:
            ctx.save_for_backward(x, bias)
            ctx.scale, ctx.mode = scale, mode
            return _affine(x, scale, bias, mode)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            x, bias = ctx.saved_tensors
            inner = ctx.scale * x
            y, slope = (inner.sin(), inner.cos()) if ctx.mode == "sin" else (inner.exp(), inner.exp())
            into = g if bias is None else g * bias
            return into * slope * ctx.scale, None, None if bias is None else g * y, None

    return Affine


@KINDS.kind(_affine, lambda draw: (draw.constant(3), 0.7, None, "exp"))
def flags() -> Any:
    """Pass a number, None and a word."""
    return affine()


@KINDS.kind(_affine, lambda draw: (draw.constant(3), 0.7, draw.constant(3), "sin"))
def optional_tensor() -> Any:
    """Pass a tensor where None may stand."""
    return affine()


@KINDS.kind(_affine, floats((3,), (3,)), use=lambda f, x, b: f(x, bias=b) + f(x=b, mode="exp"))
def keywords() -> Any:
    """Pass arguments by name, and leave some to their defaults."""
    return affine()


@KINDS.kind(lambda x, scale: (x * scale).sin(), floats((3,)), use=lambda f, x: f(x, scale=2.0))
def keywords_setup() -> Any:
    """Pass an argument by name in setup_context style."""

    class ScaledSin(pullback.Function):
        @staticmethod
        def forward(x: Tensor, scale: float) -> Tensor:
            return (x * scale).sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            x, ctx.scale = inputs
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g * (ctx.saved_tensors[0] * ctx.scale).cos() * ctx.scale, None

    return ScaledSin


@KINDS.kind(lambda x, w, b: (x @ w + b).square(), floats((2, 3), (3, 2), (2,)))
def matrices() -> Any:
    """Multiply matrices and add a bias that is broadcast; its gradient is left for the engine to sum."""

    class LinearSquare(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            h = x @ w + b
            ctx.save_for_backward(x, w, b, h)
            return h * h

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
            x, w, _, h = ctx.saved_tensors
            k = 2 * g * h
            return k @ w.mT, x.mT @ k, k

    return LinearSquare


@KINDS.kind(torch.mul, floats((2, 3), (3,)))
def broadcast() -> Any:
    """Broadcast an argument, and leave the sum over what was broadcast to the engine."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, c: Tensor) -> Tensor:
            ctx.save_for_backward(x, c)
            return x * c

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, c = ctx.saved_tensors
            return g * c, g * x

    return Product


@KINDS.kind(torch.mul, floats((3,), ()))
def broadcast_scalar() -> Any:
    """Broadcast a scalar, and sum its gradient."""

    class Scaled(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, c: Tensor) -> Tensor:
            ctx.save_for_backward(x, c)
            return x * c

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, c = ctx.saved_tensors
            return g * c, (g * x).sum()

    return Scaled


@KINDS.kind(lambda x, y: x.exp() * y, floats((3,), (3,)))
def guarded() -> Any:
    """Save and compute only for the arguments that need a gradient."""

    class ExpTimes(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            e = x.exp()
            ctx.save_for_backward(x, y if ctx.needs_input_grad[0] else None, e)
            return e * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            _, y, e = ctx.saved_tensors
            return g * e * y if ctx.needs_input_grad[0] else None, g * e if ctx.needs_input_grad[1] else None

    return ExpTimes


@KINDS.kind(lambda x, unused: x.sin() + torch.zeros_like(unused), floats((3,), (3,)))
def nothing_depends_on_it() -> Any:
    """Return None for an argument that the output doesn't depend on."""

    class SinBeside(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, unused: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g * ctx.saved_tensors[0].cos(), None

    return SinBeside


@KINDS.kind(lambda x, base: (x * base.detach()).exp(), floats((3,), (3,)))
def nondiff_argument() -> Any:
    """Take a tensor that is declared never to get a gradient."""

    class ExpOf(pullback.Function):
        nondiff_argnames = ("base",)

        @staticmethod
        def forward(ctx: Any, x: Tensor, base: Tensor) -> Tensor:
            y = (x * base).exp()
            ctx.save_for_backward(base, y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            base, y = ctx.saved_tensors
            return g * base * y, None

    return ExpOf


@KINDS.kind(lambda x, y: x / y, floats((3,), (3,)), frozen=(1,))
def constant_argument() -> Any:
    """Take an argument that no derivative is asked for, though it has one."""

    class Quotient(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            q = x / y
            ctx.save_for_backward(y, q)
            return q

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            y, q = ctx.saved_tensors
            return g / y, -g * q / y

    return Quotient


@KINDS.kind(torch.mul, floats((3,)), use=lambda f, x: f(x, x))
def same_tensor_twice() -> Any:
    """Pass one tensor as both arguments."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return g * y, g * x

    return Product


def _noisy(x: Tensor) -> Tensor:
    return (x * torch.randn_like(x)).sin()


def _dropped(x: Tensor, rate: float) -> Tensor:
    return x**2 * (torch.rand_like(x) >= rate).to(x) / (1 - rate)


def dropout() -> Any:
    """Make the class of dropout on squares, with its mask saved."""

    class Dropout(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
            mask = (torch.rand_like(x) >= rate).to(x) / (1 - rate)
            ctx.save_for_backward(x, mask)
            return x**2 * mask

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            x, mask = ctx.saved_tensors
            return 2 * x * g * mask, None

    return Dropout


def _a_few(draw: Draw) -> tuple[Tensor, float]:
    return draw.constant(5), 0.4


@KINDS.kind(_dropped, _a_few, randomness="different")
def random_different() -> Any:
    """Draw a mask anew for each entry of a batch."""
    return dropout()


@KINDS.kind(_dropped, _a_few, randomness="same")
def random_same() -> Any:
    """Draw one mask for all entries of a batch."""
    return dropout()


@KINDS.kind(_noisy, floats((3,)), randomness="different")
def random_intermediate() -> Any:
    """Save an intermediate of the argument and of random numbers."""

    class NoisySin(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            noise = torch.randn_like(x)
            inner = x * noise
            ctx.save_for_backward(x, noise, inner)
            return inner.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            _, noise, inner = ctx.saved_tensors
            return g * inner.cos() * noise

    return NoisySin
