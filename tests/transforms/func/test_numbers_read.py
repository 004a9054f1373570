"""F8, F12: a number that forward read from an argument is a constant to every graph; what depends on it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import TWICE, assert_as_plain, assert_refused

READERS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: [x.sum().tolist()],
    "numpy": lambda x: x.sum().numpy(),
    "float": lambda x: float(x.sum()),
}
each_reader = pytest.mark.parametrize("reader", READERS)
with_jvp = pytest.mark.parametrize("jvp", [False, True], ids=["derived", "own jvp"])

ONE = ("grad", "vjp", "jvp", "jacrev", "jacfwd", "dual", "backward")


def formula(x: Tensor) -> Tensor:
    """x times the sum of x."""
    return x * x.sum()


def number(kept: Any) -> float:
    """The number, in whatever it was kept."""
    return float(kept[0] if isinstance(kept, list) else kept)


def scaled(reader: str, jvp: bool) -> Any:
    """Make a Function that keeps the sum of its argument as a number."""

    class Scaled(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.n = READERS[reader](x)
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x * number(ctx.n)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * number(ctx.n) + (g * ctx.saved_tensors[0]).sum()

    if jvp:
        Scaled.jvp = staticmethod(lambda ctx, t: t * number(ctx.n) + ctx.saved_tensors[0] * t.sum())
    return Scaled


@each_reader
@with_jvp
def test_first_derivatives(reader: str, jvp: bool, draw: Draw) -> None:
    """One derivative, in either mode, is the formula's."""
    assert_as_plain(scaled(reader, jvp).apply, formula, draw.constant(3), ONE)


@each_reader
@with_jvp
def test_second_derivatives_are_refused(reader: str, jvp: bool, draw: Draw) -> None:
    """Two derivatives, in any order of modes, raise PB206, which names class and attribute; torch returns others."""
    says = ["Scaled", "ctx.n", "read from a tensor"]
    assert_refused(scaled(reader, jvp).apply, draw.constant(3), "PB206", says, TWICE, HigherOrderError)


def test_numbers_that_were_given(draw: Draw) -> None:
    """A number among the arguments, or one that stands in the source, is a constant: two derivatives are right."""

    class Given(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
            ctx.k, ctx.half = k, 0.5
            ctx.save_for_backward(x)
            return x**3 * k * 0.5

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g * 3 * ctx.saved_tensors[0] ** 2 * ctx.k * ctx.half, None

    k = draw.constant(1).item()
    assert_as_plain(lambda x: Given.apply(x, k), lambda x: x**3 * k * 0.5, draw.constant(3))
