"""F7, F10, F14: second and third derivatives of a Function whose arguments autocast has cast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError
from tests.autocast.functions import autocast, leaf

Seen = list[tuple[str, bool]]


def cube(how: str, seen: Seen) -> Any:
    """Define y = x³ in float32, with its higher derivatives from `how`; it writes down where autocast was on."""

    def note(name: str) -> None:
        seen.append((name, torch.is_autocast_enabled("cpu")))

    class Cube(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            note("forward")
            assert x.dtype == torch.float32
            square = x * x
            ctx.save_for_backward(x, square if how == "replay" else x)
            return square * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            note("backward")
            x, kept = ctx.saved_tensors
            square = kept if how == "replay" else x * x
            if how in ("double_backward", "reference", "surrogate"):  # as a kernel would: autograd can't follow
                square, g = square.detach(), g.detach()
            return 3 * square * g

    def double_backward(ctx: Any, gg: Tensor) -> tuple[Tensor, Tensor]:
        note("double_backward")
        x, _ = ctx.saved_tensors
        (g,) = ctx.grad_outputs
        return 3 * x * x * gg, 6 * x * g * gg

    def again(x: Tensor) -> Tensor:
        note(how)
        assert x.dtype == torch.float32
        return x * x * x

    if how == "double_backward":
        Cube.double_backward = staticmethod(double_backward)
    if how in ("reference", "surrogate"):
        setattr(Cube, how, staticmethod(again))
    return Cube


SOURCES = ("backward", "replay", "double_backward", "reference", "surrogate")


def derivatives(function: Any, x: Tensor, *, inside: bool) -> list[Tensor]:
    """Return the first three derivatives of the sum; all but the call are taken under autocast if `inside`."""
    with autocast():
        value = function(x).sum()
    found = []
    with autocast(enabled=inside):
        for _ in range(3):
            (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            found.append(value)
    return found


@pytest.mark.parametrize("inside", [True, False], ids=["under autocast", "outside"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("how", SOURCES)
def test_three_derivatives(how: str, dtype: torch.dtype, inside: bool) -> None:
    """F14: they are those of x.float() ** 3, from each source, and no method of the author's runs under autocast."""
    seen: Seen = []
    function = cube(how, seen)
    for _ in range(2):
        x = leaf(4, dtype=dtype)
        found = derivatives(function.apply, x, inside=inside)
        due = derivatives(lambda x: x.float() * x.float() * x.float(), x, inside=inside)
        for one, other in zip(found, due, strict=True):
            assert one.dtype == dtype
            torch.testing.assert_close(one, other)
    assert {name for name, _ in seen} >= {"forward", "backward"} | ({how} - {"replay"})
    assert not any(on for _, on in seen)


def test_what_torch_gets_wrong() -> None:
    """F8, F14: custom_fwd saves a copy that no graph leads to, so torch's second derivative is zero, in silence."""

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    def second(function: Any) -> Tensor:
        x = leaf(3, dtype=torch.bfloat16)
        with autocast():
            y = function.apply(x).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        penalty = gradient.sum() + 0 * x.sum()
        return torch.autograd.grad(penalty, x)[0]

    assert second(Square).tolist() == [0.0] * 3
    body = {name: staticmethod(getattr(Square, name).__wrapped__) for name in ("forward", "backward")}
    assert second(type("Square", (pullback.Function,), {**body, "cast_inputs": torch.float32})).tolist() == [2.0] * 3


def test_what_can_not_be_had_is_refused() -> None:
    """F8, F14: an argument that was cast and not saved can't be had, so a hidden tensor is an error."""

    class Exp(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            half = (x / 2).exp()
            ctx.save_for_backward(half)
            return half * half

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (half,) = ctx.saved_tensors
            return half * half * g

    x = leaf(3, dtype=torch.bfloat16)
    with autocast():
        y = Exp.apply(x).sum()
    with pytest.raises(HigherOrderError, match=r"PB206 .*Exp"):
        torch.autograd.grad(y, x, create_graph=True)


def test_a_gradient_penalty() -> None:
    """F8, F14: a loss on a gradient trains through the call as through plain operations."""
    results = []
    seen: Seen = []
    function = cube("replay", seen)
    for call in (function.apply, lambda x: x.float() ** 3):
        x, w = leaf(4, dtype=torch.bfloat16), leaf(4, seed=1)
        with autocast():
            (gradient,) = torch.autograd.grad((call(x * w) * w).sum(), x, create_graph=True)
            loss = (gradient.float() ** 2).sum()
        loss.backward()
        results.append((x.grad, w.grad))
    for one, other in zip(*results, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other)
