"""F8, F9, F12: numbers that go through their bits are no constants, though no graph leads through integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jvp

import pullback
from pullback.errors import HigherOrderError, TransformError

Way = Callable[[Tensor], Tensor]

WAYS: dict[str, Way] = {
    "cut": lambda v: (v.contiguous().view(torch.int64) & -(1 << 20)).view(torch.float64),
    "in place": lambda v: v.clone().view(torch.int64).bitwise_and_(-(1 << 20)).view(torch.float64),
    "in bytes": lambda v: v.contiguous().view(torch.uint8).clone().view(torch.float64),
    "joined": lambda v: torch.cat([v.contiguous().view(torch.int64)[:1], v.contiguous().view(torch.int64)[1:]]).view(
        torch.float64
    ),
}
"""Ways to round, or to copy, by the bits of float64."""


def rounded(way: Way, *, reference: bool) -> Any:
    """The Function 0.7 x², of which values and gradients are rounded by their bits; it keeps the rounded value."""

    class Rounded(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, way(1.4 * x))
            return way(0.7 * x * x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            _, slope = ctx.saved_tensors
            return way(slope * g)

    given = {"reference": staticmethod(lambda x: 0.7 * x * x)} if reference else {}
    return type("Rounded", (Rounded,), given)


def second(y: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the sum of the gradient."""
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    return torch.autograd.grad(gradient.sum(), x)[0]


def point() -> Tensor:
    """Return numbers that take all their bits."""
    return torch.tensor([0.3, -1.1, 2.7], dtype=torch.float64)


@pytest.mark.parametrize("way", WAYS)
def test_forward_mode_without_another_source_is_refused(way: str) -> None:
    """PB511; a tangent of zeros would be wrong in silence."""
    with pytest.raises(TransformError, match="PB511"):
        jvp(rounded(WAYS[way], reference=False).apply, (point(),), (torch.ones(3, dtype=torch.float64),))


@pytest.mark.parametrize("way", WAYS)
def test_forward_mode_goes_through_the_reference(way: str) -> None:
    """The tangent is the reference's."""
    _, tangent = jvp(rounded(WAYS[way], reference=True).apply, (point(),), (torch.ones(3, dtype=torch.float64),))
    torch.testing.assert_close(tangent, 1.4 * point())


@pytest.mark.parametrize("way", WAYS)
def test_what_was_saved_through_its_bits_is_cut_off(way: str) -> None:
    """The second derivative raises without a reference, and is the reference's with one."""
    x = point().requires_grad_()
    y = rounded(WAYS[way], reference=False).apply(x).sum()
    with pytest.raises(HigherOrderError, match=r"PB20[67]"):
        second(y, x)
    y = rounded(WAYS[way], reference=True).apply(x).sum()
    torch.testing.assert_close(second(y, x), torch.full((3,), 1.4, dtype=torch.float64))


def test_a_sign_read_from_bits_is_a_constant() -> None:
    """A comparison of bits is flat: what is made with it varies with the other factor alone."""

    class Absolute(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            sign = torch.where(x.contiguous().view(torch.int64) < 0, -1.0, 1.0).to(x)
            ctx.save_for_backward(sign)
            return x * sign

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (sign,) = ctx.saved_tensors
            return g * sign

    x = point().requires_grad_()
    torch.testing.assert_close(second((Absolute.apply(x) ** 2).sum(), x), torch.full((3,), 2.0, dtype=torch.float64))
