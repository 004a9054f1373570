"""F12: parameters and modules that are kept on ctx stay the objects that they are, as checkpointing by hand needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Linear

import pullback
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import LEVELS, assert_as_plain


@pytest.fixture
def layer() -> Linear:
    """A module with parameters, without a gradient on them."""
    return Linear(3, 3, dtype=torch.float64)


def recomputing(layer: Linear, seen: list[Any] | None = None) -> Any:
    """Make a Function that runs a module again in backward, which accumulates into the module's parameters."""

    class Recompute(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.run, ctx.weight = layer, layer.weight
            ctx.save_for_backward(x)
            return layer(x).tanh()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            if seen is not None:
                seen.append((ctx.run, ctx.weight))
            with torch.enable_grad():
                again = ctx.saved_tensors[0].detach().requires_grad_()
                torch.autograd.backward(ctx.run(again).tanh(), g)
            return again.grad

    return Recompute


def formula(layer: Linear) -> Callable[[Tensor], Tensor]:
    """The same with constants for parameters."""
    weight, bias = layer.weight.detach(), layer.bias.detach()
    return lambda x: torch.nn.functional.linear(x, weight, bias).tanh()


def gradients(layer: Linear, run: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    """What `run` accumulates into the parameters."""
    layer.zero_grad()
    run()
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return layer.weight.grad, layer.bias.grad


def in_vmap(function: Any, x: Tensor) -> None:
    """Go backward outside of vmap."""
    torch.func.vmap(function.apply)(x[None].clone().requires_grad_()).sum().backward()


def in_grad(function: Any, x: Tensor) -> None:
    """Go backward by torch.func."""
    torch.func.grad(lambda x: function.apply(x).sum())(x)


def in_dual_numbers(function: Any, x: Tensor) -> None:
    """Go backward from the primal of a dual number."""
    with forward_ad.dual_level():
        dual = function.apply(forward_ad.make_dual(x.clone().requires_grad_(), x))
        forward_ad.unpack_dual(dual)[0].sum().backward()


@pytest.mark.parametrize("run", [in_vmap, in_grad, in_dual_numbers])
def test_gradients_reach_the_parameters(run: Callable[[Any, Tensor], None], layer: Linear, draw: Draw) -> None:
    """One backward under a transform accumulates into a module on ctx what it does in eager mode, once."""
    function, x = recomputing(layer), draw.constant(3)
    expected = gradients(layer, lambda: function.apply(x.clone().requires_grad_()).sum().backward())
    torch.testing.assert_close(gradients(layer, lambda: run(function, x)), expected)


def test_they_are_the_same_objects(layer: Linear, draw: Draw) -> None:
    """backward finds on ctx the very module and parameter, at each level."""
    seen: list[Any] = []
    function, x = recomputing(layer, seen), draw.constant(3)
    for name in ("grad", "jvp", "dual", "jacrev"):
        LEVELS[name](function.apply)(x)
    in_vmap(function, x)
    assert seen
    assert all(module is layer and weight is layer.weight for module, weight in seen)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", ["jvp", "jacfwd", "dual"])
def test_forward_mode_leaves_grad_as_it_was(name: str, before: bool, layer: Linear, draw: Draw) -> None:
    """Forward mode runs backward on made-up cotangents; parameters on ctx don't accumulate them."""
    function, x = recomputing(layer), draw.constant(3)
    if before:
        function.apply(x.clone().requires_grad_()).sum().backward()
    expected = [None if p.grad is None else p.grad.clone() for p in layer.parameters()]
    assert_as_plain(function.apply, formula(layer), x, [name])
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        if gradient is None:
            assert parameter.grad is None
        else:
            assert torch.equal(parameter.grad, gradient)


def test_derivatives_by_the_argument(layer: Linear, draw: Draw) -> None:
    """What backward accumulates aside changes nothing of the derivatives by the argument, in all compositions."""
    assert_as_plain(recomputing(layer).apply, formula(layer), draw.constant(3))
