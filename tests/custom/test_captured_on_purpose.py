"""F16: a captured tensor from which no derivative is meant to come is no error, as far as the author says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import CallError
from tests.custom.rules import drawn

WEIGHT = torch.ones(3, dtype=torch.float64, requires_grad=True)


def size_of(x: Tensor) -> Tensor:
    """x, scaled by a statistic that is taken in no-grad mode."""
    with torch.no_grad():
        scale = WEIGHT.norm()
    return x / scale


@torch.no_grad()
def norm() -> Tensor:
    """Take a statistic in no-grad mode."""
    return WEIGHT.norm()


def by_switch(x: Tensor) -> Tensor:
    """x, scaled by a statistic between two switches."""
    with torch.set_grad_enabled(False):
        scale = WEIGHT.norm()
    return x / scale


def nested(x: Tensor) -> Tensor:
    """x, scaled by statistics in no-grad mode in grad mode in no-grad mode."""
    with torch.no_grad():
        first = WEIGHT.norm()
        with torch.enable_grad():
            x = x * 1
            with torch.no_grad():
                second = WEIGHT.sum()
        third = WEIGHT.mean()
    return x / (first + second + third)


ON_PURPOSE: dict[str, Any] = {
    "no_grad": size_of,
    "a decorated helper": lambda x: x / norm(),
    "set_grad_enabled": by_switch,
    "nested": nested,
    "type_as": lambda x: x.type_as(WEIGHT),
    "to": lambda x: x.to(WEIGHT),
    "expand_as": lambda x: x.expand_as(WEIGHT) if x.shape == WEIGHT.shape else x,
    "view_as": lambda x: x.view_as(WEIGHT) if x.shape == WEIGHT.shape else x,
    "reshape_as": lambda x: x.reshape_as(WEIGHT) if x.shape == WEIGHT.shape else x,
    "item": lambda x: x * WEIGHT.detach().sum().item(),
}


def decorated(f: Any, in_bwd: Any = None) -> Any:
    """Decorate `f`, with a fwd that does the same, and a bwd that calls `in_bwd`."""
    made: Any = pullback.custom_vjp(f)
    made.defvjp(lambda x: (f(x), None), lambda _, g: (g if in_bwd is None else in_bwd(g),))
    return made


@pytest.mark.parametrize("name", ON_PURPOSE)
def test_no_derivative_is_meant(name: str) -> None:
    """In the function, in fwd and in bwd, in eager mode and under transforms."""
    f = ON_PURPOSE[name]
    made = decorated(f, in_bwd=f)
    for _ in range(2):
        x = drawn(3)
        made(x.detach())
        made(x).sum().backward()
        torch.autograd.grad(made(x).sum(), x, create_graph=True)
        torch.func.grad(lambda x: made(x).sum())(x.detach())
        torch.func.vmap(made)(x.detach()[None])


def after_no_grad(x: Tensor) -> Tensor:
    """Use the weight when no-grad mode is over."""
    with torch.no_grad():
        WEIGHT.norm()
    return x * WEIGHT


def in_grad_mode(x: Tensor) -> Tensor:
    """Use the weight in grad mode within no-grad mode."""
    with torch.no_grad(), torch.enable_grad():
        return x * WEIGHT


def after_a_switch(x: Tensor) -> Tensor:
    """Use the weight after set_grad_enabled."""
    with torch.set_grad_enabled(False):
        WEIGHT.norm()
    return x * WEIGHT


@pytest.mark.parametrize("f", [after_no_grad, in_grad_mode, after_a_switch], ids=lambda f: f.__name__)
def test_what_lies_outside_counts(f: Any) -> None:
    """PB503: no-grad mode ends where it ends."""
    made = decorated(f)
    with pytest.raises(CallError, match=f"PB503 {f.__name__} uses WEIGHT"):
        made(drawn(3).detach())
    with pytest.raises(CallError, match=f"PB503 the fwd of {f.__name__} uses WEIGHT"):
        made(drawn(3))


def test_no_grad_for_a_whole_rule_says_nothing() -> None:
    """PB503: a fwd or bwd that is decorated with no_grad is a way to write it, not a word about its tensors."""

    @pullback.custom_vjp
    def scaled(x: Tensor) -> Tensor:
        return 2 * x

    scaled.defvjp(torch.no_grad()(lambda x: (x * WEIGHT, None)), lambda _, g: (g,))
    with pytest.raises(CallError, match="PB503 the fwd of scaled uses WEIGHT"):
        scaled(drawn(3))
    scaled.defvjp(lambda x: (2 * x, None), torch.no_grad()(lambda _, g: (g * WEIGHT,)))
    with pytest.raises(CallError, match="PB503 the bwd of scaled uses WEIGHT"):
        scaled(drawn(3)).sum().backward()


def test_no_grad_of_other_machinery_says_nothing() -> None:
    """PB503: a Function that is called inside runs without gradients, and its arguments are captured all the same."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g * w, g * x

    made = decorated(lambda x: Product.apply(x, WEIGHT))
    with pytest.raises(CallError, match="uses WEIGHT"):
        made(drawn(3))
    with pytest.raises(CallError, match="uses WEIGHT"):
        torch.func.vmap(made)(drawn(3).detach()[None])


def test_a_batch_from_outside_is_called_what_it_is() -> None:
    """PB503: what vmap batches needn't require grad."""

    def outer(w: Tensor) -> Tensor:
        result: Tensor = decorated(lambda x: x * w)(torch.ones(3, dtype=w.dtype))
        return result

    with pytest.raises(CallError, match=r"uses w, which belongs to a torch.func transform that is running, and isn't"):
        torch.func.vmap(outer)(drawn(2, 3).detach())
