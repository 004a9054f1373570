"""F9: a backward that leaves autograd can't hide; once_differentiable is a strict guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import pullback
from pullback.errors import HigherOrderError
from tests.transforms.derivatives import Draw, assert_exact, penalty
from tests.transforms.situations import Situation, each_situation, outcome


def numpy(tensor: Tensor) -> Any:
    """Return the values, out of autograd's sight."""
    return tensor.detach().numpy()


def tensor(array: Any) -> Tensor:
    """Return a tensor that shares an array's memory."""
    return torch.from_numpy(np.asarray(array))


def square(*, forward_in_numpy: bool, **companions: Any) -> Any:
    """Make x² with an opaque backward, and perhaps a forward that can't be followed either."""

    class OpaqueBackward(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return tensor(numpy(x) ** 2) if forward_in_numpy else x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return tensor(2 * numpy(ctx.saved_tensors[0]) * numpy(g))

    return type("OpaqueBackward", (OpaqueBackward,), {name: staticmethod(c) for name, c in companions.items()})


@each_situation
def test_nothing_to_follow(situation: Situation, draw: Draw) -> None:
    """F9: forward and backward in NumPy: each situation raises, at x = 0 too, where the gradient itself vanishes."""
    assert outcome(situation, square(forward_in_numpy=True), torch.square, draw) == "PB207"


@each_situation
def test_forward_serves(situation: Situation, draw: Draw) -> None:
    """F9, F10: where forward is made of PyTorch operations and agrees with backward, it supplies the derivative."""
    assert outcome(situation, square(forward_in_numpy=False), torch.square, draw) == "exact"


@each_situation
def test_reference_supplies_it(situation: Situation, draw: Draw) -> None:
    """F9: a reference supplies the derivative of an opaque backward."""
    function = square(forward_in_numpy=True, reference=lambda x: x * x)
    assert outcome(situation, function, torch.square, draw) == "exact"


@each_situation
def test_double_backward_supplies_it(situation: Situation, draw: Draw) -> None:
    """F9: double_backward supplies it."""
    function = square(forward_in_numpy=True, double_backward=lambda ctx, gg: 2 * gg)
    assert outcome(situation, function, torch.square, draw) == "exact"


@pytest.mark.parametrize("how", ["double_backward", "reference"])
def test_to_fourth_order(how: str, draw: Draw) -> None:
    """F7, F9: an opaque backward is right to the fourth order, by either."""
    companion: Callable[..., Tensor] = (lambda ctx, gg: 2 * gg) if how == "double_backward" else (lambda x: x * x)
    function = square(forward_in_numpy=True, **{how: companion})
    assert_exact(function.apply, torch.square, [draw.leaf(3)], order=4)
    assert_exact(lambda x: function.apply(x * 1.5), lambda x: (x * 1.5) ** 2, [draw.leaf(3)], order=4)


def test_the_error_says_what_to_do(draw: Draw) -> None:
    """F9: the text names class, argument and remedy, for grad() as for backward()."""
    x = draw.leaf(3)
    for ask in (lambda found: torch.autograd.grad(found, x), lambda found: found.backward()):
        with pytest.raises(HigherOrderError) as caught:
            ask(penalty(square(forward_in_numpy=True).apply(x), x))
        assert str(caught.value).splitlines() == [
            "PB207 the gradient of x that OpaqueBackward.backward returns is being differentiated, and autograd can't "
            "follow how it was computed.",
            "  expected: a result that is made from grad_output and the saved tensors by PyTorch operations",
            "  got: a tensor without a path to any grad_output",
            "  remedy: Write double_backward, or give a reference in plain PyTorch.",
        ]
        assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("saved", ["output", "nothing"])
def test_an_argument_that_was_not_saved(saved: str, draw: Draw) -> None:
    """F9: with its output saved, a guard lies on the way through it; with nothing saved, it raises at once."""

    class Exp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = tensor(np.exp(numpy(x)))
            if saved == "output":
                ctx.save_for_backward(y)
            ctx.y = numpy(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return tensor(ctx.y * numpy(g))

    leaf = draw.leaf(3)
    x = leaf * 1.5
    y = Exp.apply(x).sum() + (x**3).sum()
    if saved == "nothing":
        with pytest.raises(HigherOrderError, match=r"PB207 the gradient of x that Exp.backward returns"):
            torch.autograd.grad(y, leaf, create_graph=True)
        return
    (gradient,) = torch.autograd.grad(y, leaf, create_graph=True)
    torch.testing.assert_close(gradient.detach(), (1.5 * x.exp() + 4.5 * x**2).detach())
    with pytest.raises(HigherOrderError, match=r"PB207 the gradient of x that Exp.backward returns"):
        torch.autograd.grad(gradient.sum(), leaf)


def test_zeros_that_are_nobodys_value(draw: Draw) -> None:
    """F9: zeros made by PyTorch are constants: their derivative is zero, and nothing raises."""

    class Step(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(y)
            return x.sign() * y * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            (y,) = ctx.saved_tensors
            return y.new_zeros(y.shape), 2 * y * g

    x, y = draw.leaf(3), draw.leaf(3)
    loss = Step.apply(x, y).sum() + (x**3).sum()
    gradients = torch.autograd.grad(loss, [x, y], create_graph=True)
    found = torch.autograd.grad(sum(gradient.sum() for gradient in gradients), [x, y])
    torch.testing.assert_close(found, (6 * x, torch.full_like(y, 2.0)))


def test_one_of_two_arguments(draw: Draw) -> None:
    """F9: each gradient is judged by itself; the one that is not opaque can be differentiated."""

    class Half(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return tensor(numpy(x) ** 2 + numpy(y) ** 2)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return 2 * x * g, tensor(2 * numpy(y) * numpy(g))

    x, y = draw.leaf(3), draw.leaf(3)
    for_x, for_y = torch.autograd.grad(Half.apply(x, y).sum(), [x, y], create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(for_x.sum(), x)[0], torch.full((3,), 2.0, dtype=torch.float64))
    with pytest.raises(HigherOrderError, match=r"PB207 the gradient of y that Half.backward returns"):
        torch.autograd.grad(for_y.sum(), y)


def test_the_other_gradients_are_those_of_torch(draw: Draw) -> None:
    """F9: a guard is in nobody's way: what doesn't differentiate the gradient is right under create_graph."""
    x = draw.leaf(3)
    y = square(forward_in_numpy=True).apply(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), 2 * x.detach())
    torch.testing.assert_close(gradient.detach().sum() * 2, (4 * x.detach()).sum())


# -- Autograd inside backward ------------------------------------------------------------------------------------------


def recomputing(*, connected: bool, forward_in_numpy: bool, copy: bool = False) -> Any:
    """Make sin x with a backward that recomputes forward on a detached copy, with create_graph or without."""

    class Recomputing(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return tensor(np.sin(numpy(x))) if forward_in_numpy else x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            with torch.enable_grad():
                detached = ctx.saved_tensors[0].detach()
                x = (detached.clone() if copy else detached).requires_grad_()
                y = x.sin()
                return torch.autograd.grad(y, x, g, create_graph=connected)[0]

    return Recomputing


@each_situation
@pytest.mark.parametrize("connected", [False, True], ids=["detached", "create_graph"])
@pytest.mark.parametrize("copy", [False, True], ids=["same_memory", "clone"])
def test_recomputing_on_a_detached_copy(connected: bool, copy: bool, situation: Situation, draw: Draw) -> None:
    """F9: what is sent back to a detached copy goes no further: forward supplies it, or it raises."""
    followed = recomputing(connected=connected, copy=copy, forward_in_numpy=False)
    assert outcome(situation, followed, torch.sin, draw) == "exact"
    unfollowed = recomputing(connected=connected, copy=copy, forward_in_numpy=True)
    assert outcome(situation, unfollowed, torch.sin, draw) == "PB207"


def test_a_captured_parameter_is_no_detached_copy(draw: Draw) -> None:
    """F9: a leaf from outside, through which backward computes, is left alone."""
    weight = draw.leaf(3)

    class Captured(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x * weight

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * weight * g

    x = draw.leaf(3)
    found = torch.autograd.grad(penalty(Captured.apply(x), x), [x, weight])
    torch.testing.assert_close(found, torch.autograd.grad(penalty(x * x * weight, x), [x, weight]))


# -- once_differentiable -----------------------------------------------------------------------------------------------


def once(**companions: Any) -> Any:
    """Make x³ with a backward that is marked once_differentiable."""

    class Once(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * g

    return type("Once", (Once,), {name: staticmethod(c) for name, c in companions.items()})


@each_situation
def test_once_differentiable_is_strict(situation: Situation, draw: Draw) -> None:
    """F9: it raises in every situation, where PyTorch's own lets some through with a wrong number."""
    assert outcome(situation, once(), lambda x: x**3, draw) == "PB207"


@each_situation
@pytest.mark.parametrize("how", ["double_backward", "reference"])
def test_once_differentiable_with_a_companion(how: str, situation: Situation, draw: Draw) -> None:
    """F9: double_backward or a reference give the derivative that backward doesn't."""

    def double_backward(ctx: Any, gg: Tensor) -> Tensor:
        return 6 * ctx.saved_tensors[0] * gg

    companion = double_backward if how == "double_backward" else lambda x: x**3
    assert outcome(situation, once(**{how: companion}), lambda x: x**3, draw) == "exact"


def test_the_text_of_once_differentiable(draw: Draw) -> None:
    """F9: the error says that it is marked so, and what gives the second derivative."""
    x = draw.leaf(3)
    with pytest.raises(HigherOrderError) as caught:
        penalty(once().apply(x), x).backward()
    assert str(caught.value).splitlines() == [
        "PB207 Once.backward is marked once_differentiable, and its gradient is being differentiated.",
        "  expected: double_backward or a reference, which give the second derivative",
        "  got: neither",
        "  remedy: Write double_backward, give a reference, or don't ask for the second derivative.",
    ]


def test_once_differentiable_first_order(draw: Draw) -> None:
    """F9: first gradients are untouched, under create_graph too."""
    x = draw.leaf(3)
    for create_graph in (False, True):
        (gradient,) = torch.autograd.grad(once().apply(x).sum(), x, create_graph=create_graph)
        torch.testing.assert_close(gradient.detach(), 3 * x.detach() ** 2)


# -- nonlinear_backward ------------------------------------------------------------------------------------------------


def test_a_nonlinear_backward_is_differentiated_as_it_is(draw: Draw) -> None:
    """F9, F11: a backward that clips is what is differentiated; constants that it injects have no derivative."""

    class Clipped(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x + y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return (2 * ctx.saved_tensors[0] * g).clamp(-1, 1), torch.full_like(g, 0.5)

    x, y = draw.leaf(9), draw.leaf(9)
    loss = Clipped.apply(x, y).sum() + (y**3).sum()
    for_x, for_y = torch.autograd.grad(loss, [x, y], create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(for_x.sum(), x)[0], (2 * x < 1).to(x.dtype) * 2)
    torch.testing.assert_close(for_y.detach(), (0.5 + 3 * y**2).detach())
    torch.testing.assert_close(torch.autograd.grad(for_y.sum(), y)[0], 6 * y)


@pytest.mark.parametrize("forward", [lambda x: tensor(numpy(x) ** 2), torch.square], ids=["numpy", "torch"])
@pytest.mark.parametrize("steps", [16, 1e12], ids=["coarse", "fine"])
def test_a_nonlinear_backward_in_numpy_is_opaque(forward: Callable[[Tensor], Tensor], steps: float, draw: Draw) -> None:
    """F9: the declaration doesn't hide what autograd can't follow, nor is forward's derivative what is meant."""

    class Quantised(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return tensor(np.round(steps * 2 * numpy(ctx.saved_tensors[0]) * numpy(g)) / steps)

    x = draw.leaf(3)
    found = penalty(Quantised.apply(x), x) + (x**3).sum()
    with pytest.raises(HigherOrderError, match=r"PB207 the gradient of x that Quantised.backward returns"):
        torch.autograd.grad(found, x)


def test_low_precision_is_no_agreement() -> None:
    """F9: in bfloat16 an opaque straight-through gradient isn't taken for that of a rounding."""

    class Round(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.round()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return tensor(numpy(g.float())).bfloat16()

    x = torch.tensor([0.4, 1.7], dtype=torch.bfloat16, requires_grad=True)
    (gradient,) = torch.autograd.grad(Round.apply(x), x, x * 2, create_graph=True)
    with pytest.raises(HigherOrderError, match="PB207"):
        torch.autograd.grad(gradient.sum(), x)
