"""F15: no_grad, enable_grad and inference_mode, around calls and inside forward, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction

import pullback
from pullback.errors import HigherOrderError
from tests.surroundings.kind import Called, Kind, assert_right, derivatives
from tests.surroundings.kinds import KINDS, each_kind, each_on_torch

MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled(False)": lambda: torch.set_grad_enabled(False),
}

each_mode = pytest.mark.parametrize("mode", MODES)


def outputs(function: Called, leaves: list[Tensor]) -> list[Any]:
    """Return all outputs, with the same random numbers each time."""
    torch.manual_seed(3)
    result = function(*leaves)
    return list(result) if isinstance(result, tuple) else [result]


@each_mode
@each_kind
def test_values_without_a_graph(kind: Kind, mode: str) -> None:
    """Without grad the values are the formula's and nothing requires grad, on the first call and after others."""
    function = kind.function()
    for turn in range(3):
        with MODES[mode]():
            got = outputs(function, kind.draw(turn))
        expected = outputs(kind.formula, kind.draw(turn))
        for one, other in zip(got, expected, strict=False):
            torch.testing.assert_close(one, other.detach(), rtol=1e-12, atol=1e-12)
            assert not one.requires_grad
            assert one.grad_fn is None
            assert one.is_inference() == (mode == "inference_mode")
        derivatives(function, kind.draw(turn), once=kind.once)


@each_mode
@each_kind
def test_derivatives_after_a_first_call_without_grad(kind: Kind, mode: str) -> None:
    """What was learned without grad misleads no later call."""
    function = kind.function()
    with MODES[mode]():
        function(*kind.draw(9))
    assert_right(kind, lambda _: function)


@each_kind
def test_grad_enabled_again(kind: Kind) -> None:
    """A call in enable_grad within no_grad is differentiable, as anywhere."""

    def around(function: Called) -> Called:
        def called(*leaves: Tensor) -> Any:
            with torch.no_grad(), torch.enable_grad():
                return function(*leaves)

        return called

    assert_right(kind, around)


@each_on_torch
def test_inference_tensors_as_arguments(kind: Kind) -> None:
    """Inference tensors are taken, or refused by PyTorch's own error, as torch's own Function has it."""
    told = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        for inside in (False, True):
            with torch.inference_mode():
                leaves = [leaf.detach().clone() for leaf in kind.draw()]
            assert leaves[0].is_inference()
            try:
                with torch.inference_mode(inside):
                    told.append([(y.requires_grad, y.is_inference(), y.tolist()) for y in outputs(function, leaves)])
            except RuntimeError as error:
                told.append([str(error)])
    assert told[:2] == told[2:]


def mixed(base: Any) -> Called:
    """Apply a product to an inference tensor and one that requires grad."""
    function = KINDS["saves_inputs"].function(base)

    def called(x: Tensor) -> Any:
        with torch.inference_mode():
            fixed = torch.ones(4, dtype=torch.float64) * 2
        return function(x, fixed)

    return called


def test_an_inference_tensor_beside_one_that_requires_grad() -> None:
    """PyTorch refuses to save an inference tensor for backward; so does pullback, in its words, at each call."""
    errors = []
    for base in (TorchFunction, pullback.Function):
        called = mixed(base)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward") as caught:
                called(*KINDS["saves_output"].draw())
            errors.append(str(caught.value))
    assert len(set(errors)) == 1


def enables_grad(base: Any, detaches: bool) -> Any:
    """Make a Function that differentiates inside forward and keeps the gradient for backward."""

    class Derived(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                y = inner.sin() * inner
                (slope,) = torch.autograd.grad(y.sum(), inner)
            ctx.save_for_backward(x, slope)
            return y.detach() if detaches else y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

    return Derived


@pytest.mark.parametrize("detaches", [False, True])
def test_grad_enabled_inside_forward(detaches: bool) -> None:
    """A forward that takes its own gradient has the formula's first gradients; second ones are refused by name."""
    kind = Kind("derived", lambda base: enables_grad(base, detaches).apply, lambda x: x.sin() * x)
    assert_right(kind, lambda function: function, order=1)
    for _ in range(2):
        with pytest.raises(HigherOrderError, match=r"PB206 .*Derived.*where autograd can't follow"):
            derivatives(enables_grad(pullback.Function, detaches).apply, kind.draw())


def test_the_grad_mode_inside_forward_and_backward() -> None:
    """forward runs without grad; backward with it where a graph is asked for; neither changes the mode outside."""
    seen: list[bool] = []

    class Seen(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(torch.is_grad_enabled())
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            seen.append(torch.is_grad_enabled())
            return 2 * g * ctx.saved_tensors[0]

    for _ in range(2):
        seen.clear()
        (x,) = KINDS["saves_output"].draw()
        torch.autograd.grad(Seen.apply(x).sum(), x)
        assert seen == [False, False]
        seen.clear()
        torch.autograd.grad(Seen.apply(x).sum(), x, create_graph=True)
        assert seen[0] is False
        assert seen[1] is True
        assert torch.is_grad_enabled()


def test_second_derivatives_in_no_grad() -> None:
    """create_graph within no_grad is what the caller asks for: a graph of the gradient, in each kind."""
    for kind in KINDS.values():
        function = kind.function()
        for seed in range(2):
            results = []
            for called in (function, kind.formula):
                leaves = kind.draw(seed)
                total = outputs(called, leaves)[0].sum()
                with torch.no_grad():
                    firsts = torch.autograd.grad(total, leaves, create_graph=True)
                loss = torch.stack([(g**3).sum() for g in firsts]).sum()
                results.append(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
            for one, other in zip(*results, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
