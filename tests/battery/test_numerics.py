"""Finite differences know their error, and a kink from a slope."""

import math
from collections.abc import Callable

import pytest
import torch

from pullback.battery.numerics import flat, is_staircase, sharp_slopes, signs, size_of, slopes, terms, unflat


def along(function: Callable[[float], float], size: float = 1.0, magnitude: float = 1.0) -> tuple[float, float, bool]:
    """Value, error bar and smoothness of one function's slope at 0."""
    found = slopes(
        lambda t: torch.tensor([function(t)], dtype=torch.float64), size, torch.tensor([magnitude], dtype=torch.float64)
    )
    return float(found.values), float(found.errors), bool(found.smooth)


@pytest.mark.parametrize(
    ("function", "slope"),
    [(math.sin, 1.0), (math.exp, 1.0), (lambda t: (0.5 + t) ** 3, 0.75), (lambda t: math.log(1e-3 + t), 1e3)],
)
def test_the_slope_of_a_smooth_function_is_within_its_error_bar(
    function: Callable[[float], float], slope: float
) -> None:
    """And the bar is small."""
    value, bar, smooth = along(function, size=1.0 if slope < 10 else 1e-3)
    assert smooth
    assert abs(value - slope) <= bar <= 1e-5 * slope


@pytest.mark.parametrize(
    "function",
    [abs, lambda t: max(t, 0.0), lambda t: float(t > 0), lambda t: math.copysign(1.0, t), lambda t: float("nan")],
)
def test_kinks_jumps_and_nan_are_not_smooth(function: Callable[[float], float]) -> None:
    """The central difference of |t| at 0 is 0, and is no derivative."""
    assert not along(function)[2]


def test_a_kink_nearby_is_stepped_short_of() -> None:
    """At 1e-4 from a kink a smaller step gives the slope."""
    value, _, smooth = along(lambda t: max(t + 1e-4, 0.0))
    assert smooth
    assert value == pytest.approx(1.0)


def test_a_staircase_is_known_by_standing_still() -> None:
    """A float32 forward has steps that float64 resolves."""
    coarse = torch.float32

    def stairs(t: float) -> torch.Tensor:
        return torch.tensor([1.0 + t], dtype=torch.float64).to(coarse).to(torch.float64)

    magnitude = torch.ones(1, dtype=torch.float64)
    assert is_staircase(stairs, 1.0, magnitude)
    assert not is_staircase(lambda t: torch.tensor([1.0 + t], dtype=torch.float64), 1.0, magnitude)
    assert not is_staircase(lambda t: torch.tensor([1.0], dtype=torch.float64), 1.0, magnitude)
    found = slopes(stairs, 1.0, magnitude, staircase=True)
    assert abs(float(found.values) - 1.0) <= float(found.errors) < 1e-3


@pytest.mark.parametrize("size", [1.0, 1e3, 1e5])
def test_a_step_function_by_intent_is_no_staircase(size: float) -> None:
    """floor has slope 0, however small its steps look beside its argument."""

    def steps(t: float) -> torch.Tensor:
        return torch.tensor([math.floor(size + 0.3 + t)], dtype=torch.float64)

    magnitude = torch.full((1,), size, dtype=torch.float64)
    assert not is_staircase(steps, size, magnitude)
    found = slopes(steps, size, magnitude)
    assert not bool(found.smooth) or float(found.values) == 0.0


def test_flat_and_unflat_are_inverse() -> None:
    """Complex numbers become pairs and numbers again."""
    for tensor in (torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.complex128)):
        assert torch.equal(unflat(flat(tensor), tensor), tensor)
    assert flat(torch.randn(3, dtype=torch.complex64).conj()).numel() == 6
    assert flat(torch.eye(2).to_sparse()).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_sizes_are_never_zero() -> None:
    """Zeros and empty tensors have the size 1, so that a step is a step; infinities don't count."""
    assert size_of(torch.zeros(3)) == 1.0
    assert size_of(torch.zeros(0)) == 1.0
    assert size_of(torch.tensor([3.0, -3.0, float("inf")])) == 3.0


def test_signs_are_signs() -> None:
    """Every element counts alike."""
    drawn = signs(100, torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {-1.0, 1.0}


def test_sharp_slopes_are_exact_to_some_eleven_digits() -> None:
    """And their error bar says so."""
    found = sharp_slopes(lambda t: torch.tensor([0.7 + t], dtype=torch.float64).sin(), 1.0, torch.ones(1))
    assert abs(float(found.values) - math.cos(0.7)) < 1e-11
    assert float(found.errors) < 1e-9


def test_terms_leave_out_what_has_no_weight() -> None:
    """Even where it is NaN."""
    assert terms(torch.tensor([2.0, math.nan]), torch.tensor([3.0, 0.0])).tolist() == [6.0, 0.0]
