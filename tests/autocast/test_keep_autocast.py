"""F14: `keep_autocast` runs backward under the autocast state of forward, as custom_fwd and custom_bwd do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.autocast.functions import STYLES, autocast, in_torch, leaf, plain, same_bits
from tests.autocast.states import REGIONS, backward_under, forward_under, state, state_in, watching

in_both_styles = pytest.mark.parametrize("write", STYLES.values(), ids=STYLES)


@in_both_styles
@forward_under
@backward_under
def test_values_and_gradients_of_torch(write: Any, forward_under: str, backward_under: str) -> None:
    """F14: forward computes under the caller's autocast, and backward under the same, wherever it is run."""
    for calls in (1, 2):
        results = []
        for function in (write(keep_autocast=True), in_torch(None)):
            x, w = leaf(4, 5), leaf(5, 3, seed=1)
            for _ in range(calls):
                with REGIONS[forward_under]():
                    y = function.apply(x, w, 2.0)
                with REGIONS[backward_under]():
                    y.sum().backward()
            results.append([y, x.grad, w.grad])
        same_bits(*results)


@forward_under
def test_each_call_has_its_own_state(forward_under: str) -> None:
    """F14: calls of one class under different states, with their backwards in another order, keep theirs apart."""
    function, seen = watching()
    x = leaf(3)
    with REGIONS[forward_under]():
        one = function.apply(x)
    two = function.apply(x)
    two.sum().backward()
    one.sum().backward()
    assert seen == [
        ("forward", state_in(forward_under)),
        ("forward", state_in("off")),
        ("backward", state_in("off")),
        ("backward", state_in(forward_under)),
    ]


@forward_under
@backward_under
def test_second_order(forward_under: str, backward_under: str) -> None:
    """F14: with create_graph, too, backward runs as forward did, and the second derivative is right."""
    function, seen = watching()
    x = leaf(3)
    with REGIONS[forward_under]():
        y = function.apply(x)
    with REGIONS[backward_under]():
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
    assert second.tolist() == [2.0] * 3
    assert {found for _, found in seen} == {state_in(forward_under)}


@forward_under
@backward_under
def test_double_backward(forward_under: str, backward_under: str) -> None:
    """F14: so does double_backward."""
    calls = []

    def double_backward(ctx: Any, gg: Tensor) -> Tensor:
        calls.append(state())
        return 2 * gg

    function, _ = watching(double_backward=double_backward)
    x = leaf(3)
    with REGIONS[forward_under]():
        y = function.apply(x)
    with REGIONS[backward_under]():
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
    assert second.tolist() == [2.0] * 3
    assert calls
    assert {*calls} == {state_in(forward_under)}


@forward_under
@backward_under
def test_double_backward_in_its_short_form(forward_under: str, backward_under: str) -> None:
    """F14: the short form is completed with backward, which is run once more for that, under the same state."""
    function, seen = watching(double_backward=lambda ctx, gg: 2 * gg)
    x = leaf(3)
    with REGIONS[forward_under]():
        y = function.apply(x)
    with REGIONS[backward_under]():
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        seen.clear()
        torch.autograd.grad(gradient.sum(), x)
    assert seen
    assert {*seen} == {("backward", state_in(forward_under))}


@forward_under
@backward_under
@pytest.mark.parametrize("companion", ["reference", "surrogate", "replay"])
def test_what_is_run_again(forward_under: str, backward_under: str, companion: str) -> None:
    """F14: a reference, a surrogate and forward itself are run again under the state of the call, and no other."""
    calls = []

    def again(x: Tensor) -> Tensor:
        calls.append(state())
        return x @ x

    class Gram(pullback.Function):
        keep_autocast = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = again(x)
            ctx.save_for_backward(x, 2 * x if companion == "replay" else x)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (_, twice) = ctx.saved_tensors
            half = twice / 2 if companion == "replay" else twice
            return (g @ half.mT + half.mT @ g).float()

    if companion != "replay":
        setattr(Gram, companion, staticmethod(again))
    x = leaf(3, 3)
    with REGIONS[forward_under]():
        y = Gram.apply(x)
        ones = torch.ones_like(x)
    with REGIONS[backward_under]():
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
    assert len(calls) > 1
    assert {*calls} == {state_in(forward_under)}
    torch.testing.assert_close(second, 2 * 3 * ones)  # the gradient is a sum of x's rows and columns


def test_nests() -> None:
    """F14: calls by keyword and with containers keep their state too."""
    states = []

    class Sum(pullback.Function):
        keep_autocast = True

        @staticmethod
        def forward(ctx: Any, tensors: list[Tensor], *, scale: float) -> dict[str, Tensor]:
            ctx.scale = scale
            return {"sum": (tensors[0] + tensors[1]) * scale}

        @staticmethod
        def backward(ctx: Any, grads: dict[str, Tensor]) -> Any:
            states.append(state())
            g = grads["sum"] * ctx.scale
            return [g, g], None

    x, y = leaf(3), leaf(3, seed=1)
    for _ in range(2):
        with autocast():
            total = Sum.apply([x, y], scale=2.0)["sum"]
        total.sum().backward()
    assert states == [state_in("bfloat16")] * 2
    assert x.grad is not None
    assert x.grad.tolist() == [4.0] * 3


@in_both_styles
def test_what_is_kept_cuts_nothing_off(write: Any) -> None:
    """F14: the state on ctx is no tensor and no number, so no second derivative is refused for it."""
    function = write(keep_autocast=True)
    x, w = leaf(4, 5), leaf(5, 3)
    y = function.apply(x, w, 2.0)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (due,) = torch.autograd.grad(plain(x, w, 2.0).sum(), x, create_graph=True)
    same = [torch.autograd.grad(found.sum(), x)[0] for found in (gradient, due)]
    torch.testing.assert_close(*same)
