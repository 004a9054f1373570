"""F7: double_backward, the vjp of backward, in its short and its general form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import GradientError, HigherOrderError
from tests.tracebacks import files, is_pullbacks
from tests.transforms.derivatives import Draw, assert_exact, penalty


def numpy(tensor: Tensor) -> Any:
    """Return the values, out of autograd's sight."""
    return tensor.detach().numpy()


class OpaqueCube(pullback.Function):
    """x³ with a backward in NumPy, and the short form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(3 * np.square(numpy(ctx.saved_tensors[0])) * numpy(g)))

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> Tensor:
        return 6 * ctx.saved_tensors[0] * gg


class Pair(pullback.Function):
    """(x²y, x + sin y), two arguments and two outputs, opaque, in the general form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        return x * x * y, x + y.sin()

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        x, y = map(numpy, ctx.saved_tensors)
        a, b = numpy(a), numpy(b)
        return torch.from_numpy(2 * x * y * a + b), torch.from_numpy(x * x * a + np.cos(y) * b), None

    @staticmethod
    def double_backward(ctx: Any, ggx: Tensor, ggy: Tensor, _: None = None) -> tuple[Tensor | None, ...]:
        (x, y), (a, b) = ctx.saved_tensors, ctx.grad_outputs
        for_a, for_b = 2 * x * y * ggx + x * x * ggy, ggx + y.cos() * ggy
        for_x, for_y = 2 * y * a * ggx + 2 * x * a * ggy, 2 * x * a * ggx - y.sin() * b * ggy
        return for_a, for_b, for_x, for_y, None


class NamedPair(Pair):
    """The same, by name."""

    @staticmethod
    def double_backward(ctx: Any, *given: Tensor) -> dict[str, Any]:
        for_a, for_b, for_x, for_y, _ = Pair.double_backward(ctx, *given)
        return {"y": for_y, "x": for_x, "grad_outputs": (for_a, for_b)}


