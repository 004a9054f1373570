"""F12: forward mode is derived from a backward that is linear in grad_output, and from no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd, jvp

import pullback
from pullback.errors import TransformError

Gradient = Callable[[Tensor], Tensor]


def doubled(gradient: Gradient) -> Any:
    """The Function 2 x, whose backward is `gradient` of what it would be."""

    class Doubled(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return gradient(2 * g)

    return Doubled


def one_clipped(g: Tensor) -> Tensor:
    """Clip the first entry alone."""
    return torch.cat([g[:1].clamp(-0.1, 0.1), g[1:]])


NONLINEAR: dict[str, Gradient] = {
    "guided": lambda g: g.clamp(min=0),
    "the larger half": lambda g: g * (g.abs() >= g.abs().median()),
    "absolute": torch.abs,
    "sign": torch.sign,
    "normalised": lambda g: g / g.detach().norm(),
    "clipped": lambda g: g.clamp(-1, 1),
    "one entry clipped": one_clipped,
    "squared in part": lambda g: g + 0.05 * g * g,
}


@pytest.mark.parametrize("size", [6, 100])
@pytest.mark.parametrize("name", NONLINEAR)
def test_a_backward_that_is_not_linear_is_refused(name: str, size: int) -> None:
    """PB511, whether it shows by signs, by size or by one entry of many."""
    x = torch.linspace(0.5, 1.5, size, dtype=torch.float64)
    with pytest.raises(TransformError, match=r"PB511 Doubled has no jvp.*isn't linear"):
        jvp(doubled(NONLINEAR[name]).apply, (x,), (torch.ones_like(x),))


class Softmax(pullback.Function):
    """Softmax, whose backward cancels to rounding where the logits are far apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_linear_backward_that_cancels_is_not_refused(dtype: torch.dtype, scale: float) -> None:
    """Rounding isn't taken for a part that is cut off, however small the derivative is."""
    generator = torch.Generator().manual_seed(17)
    for size in (2, 8):
        x = (scale * torch.randn(size, generator=generator, dtype=torch.float64)).to(dtype)
        expected = jacfwd(lambda x: x.softmax(-1))(x)
        torch.testing.assert_close(jacfwd(Softmax.apply)(x), expected, rtol=0.05, atol=64 * torch.finfo(dtype).eps)


def test_cancelling_factors_are_not_refused() -> None:
    """Numbers that are a thousand times larger than their difference are linear all the same."""
    x = torch.ones(5, dtype=torch.float32)
    found = jvp(doubled(lambda g: g * 1000 - g * 999).apply, (x,), (x,))[1]
    torch.testing.assert_close(found, 2 * x, rtol=1e-3, atol=1e-3)


def test_a_backward_that_iterates_to_a_tolerance_is_not_refused() -> None:
    """The solution of (I + A) z = g by a loop that stops when little changes."""
    a = 0.4 * torch.linspace(-1, 1, 25, dtype=torch.float64).sin().view(5, 5)

    def solved(g: Tensor) -> Tensor:
        z = g
        for _ in range(100):
            following = g - a.mT @ z
            if (following - z).norm() <= 1e-4 * g.norm():
                break
            z = following
        return z

    x = torch.linspace(0.5, 1.5, 5, dtype=torch.float64)
    found = jvp(doubled(solved).apply, (x,), (torch.ones_like(x),))[1]
    expected = 2 * torch.linalg.solve(torch.eye(5, dtype=torch.float64) + a, torch.ones_like(x))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
