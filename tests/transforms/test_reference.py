"""F10: a reference supplies higher orders: all of them, and never on other values than forward's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError
from tests.transforms.derivatives import Draw, assert_exact, penalty


def made(forward: Callable[..., Any], backward: Callable[..., Any], *, name: str = "Made", **companions: Any) -> Any:
    """Make a Function of its parts."""
    methods = {"forward": forward, "backward": backward, **companions}
    body = {key: staticmethod(part) if callable(part) else part for key, part in methods.items()}
    return type(name, (pullback.Function,), body)


@pytest.mark.parametrize("inside", [False, True], ids=["leaf", "inside"])
def test_the_reference_is_followed_to_fourth_order(inside: bool, draw: Draw) -> None:
    """F10: with several arguments and outputs, numbers and defaults among them, the reference supplies every order."""

    class Mixed(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, power: int, y: Tensor, scale: float = 2.0) -> Any:
            ctx.save_for_backward(x, y)
            ctx.power, ctx.scale = power, scale
            return tensor(scale * numpy(x) ** power), tensor(numpy(x) * numpy(y)), tensor(np.argsort(numpy(x)))

        @staticmethod
        def backward(ctx: Any, a: Tensor, b: Tensor, _: Tensor) -> tuple[Any, ...]:
            (x, y), p = map(numpy, ctx.saved_tensors), ctx.power
            for_x = ctx.scale * p * x ** (p - 1) * numpy(a) + y * numpy(b)
            return tensor(for_x), None, tensor(x * numpy(b)), None

        @staticmethod
        def reference(x: Tensor, power: int, y: Tensor, scale: float = 2.0) -> Any:
            return scale * x**power, x * y, x.argsort()

    def called(function: Callable[..., Any], *rest: float) -> Callable[..., Any]:
        factor = 1.5 if inside else 1.0
        return lambda x, y: function(x * factor if inside else x, 3, y * factor if inside else y, *rest)

    leaves = [draw.leaf(3), draw.leaf(3)]
    for rest in ((), (0.5,), (-1.0,)):
        assert_exact(called(Mixed.apply, *rest), called(Mixed.reference, *rest), leaves, order=4)


def numpy(value: Tensor) -> Any:
    """Return the values, out of autograd's sight."""
    return value.detach().numpy()


def tensor(array: Any) -> Tensor:
    """Return a tensor that shares an array's memory."""
    return torch.from_numpy(np.asarray(array))


def test_first_order_values_are_backwards(draw: Draw) -> None:
    """F10: under create_graph the values are those of backward, not of the reference."""

    class Approximate(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * g * (1 + 2**-40)

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x**3

    x = draw.leaf(3)
    y = Approximate.apply(x).sum()
    (plain,) = torch.autograd.grad(y, x, retain_graph=True)
    (connected,) = torch.autograd.grad(y, x, create_graph=True)
    assert torch.equal(plain, connected)


@pytest.mark.parametrize("outputs", [1, 3])
def test_another_number_of_outputs(outputs: int, draw: Draw) -> None:
    """F10: a reference with another number of outputs raises PB219, which says how many are due."""

    def reference(x: Tensor) -> Any:
        return (x, x, x)[:outputs]

    function = made(lambda ctx, x: (x * 1, x * 2), lambda ctx, a, b: a + 2 * b, reference=reference)
    x = draw.leaf(3)
    with pytest.raises(HigherOrderError, match=rf"PB219 the reference of Made returned {outputs} outputs") as caught:
        torch.autograd.grad(function.apply(x)[0].sum(), x, create_graph=True)
    assert f"expected: 2, as forward has\n  got: {outputs}" in str(caught.value)


def test_a_reference_that_leaves_autograd(draw: Draw) -> None:
    """F10: a reference that doesn't depend on an argument for which backward has a gradient is no reference."""
    function = made(
        lambda ctx, x: x**2,
        lambda ctx, g: g * 2,
        reference=lambda x: x.detach() ** 2,
    )
    x = draw.leaf(3)
    loss = function.apply(x).sum() + (x**3).sum()
    with pytest.raises(
        HigherOrderError, match=r"PB207 the gradient of x that Made.backward .* the reference doesn't"
    ) as e:
        torch.autograd.grad(penalty(loss, x), x)
    assert "without detach" in str(e.value)


def test_an_error_in_the_reference_is_passed_on(draw: Draw) -> None:
    """F10: what the reference raises reaches the user as it is."""

    def reference(x: Tensor) -> Tensor:
        raise ArithmeticError("inside the reference")

    function = made(lambda ctx, x: x * 2, lambda ctx, g: g * 2, reference=reference)
    x = draw.leaf(3)
    with pytest.raises(ArithmeticError, match="inside the reference"):
        torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)


