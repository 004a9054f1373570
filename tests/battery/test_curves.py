"""A single difference confirms what is right, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pullback.battery.check import make_subject
from pullback.battery.curves import confirms
from pullback.battery.ordinary import agree, pulled_at
from tests.battery.running import leaf


def slope_is(slope: float, allowed: float) -> bool:
    """Whether the difference of x³ at 2 along 1, which is 12, confirms a slope."""
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    subject = make_subject(lambda x: x**3, (x,))
    one = torch.ones(1, dtype=torch.float64)
    return confirms(subject, subject.cases[0], {"x": one}, (0,), (one[0],), 1.0, slope, allowed)


@pytest.mark.parametrize(("slope", "confirmed"), [(12.0, True), (12.0 + 2e-6, False), (-12.0, False), (0.0, False)])
def test_a_slope_is_confirmed_within_what_is_allowed(slope: float, confirmed: bool) -> None:
    """The difference is exact to about 1e-9, and 1e-6 is allowed."""
    assert slope_is(slope, 1e-6) is confirmed


def test_nothing_is_confirmed_below_the_rounding_of_the_difference() -> None:
    """Where less is allowed than the difference itself may be off by, it says nothing."""
    assert not slope_is(12.0, 0.0)


def test_one_wrong_element_is_seen_among_many() -> None:
    """All gradients are judged at once, along a direction in which each element counts."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * x + y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, _ = ctx.saved_tensors
            return 2 * x * g, g

    class OneOff(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            gx, gy = Square.backward(ctx, g)
            gy = gy.clone()
            gy[3, 4] *= 1.001
            return gx, gy

    for function, right in ((Square, True), (OneOff, False)):
        subject = make_subject(function, (leaf(5, 6), leaf(5, 6)))
        (case,) = subject.cases
        assert agree(subject, case, pulled_at(subject, case)) is right