def pair(x: Tensor, y: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the formula of Pair."""
    return x * x * y, x + y.sin()


@pytest.mark.parametrize("inside", [False, True], ids=["leaf", "inside"])
@pytest.mark.parametrize("shape", [(3,), (), (0,), (2, 3)], ids=str)
def test_short_form_to_fourth_order(shape: tuple[int, ...], inside: bool, draw: Draw) -> None:
    """F7: one returned tensor is f''(x) times what was received; it is differentiated in turn, to the fourth order."""

    def around(cube: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: cube(x * 1.5) if inside else cube(x)

    assert_exact(around(OpaqueCube.apply), around(lambda x: x**3), [draw.leaf(*shape)], order=4)


@pytest.mark.parametrize("function", [Pair, NamedPair])
@pytest.mark.parametrize("only", [None, 0, 1])
@pytest.mark.parametrize("rest", [(), (1.0,)], ids=["default_left_out", "default_given"])
def test_general_form_to_fourth_order(function: Any, only: int | None, rest: Any, draw: Draw) -> None:
    """F7: several arguments and outputs, by position or by name, with every output used or one of them."""

    def chosen(inner: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
        return lambda x, y: inner(x, y * 1.0, *rest) if only is None else inner(x, y * 1.0, *rest)[only]

    assert_exact(chosen(function.apply), chosen(pair), [draw.leaf(3), draw.leaf(3)], order=4)


def test_cotangents_that_require_grad(draw: Draw) -> None:
    """F7: the gradient for grad_output is completed by linearity, whatever the cotangent is."""
    x, v = draw.leaf(3), draw.leaf(3, low=-1.0)

    def pulled(cube: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda x, v: torch.autograd.grad(cube(x), x, v.sin(), create_graph=True)[0]

    assert_exact(pulled(OpaqueCube.apply), pulled(lambda x: x**3), [x, v], order=3)


def test_what_double_backward_sees(draw: Draw) -> None:
    """F7: ctx has saved_tensors, needs_input_grad and grad_outputs; each argument has an entry, or None."""
    seen: list[Any] = []

    class Scaled(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, k: float, index: Tensor, y: Tensor, fixed: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            ctx.k = k
            return k * x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            x, y = ctx.saved_tensors
            return ctx.k * g * y, None, None, ctx.k * g * x, None

        @staticmethod
        def double_backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
            seen.append((ctx.needs_input_grad, ctx.grad_outputs, ctx.saved_tensors, given))
            x, y = ctx.saved_tensors
            (g,) = ctx.grad_outputs
            ggx, _, _, ggy, _ = given
            assert ggx is not None
            assert ggy is not None
            return ctx.k * (ggx * y + ggy * x), ctx.k * g * ggy, None, None, ctx.k * g * ggx, None

    x, y, fixed, index = draw.leaf(3), draw.leaf(3), draw.constant(3), torch.tensor([0, 1])
    v = draw.constant(3)
    (gx,) = torch.autograd.grad(Scaled.apply(x, 2.0, index, y, fixed), x, v, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(gx.sum(), y)[0], 2 * v)
    ((needs, outputs, saved, given),) = seen
    assert needs == (True, False, False, True, False)
    assert [tuple(map(type, group)) for group in (outputs, saved)] == [(Tensor,), (Tensor, Tensor)]
    torch.testing.assert_close(outputs[0], v)
    assert [entry is None for entry in given] == [False, True, True, False, True]
    torch.testing.assert_close(given[3], torch.zeros(3, dtype=torch.float64))  # nothing came for y: zeros


@pytest.mark.parametrize("materialize", [True, False])
def test_unmaterialized_gradients(materialize: bool, draw: Draw) -> None:
    """F7: with set_materialize_grads(False), what didn't come is None, in double_backward too."""
    seen: list[Any] = []

    class Two(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(materialize)
            ctx.save_for_backward(x, y)
            return x * x, y * y

        @staticmethod
        def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> tuple[Tensor | None, ...]:
            x, y = ctx.saved_tensors
            return None if a is None else 2 * x * a, None if b is None else 2 * y * b

        @staticmethod
        def double_backward(ctx: Any, ggx: Tensor | None, ggy: Tensor | None) -> tuple[Tensor | None, ...]:
            seen.append((ctx.grad_outputs, ggx, ggy))
            x, y = ctx.saved_tensors
            a, b = ctx.grad_outputs
            for_a, for_x = (None, None) if ggx is None or a is None else (2 * x * ggx, 2 * a * ggx)
            for_b, for_y = (None, None) if ggy is None or b is None else (2 * y * ggy, 2 * b * ggy)
            return for_a, for_b, for_x, for_y

    x, y = draw.leaf(3), draw.leaf(3)
    out = Two.apply(x, y)[0]
    (gx,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(gx.sum(), x)[0], torch.full((3,), 2.0, dtype=torch.float64))
    (outputs, _, ggy) = seen[-1]
    assert (outputs[1] is None, ggy is None) == (not materialize, not materialize)


def test_linear_in_what_the_graph_does_not_lead_to(draw: Draw) -> None:
    """F7: an argument that was not saved is in nobody's way, if double_backward sends nothing to it."""

    class Shift(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x + 3 * b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return 2 * ctx.saved_tensors[0] * g, 3 * g

        @staticmethod
        def double_backward(ctx: Any, ggx: Tensor, ggb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return 2 * ctx.saved_tensors[0] * ggx + 3 * ggb, 2 * ctx.grad_outputs[0] * ggx, torch.zeros_like(ggb)

    def around(shift: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, b: shift(x * 1.5, b * 0.5)

    assert_exact(around(Shift.apply), around(lambda x, b: x * x + 3 * b), [draw.leaf(3), draw.leaf(3)])


def test_an_argument_out_of_reach_is_named(draw: Draw) -> None:
    """F7: a gradient that would be sent to an argument without a way back to it raises, and says what to save."""

    class Sine(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.sin(), x.cos())
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Tensor:
            return -ctx.saved_tensors[0] * gg

    leaf = draw.leaf(3)
    torch.testing.assert_close(
        torch.autograd.grad(penalty(Sine.apply(leaf), leaf), leaf)[0], -2 * leaf.sin() * leaf.cos()
    )
    x = draw.inner(3)
    with pytest.raises(HigherOrderError, match=r"PB206 .*gradients of Sine .*argument x was not saved") as caught:
        penalty(Sine.apply(x), x)
    assert "remedy: Save it: ctx.save_for_backward(x, …)." in str(caught.value)


WRONG: dict[str, tuple[Any, str]] = {
    "too_few": (lambda gg, other: (gg,), "1 entries"),
    "too_many": (lambda gg, other: (gg, gg, gg, gg), "4 entries"),
    "list": (lambda gg, other: [gg, gg, gg], "list"),
    "none": (lambda gg, other: None, "NoneType"),
    "number": (lambda gg, other: (gg, gg, 2.0), "an entry of type float"),
    "short_form": (lambda gg, other: gg, "one tensor, which is legal for one real tensor argument"),
    "unknown_name": (lambda gg, other: {"grad_outputs": gg, "z": gg}, "a dict with the unknown name 'z'"),
    "no_grad_outputs": (lambda gg, other: {"x": gg, "y": gg}, "a dict without an entry for grad_outputs"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_unusable_returns(case: tuple[Any, str], draw: Draw) -> None:
    """F7: what can't be the gradients raises PB220, with what is due and what came; PyTorch's handlers catch it."""
    returned, text = case

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return g * y, g * x

        @staticmethod
        def double_backward(ctx: Any, ggx: Tensor, ggy: Tensor) -> Any:
            return returned(ggx, ggy)

    x, y = draw.leaf(3), draw.leaf(3)
    found = penalty(Product.apply(x, y), x)
    with pytest.raises(GradientError, match=r"PB220 Product.double_backward returned what can't be its") as caught:
        torch.autograd.grad(found, x)
    assert isinstance(caught.value, RuntimeError)
    assert "expected: 3 entries: one for each of 1 grad_outputs, then one for each of x, y; or a dict" in str(
        caught.value
    )
    assert f"got: {text}" in str(caught.value)
    assert str(caught.value).endswith(
        'remedy: Return a tuple of gradients, (grad_output, x, y), or a dict: {"grad_outputs": …, "x": …, "y": …}.'
    )
    assert not any(map(is_pullbacks, files(caught.value)))


def test_short_form_is_refused_for_complex_numbers(draw: Draw) -> None:
    """F7: the short form is legal for real dtypes alone."""

    class Square(pullback.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0].conj() * g

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Tensor:
            return 2 * gg

    z = draw.leaf(3, dtype=torch.complex128)
    (gradient,) = torch.autograd.grad(Square.apply(z).abs().sum(), z, create_graph=True)
    with pytest.raises(GradientError, match=r"PB220 .*\n.*\n  got: one tensor, which is legal for one real tensor"):
        torch.autograd.grad(gradient.abs().sum(), z)


def test_a_backward_that_returns_nothing(draw: Draw) -> None:
    """F7: with None for each argument there is nothing to differentiate, and no error."""

    class Severed(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> None:
            return None

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> tuple[None, None]:
            raise AssertionError("there is nothing to differentiate")

    x = draw.leaf(3)
    loss = Severed.apply(x).sum() + (x**3).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x)[0], 6 * x)


def test_an_error_of_the_author_is_passed_on(draw: Draw) -> None:
    """F7: what double_backward raises reaches the user as it is."""

    class Fails(OpaqueCube):
        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Tensor:
            raise ZeroDivisionError("inside double_backward")

    x = draw.leaf(3)
    with pytest.raises(ZeroDivisionError, match="inside double_backward"):
        torch.autograd.grad(penalty(Fails.apply(x), x), x)


def test_an_opaque_double_backward_is_guarded(draw: Draw) -> None:
    """F9: a double_backward in NumPy is right to second order, and raises where a third is asked for."""

    class Opaque(OpaqueCube):
        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> tuple[Tensor, Tensor]:
            x, (g,) = numpy(ctx.saved_tensors[0]), map(numpy, ctx.grad_outputs)
            return torch.from_numpy(3 * x * x * numpy(gg)), torch.from_numpy(6 * x * g * numpy(gg))

    assert_exact(Opaque.apply, lambda x: x**3, [draw.leaf(3)], order=2)
    x = draw.leaf(3)
    (second,) = torch.autograd.grad(penalty(Opaque.apply(x), x), x, create_graph=True)
    with pytest.raises(HigherOrderError, match=r"PB207 the gradient of x that Opaque.double_backward returns is being"):
        torch.autograd.grad(second.sum(), x)
    (gradient,) = torch.autograd.grad(Opaque.apply(x), x, draw.leaf(3), create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x, create_graph=True)
    with pytest.raises(HigherOrderError, match=r"PB207 the gradient .*Opaque.double_backward returns"):
        second.sum().backward()


def test_intermediates_that_double_backward_reads(draw: Draw) -> None:
    """F8: third order is exact where double_backward reads a saved intermediate, by a replay of forward."""

    class Sinh(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            e, n = x.exp(), (-x).exp()
            ctx.save_for_backward(x, e, n)
            return (e - n) / 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            _, e, n = ctx.saved_tensors
            return g * (e + n) / 2

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Tensor:
            _, e, n = ctx.saved_tensors
            return gg * (e - n) / 2

    assert_exact(Sinh.apply, torch.sinh, [draw.leaf(3)], order=4)
    assert_exact(lambda x: Sinh.apply(x * 1.5), lambda x: (x * 1.5).sinh(), [draw.leaf(3)], order=4)
