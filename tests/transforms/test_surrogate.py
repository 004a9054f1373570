"""F11: a surrogate is the function whose derivative backward implements: higher orders follow it, and not forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError
from tests.transforms.derivatives import Draw, assert_exact, penalty
from tests.transforms.situations import Situation, each_situation, outcome


class Value(torch.autograd.Function):
    """The formula of a surrogate gradient: the value of one tensor, the derivative of another."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, traced: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        return None, g


def valued(value: Callable[..., Tensor], surrogate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the formula with the values of one function and the derivatives of another."""

    def formula(*arguments: Any) -> Tensor:
        result: Tensor = Value.apply(value(*arguments).detach(), surrogate(*arguments))
        return result

    return formula


class StraightThrough(pullback.Function):
    """Rounds; its gradient is that of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone()

    @staticmethod
    def surrogate(x: Tensor) -> Tensor:
        return x


class Reversed(pullback.Function):
    """The identity; its gradient is reversed and scaled by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float = 0.5) -> Tensor:
        ctx.scale = scale
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * g, None

    @staticmethod
    def surrogate(x: Tensor, scale: float = 0.5) -> Tensor:
        return -scale * x


class Spike(pullback.Function):
    """A step; its gradient is that of a smooth one, computed where autograd can't follow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0.8).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        s = 1 / (1 + np.exp(-ctx.saved_tensors[0].detach().numpy()))
        return torch.from_numpy(np.asarray(g.detach().numpy() * s * (1 - s)))

    @staticmethod
    def surrogate(x: Tensor) -> Tensor:
        return x.sigmoid()


class Multiplied(pullback.Function):
    """Rounds a product of two arguments; both gradients are straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return (x * w).round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g * w, g * x

    @staticmethod
    def surrogate(x: Tensor, w: Tensor) -> Tensor:
        return x * w


CASES: dict[str, tuple[Any, Callable[..., Tensor], Callable[..., Tensor], int]] = {
    "straight_through": (StraightThrough, torch.round, lambda x: x, 1),
    "reversal": (Reversed, lambda x: x, lambda x: -0.5 * x, 1),
    "spike": (Spike, lambda x: (x > 0.8).to(x.dtype), torch.sigmoid, 1),
    "two_arguments": (Multiplied, lambda x, w: (x * w).round(), torch.mul, 2),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_every_order_follows_the_surrogate(case: Any, draw: Draw) -> None:
    """F11: values are forward's, and derivatives of every order the surrogate's."""
    written, value, surrogate, count = case
    function = type(written.__name__, (written,), {})
    assert_exact(function.apply, valued(value, surrogate), [draw.leaf(5) for _ in range(count)], order=4)


@each_situation
@pytest.mark.parametrize("name", ["straight_through", "reversal", "spike"])
def test_in_every_situation(name: str, situation: Situation, draw: Draw) -> None:
    """F11: exact in each; a surrogate that is linear needs nothing saved where its argument is out of reach."""
    written, value, surrogate, _ = CASES[name]
    function = type(written.__name__, (written,), {})

    class Curved:
        """The operation among others, so that there is a second derivative to ask for."""

        __name__ = written.__name__

        @staticmethod
        def apply(x: Tensor) -> Tensor:
            return function.apply(x.sin()) ** 2 * x

    formula = valued(value, surrogate)
    assert outcome(situation, Curved, lambda x: formula(x.sin()) ** 2 * x, draw) == "exact"


@pytest.mark.parametrize("scale", [2.0, -1.0])
def test_numbers_reach_the_surrogate(scale: float, draw: Draw) -> None:
    """F11: the surrogate is run with the numbers that forward was given, call by call."""
    function = type("Reversed", (Reversed,), {})
    formula = valued(lambda x: x, lambda x: -scale * x)
    assert_exact(lambda x: function.apply(x, scale), formula, [draw.leaf(3)])
    assert_exact(lambda x: function.apply(x**2, scale), lambda x: formula(x**2), [draw.leaf(3)])


def test_double_backward_comes_first(draw: Draw) -> None:
    """F7, F11: where both are given, double_backward is asked, and the surrogate is not run."""

    class Both(Spike):
        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Tensor:
            s = ctx.saved_tensors[0].sigmoid()
            return s * (1 - s) * (1 - 2 * s) * gg

        @staticmethod
        def surrogate(x: Tensor) -> Tensor:
            raise AssertionError("the surrogate was run")

    formula = valued(lambda x: (x > 0.8).to(x.dtype), torch.sigmoid)
    assert_exact(Both.apply, formula, [draw.leaf(3)], order=4)


def test_the_surrogate_comes_before_the_reference(draw: Draw) -> None:
    """F11: the reference says what forward computes; the derivative is the surrogate's."""

    class Both(StraightThrough):
        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return torch.round(x)

    assert_exact(Both.apply, valued(torch.round, lambda x: x), [draw.leaf(3)], order=2)


def test_errors_speak_of_the_surrogate(draw: Draw) -> None:
    """F11: what is wrong with a surrogate is said of the surrogate."""

    class Detached(StraightThrough):
        @staticmethod
        def surrogate(x: Tensor) -> Tensor:
            return x.detach()

    x = draw.leaf(3)
    with pytest.raises(HigherOrderError, match=r"PB207 .*the surrogate doesn't depend on x, as far as autograd"):
        torch.autograd.grad(penalty(Detached.apply(x) + x**3, x), x)

    class Unsaved(Spike):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = x.detach().numpy()
            return (x > 0.8).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            s = 1 / (1 + np.exp(-ctx.kept))
            return torch.from_numpy(np.asarray(g.detach().numpy() * s * (1 - s)))

    inner = draw.inner(3)
    with pytest.raises(HigherOrderError, match=r"PB207 .*the surrogate can't be run, as x was not saved"):
        penalty(Unsaved.apply(inner), inner)
