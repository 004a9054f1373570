"""F12: what a refusal under torch.func advises can be done, and helps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, vmap

import pullback
from pullback.errors import HigherOrderError, TransformError


def numpy_sin(x: Tensor) -> Tensor:
    """sin by NumPy."""
    return torch.from_numpy(x.detach().numpy().copy()).sin_()


def test_a_reference_that_gives_other_values_is_told_before_it_stands_for_forward() -> None:
    """PB219: vmap would return the reference's values, which aren't the kernel's."""

    class Kernel(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return numpy_sin(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> None:
            return None

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x.cos()

    with pytest.raises(HigherOrderError, match=r"PB219 output 0 of Kernel differs from its reference"):
        vmap(Kernel.apply)(torch.ones(2, 3, dtype=torch.float64))


def test_a_backward_that_takes_no_batch_beside_a_vmap_of_forward() -> None:
    """PB510 says of a class with a vmap what is missing: backward as a second Function with its own."""

    class Kernel(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return numpy_sin(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.from_numpy(g.detach().numpy() * ctx.saved_tensors[0].detach().cos().numpy())

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
            return Kernel.apply(x.movedim(in_dims[0], 0)), 0

    with pytest.raises(TransformError, match=r"PB510 Kernel.backward can't") as caught:
        jacrev(Kernel.apply)(torch.ones(3, dtype=torch.float64))
    assert "a second Function, which has a vmap of its own" in caught.value.remedy


class Clipped(pullback.Function):
    """The square, with gradients that are clipped on purpose."""

    nonlinear_backward = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return (2 * ctx.saved_tensors[0] * g).clamp(-1, 1)


def test_the_hessian_of_a_nonlinear_backward_by_reverse_mode_alone() -> None:
    """PB511 names jacrev(jacrev(f)), which gives the derivative of the clipped gradient."""
    x = torch.tensor([0.2, 0.4, 3.0], dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return Clipped.apply(x).sum()

    with pytest.raises(TransformError, match=r"PB511 Clipped has no jvp") as caught:
        hessian(f)(x)
    assert "jacrev(jacrev(f))" in caught.value.remedy
    torch.testing.assert_close(jacrev(jacrev(f))(x), torch.diag(torch.tensor([2.0, 2.0, 0.0], dtype=torch.float64)))


def test_the_jacobian_of_a_random_forward() -> None:
    """PB514 names randomness, and with it jacfwd is right for the mask that was drawn."""

    class Noisy(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask = (torch.rand(x.shape, dtype=x.dtype) > 0.5).to(x.dtype)
            ctx.save_for_backward(x, mask)
            ctx.save_for_forward(x, mask)
            return x**2 * mask

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, mask = ctx.saved_tensors
            return 2 * x * mask * g

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            x, mask = ctx.saved_tensors
            return 2 * x * mask * tangent

    x = torch.arange(1.0, 9.0, dtype=torch.float64)
    with pytest.raises(TransformError, match=r"PB514 Noisy draws random numbers") as caught:
        jacfwd(Noisy.apply)(x)
    assert "randomness='same'" in caught.value.remedy
    torch.manual_seed(5)
    found = jacfwd(Noisy.apply, randomness="same")(x).diagonal()
    assert {0.0} < set(found.tolist()) <= {0.0, *(2 * x).tolist()}