def test_an_unsaved_leaf_that_was_changed(draw: Draw) -> None:
    """F10: a leaf that wasn't saved and was changed since forward isn't taken for what it was."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        e = x.exp()
        ctx.save_for_backward(e)
        return e * 1

    function = made(forward, lambda ctx, g: g * ctx.saved_tensors[0], reference=lambda x: x.exp())
    x = draw.leaf(3)
    with torch.no_grad():
        x.mul_(1.0)  # a leaf that was changed before the call is as good as any
    torch.testing.assert_close(torch.autograd.grad(penalty(function.apply(x), x), x)[0], 2 * (2 * x).exp())
    y = function.apply(x)
    with torch.no_grad():
        x.add_(1)
    found = penalty(y, x)
    with pytest.raises(HigherOrderError, match=r"PB203 .*or x, not being saved, has changed since forward") as caught:
        torch.autograd.grad(found, x)
    assert "remedy: Correct backward or the reference; save x." in str(caught.value)


@pytest.mark.parametrize("role", ["reference", "surrogate"])
def test_a_reference_of_another_function(role: str, draw: Draw) -> None:
    """F10, F11: a derivative isn't taken from a function whose gradient isn't the one that it is to differentiate."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    function = made(forward, lambda ctx, g: 2 * g * ctx.saved_tensors[0], **{role: lambda x: x**3})
    x = draw.leaf(3)
    found = penalty(function.apply(x), x)
    with pytest.raises(
        HigherOrderError, match=rf"PB203 .*through the {role}, whose gradient is another one\."
    ) as caught:
        torch.autograd.grad(found, x)
    assert f"remedy: Correct backward or the {role}." in str(caught.value)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_gradients_that_cancel(draw: Draw, scale: float) -> None:
    """F10: what rounding leaves of a gradient that is 0 differs from the reference's, and neither is wrong.

    Where it isn't rounding, a gradient as small is still compared.
    """

    def made_with(residue: float) -> Any:
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.softmax(-1)

        def backward(ctx: Any, g: Tensor) -> Tensor:
            s = ctx.saved_tensors[0].softmax(-1)
            return s * (g - (g * s).sum(-1, keepdim=True)) + residue

        return made(forward, backward, reference=lambda x: x.softmax(-1))

    def second(residue: float) -> Tensor:
        x = draw.leaf(4, 3).detach().float().requires_grad_()
        total = (scale * made_with(residue * scale).apply(x)).sum()  # which is 4, whatever x is
        (gradient,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad((gradient * torch.arange(3)).sum(), x)[0]

    assert float(second(1e-7).abs().max()) < 1e-5 * scale
    with pytest.raises(HigherOrderError, match="PB203"):
        second(1e-3)


def test_a_reference_that_draws_other_random_numbers(draw: Draw) -> None:
    """F10: a generator among the arguments can't be wound back: the other mask is noticed, not differentiated."""
    generator = torch.Generator().manual_seed(0)

    def masked(x: Tensor, g: torch.Generator) -> Tensor:
        return x**3 * (torch.rand(x.shape, generator=g) < 0.5)

    def forward(ctx: Any, x: Tensor, g: torch.Generator) -> Tensor:
        y = masked(x, g)
        ctx.save_for_backward(x, y != 0)
        return y

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, kept = ctx.saved_tensors
        return grad * 3 * x * x * kept, None

    function = made(forward, backward, reference=masked)
    x = draw.leaf(32)
    with pytest.raises(HigherOrderError, match=r"PB203 .*through the reference, whose gradient is another one"):
        torch.autograd.grad(penalty(function.apply(x, generator), x), x)


def test_an_unsaved_leaf_that_was_changed_before_a_replay(draw: Draw) -> None:
    """F10: a replay on other values than forward's is noticed by what it saves."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.exp())
        return x.exp()

    function = made(forward, lambda ctx, g: g * ctx.saved_tensors[0])
    x = draw.leaf(3)
    y = function.apply(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(HigherOrderError, match="PB221 Made: saved tensor 0 differs when forward is run again"):
        torch.autograd.grad(penalty(y, x), x)


@pytest.mark.parametrize(
    "cut", [lambda x: x.detach().cos(), lambda x: tensor(np.cos(numpy(x)))], ids=["detach", "numpy"]
)
def test_backward_is_no_stand_in_for_a_reference_that_cannot_run(cut: Callable[[Tensor], Tensor], draw: Draw) -> None:
    """F9, F10: where a reference was given and can't run, a backward that cuts off a saved tensor raises."""

    def forward(ctx: Any, x: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin() + b

    function = made(forward, lambda ctx, g: (g * cut(ctx.saved_tensors[0]), g), reference=lambda x, b: x.sin() + b)
    x, b = draw.leaf(3), draw.inner(3)
    with pytest.raises(HigherOrderError, match=r"PB207 .*the reference can't be run, as b was not saved"):
        torch.autograd.grad(penalty(function.apply(x, b) + x**3, x), x)


def test_a_sound_backward_stands_in_for_a_reference_that_cannot_run(draw: Draw) -> None:
    """F10: where it cuts off nothing, backward itself serves, with masks and what else is flat."""

    def forward(ctx: Any, x: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu() ** 2 + b

    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * 2 * x * (x.detach() > 0).to(x.dtype), g

    function = made(forward, backward, reference=lambda x, b: x.relu() ** 2 + b)
    leaves = [draw.leaf(3), draw.leaf(3)]
    assert_exact(lambda x, b: function.apply(x * 1.5, b * 1.5), lambda x, b: (x * 1.5).relu() ** 2 + b * 1.5, leaves)
