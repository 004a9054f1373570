"""F3, F12: a gradient, a tangent or a batch of another shape than is due is refused, naming class and argument."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import GradientError, TransformError
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import assert_as_plain, assert_refused


class LongGradient(pullback.Function):
    """Returns a gradient that is too long."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(first, second)
        return first * second

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        """The second one is wrong."""
        first, second = ctx.saved_tensors
        return g * second, torch.cat([g, g]) * torch.cat([first, first])


class ShortTangent(pullback.Function):
    """Returns a tangent that is too short."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two outputs."""
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        """The derivative."""
        return 2 * one + 3 * other

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> tuple[Tensor, Tensor]:
        """The second one is wrong."""
        return 2 * t, 3 * t[:2]


REVERSE = ("grad", "vjp", "jacrev", "vmap of grad", "grad of vmap", "grad of grad", "jvp of grad")
FORWARD = ("jvp", "jacfwd", "dual", "vmap of jvp", "jvp of vmap", "grad of jvp")


def test_gradient(draw: Draw) -> None:
    """PB213 names class, method and argument, and both shapes, in either mode and in batches."""
    x, other = draw.constant(3), draw.constant(3)
    says = ["LongGradient.backward", "for second", "shape (3,)", "shape (6,)"]
    assert_refused(lambda x: LongGradient.apply(other, x), x, "PB213", says, REVERSE + FORWARD, GradientError)


def test_an_argument_without_a_gradient(draw: Draw) -> None:
    """What is wrong with a gradient that nobody asks for doesn't matter."""
    x, other = draw.constant(3), draw.constant(3)
    compositions = ["grad", "jvp", "vmap of grad", "grad of vmap"]
    assert_as_plain(lambda x: LongGradient.apply(x, other), lambda x: x * other, x, compositions)


def test_tangent(draw: Draw) -> None:
    """PB213 names class, jvp and output, and both shapes."""
    says = ["ShortTangent.jvp", "output 1", "shape (3,)", "shape (2,)", "Return a tangent of the output's shape."]
    assert_refused(lambda x: ShortTangent.apply(x)[0], draw.constant(3), "PB213", says, FORWARD, GradientError)


def test_a_gradient_that_can_be_summed(draw: Draw) -> None:
    """What PyTorch sums to the argument's shape is summed under transforms, too."""

    class Scaled(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
            ctx.save_for_backward(x, scale)
            return x * scale

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, scale = ctx.saved_tensors
            return g * scale, g * x

    other = draw.constant(2, 3)
    assert_as_plain(lambda x: Scaled.apply(other, x.sin()), lambda x: other * x.sin(), draw.constant(3))


def batched(returned: Any) -> Any:
    """Make a Function whose vmap returns what `returned` makes of the outputs, with their batch in front."""

    class Pair(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.save_for_backward(x)
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx: Any, sin: Tensor, cos: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return sin * x.cos() - cos * x.sin()

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> Any:
            return returned(*Pair.apply(x.movedim(in_dims[0], 0)))

    return Pair


WRONG: dict[str, tuple[Any, str]] = {
    "one dimension for two": (lambda one, other: ((one, other), (0,)), "2 outputs, and 1 dimensions"),
    "three dimensions for two": (lambda one, other: ((one, other), (0, 0, 0)), "2 outputs, and 3 dimensions"),
    "out of range": (lambda one, other: ((one, other), (5, 0)), "dimension 5"),
    "below the range": (lambda one, other: ((one, other), (0, -3)), "dimension -3"),
    "not a number": (lambda one, other: ((one, other), ("0", 0)), "dimension '0'"),
    "wrong size": (lambda one, other: ((one[:1], other), (0, 0)), "1 entries along dimension 0"),
    "another dimension": (lambda one, other: ((one, other), (1, 0)), "3 entries along dimension 1"),
    "no dimensions": (lambda one, other: one, "Tensor"),
    "three things": (lambda one, other: (one, other, 0), "tuple of 3"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_batch(kind: str, draw: Draw) -> None:
    """PB509 names the class and what its vmap returned, around a derivative and inside of one."""
    make, got = WRONG[kind]
    pair = batched(make)
    compositions = ["vmap", "vmap of grad", "grad of vmap", "vmap of jvp"]
    assert_refused(
        lambda x: pair.apply(x)[0], draw.constant(3), "PB509", ["Pair.vmap", got], compositions, TransformError
    )


RIGHT: dict[str, Any] = {
    "tuples": lambda one, other: ((one, other), (0, 0)),
    "a list of dimensions": lambda one, other: ((one, other), [0, 0]),
    "one for all": lambda one, other: ((one, other), 0),
    "others": lambda one, other: ((one.movedim(0, 1), other.movedim(0, -1)), (1, -1)),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_batches_that_are_right(kind: str, draw: Draw) -> None:
    """Each way to say where the batch is gives the numbers of a loop, with their derivatives."""
    pair = batched(RIGHT[kind])

    def both(function: Any) -> Any:
        return lambda x: torch.stack(function(x)).prod(0)

    compositions = ["vmap", "vmap of grad", "grad of vmap", "vmap of jvp", "jvp of vmap", "vmap of vmap", "jacrev"]
    assert_as_plain(both(pair.apply), both(lambda x: (x.sin(), x.cos())), draw.constant(3), compositions)
