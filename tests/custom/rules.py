"""Decorated functions that the tests share, and the plain functions that they have to agree with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import pullback


def number(value: float) -> Tensor:
    """Make a float64 scalar that requires grad."""
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Draw a float64 leaf that requires grad, between 0.3 and 1.3."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, dtype=torch.float64, generator=generator).add_(0.3).requires_grad_()


def plain(x: Tensor, y: Tensor) -> Tensor:
    """sin(x) y, which the rules below are about."""
    return torch.sin(x) * y


def by_vjp() -> Any:
    """sin(x) y with its reverse-mode rule; what fwd leaves is computed, not given."""

    @pullback.custom_vjp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x) * y

    def fwd(x: Tensor, y: Tensor) -> Any:
        return product(x, y), (torch.cos(x), torch.sin(x), y)

    def bwd(residuals: Any, g: Tensor) -> Any:
        cos, sin, y = residuals
        return cos * y * g, sin * g

    product.defvjp(fwd, bwd)
    return product


def by_jvp() -> Any:
    """sin(x) y with one rule for both tangents."""

    @pullback.custom_jvp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x) * y

    @product.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (x_dot, y_dot) = primals, tangents
        return product(x, y), torch.cos(x) * x_dot * y + torch.sin(x) * y_dot

    return product


def by_jvps() -> Any:
    """sin(x) y with a rule for each tangent."""

    @pullback.custom_jvp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x) * y

    product.defjvps(
        lambda x_dot, result, x, y: torch.cos(x) * x_dot * y,
        lambda y_dot, result, x, y: torch.sin(x) * y_dot,
    )
    return product


MADE: dict[str, Callable[[], Any]] = {"vjp": by_vjp, "jvp": by_jvp, "jvps": by_jvps}


def same(got: Any, expected: Any) -> None:
    """Require equal tensors, to float64's rounding."""
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def orders(function: Callable[..., Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Value, first and second derivatives of a weighted sum of what `function` returns."""
    y = function(*leaves)
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)
    first = torch.autograd.grad((y * weights).sum(), leaves, create_graph=True, materialize_grads=True)
    norm = torch.stack([(gradient * gradient).sum() for gradient in first]).sum()
    second = torch.autograd.grad(norm, leaves, allow_unused=True, materialize_grads=True)
    return [y.detach(), *(gradient.detach() for gradient in first), *second]
