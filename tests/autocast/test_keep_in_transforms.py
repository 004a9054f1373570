"""F12, F14: `keep_autocast` inside of torch.func and in forward mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import pullback
from tests.autocast.functions import autocast, leaf
from tests.autocast.states import REGIONS, backward_under, forward_under, state, state_in, watching


@forward_under
@backward_under
def test_torch_func(forward_under: str, backward_under: str) -> None:
    """F14: inside torch.func all methods run under the state of the call."""
    function, seen = watching()
    with REGIONS[forward_under]():
        _, pull = torch.func.vjp(lambda x: function.apply(x), leaf(3).detach())
    with REGIONS[backward_under]():
        (gradient,) = pull(torch.ones(3))
    torch.testing.assert_close(gradient, 2 * leaf(3).detach())
    assert {name for name, _ in seen} == {"forward", "backward"}
    assert {found for _, found in seen} == {state_in(forward_under)}


@forward_under
def test_jvp(forward_under: str) -> None:
    """F14: an author's jvp sees the state of the call, in dual numbers and in torch.func."""
    calls = []

    class Square(pullback.Function):
        keep_autocast = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            calls.append(state())
            return 2 * ctx.saved_tensors[0] * t

    x = leaf(3).detach()

    def pushed(x: Tensor) -> Any:
        return torch.func.jvp(Square.apply, (x,), (torch.ones(3),))[1]

    with REGIONS[forward_under]():
        tangent = pushed(x)
        _, pull = torch.func.vjp(pushed, x)
    (second,) = pull(torch.ones(3))
    torch.testing.assert_close(tangent, 2 * x)
    assert second.tolist() == [2.0] * 3
    assert {*calls} == {state_in(forward_under)}


def test_an_authors_vmap() -> None:
    """F14: a rule for batches that is run again by the backward pass runs under the state of the call."""
    calls = []
    function, _ = watching()

    def vmap(info: Any, dims: Any, x: Tensor) -> Any:
        calls.append(state())
        return function.apply(x), dims[0]

    function.vmap = staticmethod(vmap)
    x = leaf(2, 3)
    with autocast():
        y = torch.func.vmap(function.apply)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, 2 * x.detach())
    assert {*calls} == {state_in("bfloat16")}
