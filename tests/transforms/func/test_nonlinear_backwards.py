"""F11, F12: forward mode is the transpose of backward, which has to be linear in the cotangent for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import TransformError
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import assert_as_plain, assert_refused

NONLINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda g: g.clamp(-1, 1),
    "clip_by_norm": lambda g: g * torch.clamp(1 / g.norm(), max=1.0),
    "cut": lambda g: torch.where(g > 2, 0 * g, g),
    "square": lambda g: g + 0.05 * g * g,
    "normalise": lambda g: g / g.norm(),
    "sign": lambda g: g.sign(),
    "offset": lambda g: g + 0.1,
}
FORWARD = ("jvp", "jacfwd", "dual", "vmap of jvp", "jvp of vmap", "jvp of grad", "grad of jvp")


def with_backward(backward: Callable[[Tensor], Tensor]) -> Any:
    """Make the identity with a backward of this kind."""

    class Identity(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return backward(g)

    return Identity


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("kind", NONLINEAR)
def test_forward_mode_is_refused(kind: str, shape: tuple[int, ...], draw: Draw) -> None:
    """An undeclared backward that isn't linear raises PB511, whatever its size, and gives no tangent."""
    function, x = with_backward(NONLINEAR[kind]), draw.constant(*shape)
    says = ["Identity", "forward mode", "isn't linear in grad_output"]
    assert_refused(function.apply, x, "PB511", says, FORWARD, TransformError)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_tangent_does_not_matter(size: float, draw: Draw) -> None:
    """So it is for small tangents and large ones."""
    x = draw.constant(3)
    for kind in ("clamp", "cut", "square"):
        with pytest.raises(TransformError, match="isn't linear") as caught:
            torch.func.jvp(with_backward(NONLINEAR[kind]).apply, (x,), (size * x,))
        assert caught.value.rule == "PB511"


def test_reverse_mode_is_not(draw: Draw) -> None:
    """In reverse mode backward is what it is."""
    x = draw.constant(3)
    found = torch.func.grad(lambda x: (with_backward(NONLINEAR["clamp"]).apply(x) * 10 * x.detach()).sum())(x)
    torch.testing.assert_close(found, (10 * x).clamp(-1, 1))


LINEAR: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "zero": (lambda g: torch.zeros_like(g), lambda x: 0 * x),
    "masked": (lambda g: torch.where(torch.arange(g.shape[-1]) > 0, g, 0.0), lambda x: x * (torch.arange(3) > 0)),
    "reversed": (lambda g: g.flip(-1), lambda x: x.flip(-1)),
    "summed": (lambda g: g.cumsum(-1), lambda x: x.flip(-1).cumsum(-1).flip(-1)),
    "large": (lambda g: 1e9 * g, lambda x: 1e9 * x),
    "small": (lambda g: 1e-12 * g, lambda x: 1e-12 * x),
}


@pytest.mark.parametrize("kind", LINEAR)
def test_linear_ones_are_not(kind: str, draw: Draw) -> None:
    """A linear backward is transposed: the tangents are those of the function whose derivative it is."""
    backward, plain = LINEAR[kind]

    def tangents(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.func.jvp(function, (x,), (x.cos(),))[1]

    assert_as_plain(tangents(with_backward(backward).apply), tangents(plain), draw.constant(3), ["vmap", "grad", "jvp"])


class Root(pullback.Function):
    """The square root, which has an infinite derivative at 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Save the root."""
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Its derivative."""
        return g / (2 * ctx.saved_tensors[0])


def test_infinite_derivatives_are_not(draw: Draw) -> None:
    """At 0 the tangent is infinite, as PyTorch's own is."""
    x = torch.cat([torch.zeros(1, dtype=torch.float64), draw.constant(2)])
    assert_as_plain(Root.apply, torch.sqrt, x, ["jvp", "dual", "vmap of jvp", "jvp of vmap"])


def test_nan_is_not(draw: Draw) -> None:
    """A value that isn't a number, or has an infinite one beside it, spoils its own tangent alone."""
    x = torch.cat([torch.tensor([float("nan"), float("inf")], dtype=torch.float64), draw.constant(2)])
    found = torch.func.jvp(Root.apply, (x,), (torch.ones_like(x),))
    expected = torch.func.jvp(torch.sqrt, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_is_linear(dtype: torch.dtype, draw: Draw) -> None:
    """Rounding isn't taken for a backward that isn't linear, nor does a large half tensor overflow."""

    class Cube(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * (3 * ctx.saved_tensors[0] ** 2)

    x = draw.constant(70_000, dtype=dtype)
    _, tangent = torch.func.jvp(Cube.apply, (x,), (x,))
    torch.testing.assert_close(tangent.double(), 3 * x.double() ** 3, rtol=8 * torch.finfo(dtype).eps, atol=1e-6)
