"""What is wrong with a value, a tangent or a second derivative is told in words, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.patterns import pattern_of
from pullback.battery.probes import forward_mode, second_order, values
from pullback.battery.tolerances import DIFFERENCES
from tests.battery.running import leaf, run_probe

Change = Callable[[Tensor], Tensor]

CHANGES = [
    (lambda t: 2 * t, "it is 2 times the right one everywhere"),
    (lambda t: -t, "its sign is wrong everywhere, and nothing else"),
    (lambda t: torch.cat([t[:-1], 0 * t[-1:]]), "it is zero in row 2 (the last) only, and right elsewhere"),
    (lambda t: t + t.roll(1, 0), ""),
]


def cubes(value: Change, tangent: Change, second: Change) -> Any:
    """x³ with a value, a tangent or a second derivative that something is done to."""

    class Cubes(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return value(x**3)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> tuple[Tensor, Tensor]:
            (x,), (g,) = ctx.saved_tensors, ctx.grad_outputs
            return 3 * x**2 * gg, second(6 * x * g * gg)

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return tangent(3 * x**2 * t)

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x**3

    return Cubes


def same(t: Tensor) -> Tensor:
    """What nothing is done to."""
    return t


@pytest.mark.parametrize(("change", "pattern"), CHANGES)
def test_of_a_value(change: Change, pattern: str) -> None:
    """Against the reference's, which is at hand."""
    (finding,) = run_probe(values.PROBE, cubes(change, same, same), (leaf(3, 4),))[1]
    assert finding.message == f"output differs from the reference{f': {pattern}' if pattern else ''}"
    assert finding.evidence.get("diagnosis", "") == pattern


@pytest.mark.parametrize(("change", "pattern"), CHANGES)
def test_of_a_tangent(change: Change, pattern: str) -> None:
    """Against what the rows of backward make of the same tangent."""
    (finding,) = run_probe(forward_mode.PROBE, cubes(same, change, same), (leaf(3, 4),))[1]
    told = f"; if backward is right, what is wrong with jvp's: {pattern}" if pattern else ""
    assert finding.message == f"jvp and backward disagree on the tangent of x, for a random one{told}"
    assert finding.evidence.get("diagnosis", "") == pattern


@pytest.mark.parametrize(("change", "pattern"), CHANGES)
def test_of_a_second_derivative(change: Change, pattern: str) -> None:
    """Against differences of the first one, element by element."""
    (finding,) = run_probe(second_order.PROBE, cubes(same, same, change), (leaf(3, 4),))[1]
    told = f": {pattern}" if pattern else ""
    assert finding.message == f"the derivative of x's gradient by x is wrong{told}"
    assert finding.evidence.get("diagnosis", "") == pattern


def test_an_argument_in_the_place_of_a_value_is_named() -> None:
    """Of what else may have come, the arguments are tried."""
    (finding,) = run_probe(values.PROBE, cubes(lambda y: y ** (1 / 3), same, same), (leaf(3, 4),))[1]
    assert finding.message == "output differs from the reference: it is the argument x itself"


def test_nothing_is_told_of_other_shapes_whole_numbers_and_nothing() -> None:
    """There are no two arrays to compare."""
    x = leaf(3)
    assert pattern_of(x, leaf(2), DIFFERENCES) == ""
    assert pattern_of(torch.arange(3), torch.arange(3), DIFFERENCES) == ""
    assert pattern_of(None, x, DIFFERENCES) == pattern_of(x, None, DIFFERENCES) == ""


def test_nothing_is_told_of_large_results() -> None:
    """Each element of a tangent or of a second derivative costs a call."""
    large = (leaf(20, 20),)
    for probe, function in (
        (forward_mode.PROBE, cubes(same, lambda t: 2 * t, same)),
        (second_order.PROBE, cubes(same, same, lambda t: 2 * t)),
    ):
        (finding,) = run_probe(probe, function, large)[1]
        assert "diagnosis" not in finding.evidence
