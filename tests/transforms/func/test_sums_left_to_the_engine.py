"""A gradient that broadcasting made larger than its argument: what PyTorch's engine sums, transforms sum too."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import pullback


class Product(pullback.Function):
    """x · w, where w is broadcast and the engine has to sum its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g * w, g * x


class WithReference(Product):
    """The same, with its definition."""

    @staticmethod
    def reference(x: Tensor, w: Tensor) -> Tensor:
        """x · w."""
        return x * w


each_function = pytest.mark.parametrize("function", [Product, WithReference])
SHAPES = [((2, 3), (3,)), ((2, 3), (1, 3)), ((2, 3), ()), ((4, 2, 3), (2, 1))]
each_shape = pytest.mark.parametrize("shapes", SHAPES)


@each_function
@each_shape
@pytest.mark.parametrize("tracked", [False, True])
def test_forward_mode(function: Any, shapes: tuple[tuple[int, ...], ...], tracked: bool) -> None:
    """F12: the tangents are those of the formula, whether the arguments require grad or not."""
    x, w = (torch.rand(shape, dtype=torch.float64).requires_grad_(tracked) for shape in shapes)
    tx, tw = (torch.rand(shape, dtype=torch.float64) for shape in shapes)
    with forward_ad.dual_level():
        output = function.apply(forward_ad.make_dual(x, tx), forward_ad.make_dual(w, tw))
        tangent = forward_ad.unpack_dual(output).tangent
    torch.testing.assert_close(tangent, tx * w + x * tw)


@each_function
@each_shape
def test_torch_func(function: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    """F12: grad, jvp, hessian and a vmap of gradients are those of the formula."""
    x, w = (torch.rand(shape, dtype=torch.float64) for shape in shapes)

    def transformed(call: Any) -> list[Tensor]:
        def loss(x: Tensor, w: Tensor) -> Tensor:
            total: Tensor = call(x, w).square().sum()
            return total

        rows = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(0, None))(torch.stack([x, -x]), w)
        hessian = torch.func.hessian(loss, argnums=(0, 1))(x, w)
        return [
            *torch.func.grad(loss, argnums=(0, 1))(x, w),
            *torch.func.jvp(loss, (x, w), (x, w)),
            *rows,
            *(block for row in hessian for block in row),
        ]

    torch.testing.assert_close(transformed(function.apply), transformed(torch.mul))
