"""Calls of one class with and without an optional tensor: what each keeps for a replay is its own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError


class Scaled(pullback.Function):
    """y = power · exp(x) · w + eps, without w where it is None; saves the product, which its graph doesn't know."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor | None, power: int, eps: float) -> Tensor:
        product = power * x.exp()
        ctx.save_for_backward(x, w, product)
        ctx.power = power
        return (product if w is None else product * w) + eps

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        _, w, product = ctx.saved_tensors
        return (g * product if w is None else g * product * w), None if w is None else g * product, None, None

    @staticmethod
    def reference(x: Tensor, w: Tensor | None, power: int, eps: float) -> Tensor:
        product = power * x.exp()
        return (product if w is None else product * w) + eps


CALLS = ((True, 1), (False, 1), (True, 2), (False, 2))


@pytest.mark.parametrize("order", list(itertools.permutations(CALLS, 3)), ids=str)
def test_a_call_is_replayed_with_its_own_arguments(order: Any) -> None:
    """In whatever order they come, and twice over, second derivatives are those of the call's own arguments."""
    function: Any = type("Scaled", (Scaled,), {})
    x = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([3.0, 2.0], dtype=torch.float64, requires_grad=True)
    for has_w, power in (*order, *order):
        y = function.apply(x, w if has_w else None, power, 0.25)
        (gx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gx.sum(), x)
        torch.testing.assert_close(second, power * x.detach().exp() * (w.detach() if has_w else 1))


class Product(pullback.Function):
    """y = x · exp(w), which saves x where w is to have a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(w, x if ctx.needs_input_grad[1] else None)
        return x * w.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        w, x = ctx.saved_tensors
        return g * w.exp(), None if x is None else g * x * w.exp()

    @staticmethod
    def reference(x: Tensor, w: Tensor) -> Tensor:
        return x * w.exp()


@pytest.mark.parametrize("needed", [(False, True), (True, True)])
def test_what_was_not_saved_the_first_time_is_known_the_next(needed: tuple[bool, bool]) -> None:
    """A tensor that is saved where the first call saved None is known as the argument that it is."""
    function: Any = type("Product", (Product,), {})
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    function.apply(x * 1, w.detach())
    y = function.apply(x * 1 if needed[0] else x.detach() * 1, w)
    (gw,) = torch.autograd.grad(y, w, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(gw, w)[0], 2 * w.detach().exp())


class Weighted(pullback.Function):
    """y = x w p + r by NumPy, which no graph follows; keeps w only where x is to have a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, w: Tensor, p: float) -> Tensor:
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(w)
        ctx.p = p
        return torch.from_numpy(x.detach().numpy() * w.numpy() * p + r.detach().numpy())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        gx = None
        if ctx.needs_input_grad[0]:
            (w,) = ctx.saved_tensors
            gx = g * w * ctx.p
        return gx, g, None, None


@pytest.mark.parametrize("others", range(5))
def test_calls_that_save_nothing_do_not_hide_what_others_saved(others: int) -> None:
    """However many calls keep nothing, an argument that is no variable stays known as that, and isn't refused."""
    function: Any = type("Weighted", (Weighted,), {})
    x, r = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (2.0, 0.5))
    w = torch.tensor([3.0], dtype=torch.float64)
    for _ in range(2):
        function.apply(x, r, w, 0.5)
        for _ in range(others):
            function.apply(x.detach(), r, w, 0.5)
    y = function.apply(x, r, w, 0.5)
    with pullback.saved_memory() as ledger:
        kept = function.apply(x, r, w.clone(), 0.5)
    assert [entry.argument for entry in ledger.entries] == ["w"]
    (gx,) = torch.autograd.grad(kept + y, x, torch.ones(1, dtype=torch.float64, requires_grad=True), create_graph=True)
    assert gx.item() == 2 * 3 * 0.5


class Chosen(pullback.Function):
    """z = exp(x) or exp(y), as a flag says, times a scale if there is one; with one it keeps z, and not the scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: Tensor | None, first: bool) -> Tensor:
        z = (x if first else y).exp()
        if scale is not None:
            z = z * scale
            ctx.save_for_backward(z.clone())
        ctx.first = first
        return z

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.saved_tensors:
            return None, None, None, None
        result = g * ctx.saved_tensors[0]
        return (result, None, None, None) if ctx.first else (None, result, None, None)


def test_what_an_intermediate_varies_with_is_known_for_each_flag() -> None:
    """Calls that save as others did, under another flag, aren't taken for those; nor after many of them."""
    function: Any = type("Chosen", (Chosen,), {})
    x, y = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (2.0, 0.5))
    scale = torch.ones(1)
    function.apply(x, y, None, True)
    for _ in range(20):
        for first in (True, False):
            function.apply(x, y, scale, first)
    for first, variable in ((True, x), (False, y)):
        arguments = (x, y.detach()) if first else (x.detach(), y)
        (gradient,) = torch.autograd.grad(function.apply(*arguments, scale, first), variable, create_graph=True)
        with pytest.raises(HigherOrderError, match="PB20"):
            torch.autograd.grad(gradient, variable)


class ByParity(Chosen):
    """The same by a number, which is odd for x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: Tensor | None, number: int) -> Tensor:
        return Chosen.forward(ctx, x, y, scale, number % 2 == 1)


@pytest.mark.parametrize("first", [101, 102])
def test_of_a_flag_that_comes_late_an_intermediate_varies_with_all_that_others_did(first: int) -> None:
    """After the calls that are watched an unknown number may steer either way, so neither is taken for a constant."""
    function: Any = type("ByParity", (ByParity,), {})
    x, y = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (2.0, 0.5))
    for number in range(20):
        function.apply(x, y, torch.ones(1), number)
    odd = first % 2 == 1
    arguments, variable = ((x, y.detach()), x) if odd else ((x.detach(), y), y)
    (gradient,) = torch.autograd.grad(function.apply(*arguments, torch.ones(1), first), variable, create_graph=True)
    with pytest.raises(HigherOrderError, match="PB20"):
        torch.autograd.grad(gradient, variable)
