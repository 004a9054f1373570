"""F16: what several derivatives by torch.func mean for a rule that isn't the function's own derivative, as in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

import pullback

BOUND = 0.75


def clipped() -> Callable[..., Tensor]:
    """The identity, with gradients that are clipped, in the manner of JAX's tutorial."""

    @pullback.custom_vjp
    def clip_gradient(lo: float, hi: float, x: Tensor) -> Tensor:
        return x

    def fwd(lo: float, hi: float, x: Tensor) -> tuple[Tensor, Any]:
        return x, (lo, hi)

    def bwd(residuals: Any, cotangent: Tensor) -> tuple[None, None, Tensor]:
        lo, hi = residuals
        return None, None, cotangent.clamp(lo, hi)

    clip_gradient.defvjp(fwd, bwd)
    return clip_gradient


def sine(x: Tensor) -> Tensor:
    """sin of the identity whose gradients are clipped."""
    return torch.sin(clipped()(-BOUND, BOUND, x))


POINTS = torch.linspace(0, 6, 25, dtype=torch.float64)


def test_first_derivative_is_by_the_rule() -> None:
    """The cosine, clipped."""
    torch.testing.assert_close(vmap(grad(sine))(POINTS), POINTS.cos().clamp(-BOUND, BOUND))


def expected_second(x: Tensor) -> Tensor:
    """The derivative of the clipped cosine: -sin where nothing is clipped, else zero."""
    return torch.where(x.cos().abs() < BOUND, -x.sin(), torch.zeros_like(x))


@pytest.mark.parametrize("outer", [grad, jacrev])
def test_second_derivative_is_of_what_the_rule_computes(outer: Any) -> None:
    """JAX's meaning: the level outside differentiates fwd and bwd as they are, so -sin isn't clipped once more."""
    torch.testing.assert_close(vmap(outer(grad(sine)))(POINTS), expected_second(POINTS))
    assert (expected_second(POINTS).abs() > BOUND).any(), "where the two meanings differ is among the points"


def test_third_derivative_is_of_the_second() -> None:
    """One more level: -cos where nothing is clipped."""
    expected = torch.where(POINTS.cos().abs() < BOUND, -POINTS.cos(), torch.zeros_like(POINTS))
    torch.testing.assert_close(vmap(grad(grad(grad(sine))))(POINTS), expected)


def test_plain_autograd_applies_the_rule_at_each_order() -> None:
    """One graph serves all orders there: the cotangent of the second derivative is clipped too."""
    x = POINTS.clone().requires_grad_()
    (first,) = torch.autograd.grad(sine(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, expected_second(POINTS).clamp(-BOUND, BOUND))


def test_fwd_that_calls_the_function_is_by_the_rule_again() -> None:
    """A fwd that calls the function itself, as implicit differentiation does, gets the rule at the next level too."""

    @pullback.custom_vjp
    def double_slope(x: Tensor) -> Tensor:
        return x**2

    def fwd(x: Tensor) -> tuple[Tensor, Tensor]:
        return double_slope(x), x

    def bwd(x: Tensor, cotangent: Tensor) -> tuple[Tensor]:
        return (4 * x * cotangent,)  # twice the derivative, so that each use of the rule shows

    double_slope.defvjp(fwd, bwd)
    x = torch.tensor(3.0, dtype=torch.float64)
    # First: y = x² with slope 4x, so of y³ 3y² 4x. Second: d/dx [12 y² x] = 12 y² + 24 y x dy/dx, with 4x for dy/dx.
    found = grad(grad(lambda z: double_slope(z) ** 3))(x)
    torch.testing.assert_close(found, 12 * x**4 + 24 * x**2 * x * 4 * x)


@pytest.mark.parametrize("role", ["surrogate", "reference"])
def test_what_is_declared_is_differentiated_at_all_levels(role: str) -> None:
    """A surrogate or reference says what the derivatives are of: the levels outside follow it, not fwd."""
    declared: Any = {role: lambda x: x**3}

    @pullback.custom_vjp(**declared)
    def f(x: Tensor) -> Tensor:
        return x.round() if role == "surrogate" else x**3

    f.defvjp(lambda x: (f(x), x), lambda x, cotangent: (3 * x**2 * cotangent,))
    x = torch.tensor(2.3, dtype=torch.float64)
    y, slope, curvature = float(f(x)), 3 * 2.3**2, 6 * 2.3
    expected = torch.tensor(2 * slope**2 + 2 * y * curvature, dtype=torch.float64)
    torch.testing.assert_close(grad(grad(lambda z: f(z) ** 2))(x), expected)
