"""F16: custom_vjp by plain autograd: values, gradients to second order, what fwd and bwd are given and may return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import DefinitionError, GradientError, HigherOrderError, MissingMethodError
from tests.custom.rules import by_vjp, drawn, number, orders, plain, same


def test_the_derivative_is_the_rules() -> None:
    """The gradient is what bwd returns, whatever the function's own derivative is."""

    @pullback.custom_vjp
    def square(x: Tensor) -> Tensor:
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, g: (7 * g,))
    x = number(3.0)
    (gradient,) = torch.autograd.grad(square(x), x)
    assert (square(x).item(), gradient.item()) == (9.0, 7.0)


def test_second_order_differentiates_residuals_too() -> None:
    """bwd is differentiated with respect to the cotangent and, through fwd, to what the residuals were made of."""
    leaves = drawn(3, seed=1), drawn(3, seed=2)
    same(orders(by_vjp(), leaves), orders(plain, leaves))


def test_second_order_needs_an_argument_that_can_be_had() -> None:
    """A residual that was computed from a tensor that nobody kept can't be differentiated: a named error, not zero."""
    product, x, y = by_vjp(), number(0.7), number(2.0)
    result = product(x * 1.0, y)
    with pytest.raises(HigherOrderError, match=r"PB206 the gradient of x that product.backward returns"):
        torch.autograd.grad(result, x, create_graph=True)


def test_third_order() -> None:
    """A rule made of operations on arguments has all orders."""

    @pullback.custom_vjp
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))
    x = number(2.0)
    value: Tensor = cube(x)
    seen = [value.item()]
    for _ in range(3):
        (value,) = torch.autograd.grad(value, x, create_graph=True)
        seen.append(value.item())
    assert seen == [8.0, 12.0, 12.0, 6.0]


def test_fwd_runs_where_something_is_differentiated_and_the_function_elsewhere() -> None:
    """Without a gradient to come, the function itself runs; else fwd, once."""
    ran: list[str] = []

    @pullback.custom_vjp
    def double(x: Tensor) -> Tensor:
        ran.append("f")
        return 2 * x

    def fwd(x: Tensor) -> Any:
        ran.append("fwd")
        return 2 * x, None

    double.defvjp(fwd, lambda _, g: (2 * g,))
    x = number(1.0)
    with torch.no_grad():
        double(x)
    double(x.detach())
    assert ran == ["f", "f"]
    double(x)
    assert ran == ["f", "f", "fwd"]


def test_residuals_are_any_nest() -> None:
    """Tensors, numbers, strings, None and functions come back in the structure in which fwd returned them."""
    seen: list[Any] = []

    @pullback.custom_vjp
    def scale(x: Tensor, factor: float) -> Tensor:
        return x * factor

    def fwd(x: Tensor, factor: float) -> Any:
        return x * factor, {"factor": factor, "rest": [None, ("name", len)], "x": (x,), "shape": x.shape}

    def bwd(residuals: Any, g: Tensor) -> Any:
        seen.append(residuals)
        return g * residuals["factor"], None

    scale.defvjp(fwd, bwd)
    x = drawn(2)
    (gradient,) = torch.autograd.grad(scale(x, 3.0).sum(), x)
    assert gradient.tolist() == [3.0, 3.0]
    (residuals,) = seen
    assert list(residuals) == ["factor", "rest", "x", "shape"]
    assert residuals["x"][0] is x
    assert (residuals["factor"], residuals["rest"], residuals["shape"]) == (3.0, [None, ("name", len)], (2,))


def test_residual_tensors_are_saved_where_pytorch_watches() -> None:
    """Saved-tensor hooks see the tensors among the residuals, and a later write to one of them raises."""
    product, x, y = by_vjp(), drawn(3), drawn(3, seed=1)
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        product(x, y)
    assert len(packed) == 3
    factor = y * 1.0
    result = product(x, factor)
    factor.add_(1)
    with pytest.raises(pullback.errors.SavedTensorError, match=r"PB301 saved tensor 2 of product \(argument y\)"):
        result.sum().backward()


def test_an_output_or_argument_may_be_a_residual() -> None:
    """What fwd returns may be what it keeps, with exact second derivatives."""

    @pullback.custom_vjp
    def exp(x: Tensor) -> Tensor:
        return torch.exp(x)

    def fwd(x: Tensor) -> Any:
        result = torch.exp(x)
        return result, result

    exp.defvjp(fwd, lambda result, g: (result * g,))
    x = drawn(3)
    same(orders(lambda x: exp(x * 2), [x]), orders(lambda x: torch.exp(x * 2), [x]))


def test_identity_may_return_its_argument() -> None:
    """A function that returns its argument, as a gradient hook does, works."""

    @pullback.custom_vjp
    def reverse(x: Tensor) -> Tensor:
        return x

    reverse.defvjp(lambda x: (x, None), lambda _, g: (-g,))
    x = number(2.0)
    (gradient,) = torch.autograd.grad(reverse(x) * 5, x)
    assert gradient.item() == -5.0


@pytest.mark.parametrize(
    "form",
    [
        lambda gx, gy: (gx, gy),
        lambda gx, gy: [gx, gy],
        lambda gx, gy: (gx, gy, None),
        lambda gx, gy: {"y": gy, "x": gx},
    ],
    ids=["tuple", "list", "more Nones", "dict"],
)
def test_gradients_by_position_or_by_name(form: Any) -> None:
    """bwd returns one gradient for each argument: in a tuple or list, or in a dict by name."""

    @pullback.custom_vjp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    product.defvjp(lambda x, y: (x * y, (x, y)), lambda kept, g: form(kept[1] * g, kept[0] * g))
    x, y = number(2.0), number(5.0)
    gradients = torch.autograd.grad(product(x, y), (x, y))
    assert [gradient.item() for gradient in gradients] == [5.0, 2.0]


def test_none_is_zero() -> None:
    """None for a gradient is zero, and a single argument needs no tuple."""

    @pullback.custom_vjp
    def first(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    first.defvjp(lambda x, y: (x * y, y), lambda y, g: (y * g, None))
    x, y = number(2.0), number(5.0)
    gx, gy = torch.autograd.grad(first(x, y), (x, y), materialize_grads=True)
    assert (gx.item(), gy.item()) == (5.0, 0.0)


def test_a_bare_gradient_is_that_of_the_only_argument() -> None:
    """With one argument, bwd may return its gradient without a tuple."""

    @pullback.custom_vjp
    def triple(x: Tensor) -> Tensor:
        return 3 * x

    triple.defvjp(lambda x: (3 * x, ()), lambda _, g: 3 * g)
    x = number(1.0)
    (gradient,) = torch.autograd.grad(triple(x), x)
    assert gradient.item() == 3.0


def test_a_wrong_number_of_gradients_is_counted() -> None:
    """The error says how many gradients were due, and for which arguments."""

    @pullback.custom_vjp
    def product(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x * y * z

    product.defvjp(lambda x, y, z: (x * y * z, x), lambda x, g: (g, g))
    x = number(1.0)
    with pytest.raises(GradientError) as caught:
        product(x, x, x).backward()
    text = str(caught.value)
    assert "PB201 the bwd of product returned an incorrect number of gradients (expected 3, got 2)." in text
    assert "expected: (x, y, z)" in text
    assert "got: 2 entries" in text
    assert "remedy: Return one gradient for each of x, y, z, None for zero; or a dict by name." in text


def test_an_unknown_name_is_an_error() -> None:
    """A dict of gradients may name nothing but arguments."""

    @pullback.custom_vjp
    def double(x: Tensor) -> Tensor:
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: {"z": g})
    with pytest.raises(GradientError, match=r"PB218 the bwd of double returned a gradient for 'z'"):
        double(number(1.0)).backward()


def test_fwd_returns_a_pair() -> None:
    """fwd that forgets the residuals is told what to return."""

    @pullback.custom_vjp
    def double(x: Tensor) -> Tensor:
        return 2 * x

    double.defvjp(lambda x: 2 * x, lambda _, g: (2 * g,))
    with pytest.raises(GradientError) as caught:
        double(number(1.0))
    text = str(caught.value)
    assert "PB202 the fwd of double returned something else than a pair." in text
    assert "expected: (result, residuals)" in text
    assert "got: Tensor" in text


def test_several_outputs() -> None:
    """The cotangent is a tuple like the result, zeros for an output that wasn't used."""
    seen: list[Any] = []

    @pullback.custom_vjp
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sin(x), torch.cos(x)

    def bwd(x: Tensor, cotangent: Any) -> Any:
        seen.append(cotangent)
        return (torch.cos(x) * cotangent[0] - torch.sin(x) * cotangent[1],)

    both.defvjp(lambda x: (both(x), x), bwd)
    x = drawn(3)
    same(
        orders(lambda x: torch.stack(both(x)), [x]),
        orders(lambda x: torch.stack((torch.sin(x), torch.cos(x))), [x]),
    )
    seen.clear()
    both(x)[1].sum().backward()
    (cotangent,) = seen
    assert type(cotangent) is tuple
    assert [part.tolist() for part in cotangent] == [[0.0] * 3, [1.0] * 3]


def test_integer_outputs_have_no_gradient() -> None:
    """An output of integers is returned and not differentiated."""

    @pullback.custom_vjp
    def sort(x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = torch.sort(x)
        return values, order

    def fwd(x: Tensor) -> Any:
        values, order = torch.sort(x)
        return (values, order), order

    sort.defvjp(fwd, lambda order, g: (torch.zeros_like(g[0]).scatter(0, order, g[0]),))
    x = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    values, order = sort(x)
    assert (values.requires_grad, order.requires_grad) == (True, False)
    (values * torch.arange(3)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, 1.0]


def test_called_before_its_derivative_is_given() -> None:
    """PB112: a call before defvjp says what to call."""

    @pullback.custom_vjp
    def double(x: Tensor) -> Tensor:
        return 2 * x

    with pytest.raises(MissingMethodError) as caught:
        double(torch.ones(1))
    text = str(caught.value)
    assert "PB112 double is called, and it has no derivative yet." in text
    assert "expected: double.defvjp(fwd, bwd) before the first call" in text
    assert "got: no defvjp" in text
    assert "remedy: Call double.defvjp(fwd, bwd) after the function's definition." in text


def test_rules_that_can_never_be_called() -> None:
    """PB111: a fwd or bwd with other parameters than it will be called with is refused by defvjp."""

    @pullback.custom_vjp(nondiff_argnums=(0,))
    def power(n: int, x: Tensor) -> Tensor:
        return x**n

    right: Any = lambda n, x: (x**n, x)  # noqa: E731  # one line beside its use
    with pytest.raises(DefinitionError) as caught:
        power.defvjp(lambda x: (x, x), lambda n, x, g: (g,))
    assert "PB111 the fwd of power can't take what it is called with." in str(caught.value)
    assert "expected: the arguments of power(n, x)" in str(caught.value)
    assert "remedy: Write fwd(n, x)." in str(caught.value)
    with pytest.raises(DefinitionError) as caught:
        power.defvjp(right, lambda x, g: (g,))
    assert "PB111 the bwd of power can't take what it is called with." in str(caught.value)
    assert "expected: n, residuals, cotangent" in str(caught.value)
    assert "remedy: Write bwd(n, residuals, cotangent)." in str(caught.value)
    power.defvjp(right, lambda n, x, g: (n * x ** (n - 1) * g,))
    x = number(2.0)
    (gradient,) = torch.autograd.grad(power(3, x), x)
    assert gradient.item() == 12.0


def test_a_rule_may_be_given_again() -> None:
    """The last defvjp counts, for calls made after it."""

    @pullback.custom_vjp
    def double(x: Tensor) -> Tensor:
        return 2 * x

    x = number(1.0)
    double.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))
    first = double(x)
    double.defvjp(lambda x: (2 * x, x * x), lambda kept, g: (5 * g * kept,))
    second = double(x)
    gradients = [torch.autograd.grad(y, x)[0].item() for y in (first, second)]
    assert gradients == [2.0, 5.0]


def test_a_reference_supplies_higher_orders() -> None:
    """With a reference, an opaque bwd has exact second derivatives."""

    @pullback.custom_vjp(reference=lambda x: x**3)
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, g: (torch.from_numpy(3 * x.detach().numpy() ** 2) * g.detach(),))
    x = drawn(3)
    same(orders(cube, [x]), orders(lambda x: x**3, [x]))


def test_an_opaque_bwd_raises_at_second_order() -> None:
    """Without a reference, the second derivative of an opaque bwd is a named error."""

    @pullback.custom_vjp
    def kernel(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 3)

    kernel.defvjp(
        lambda x: (torch.from_numpy(x.detach().numpy() ** 3), x),
        lambda x, g: (torch.from_numpy(3 * x.detach().numpy() ** 2 * g.detach().numpy()),),
    )
    x = drawn(3)
    (gradient,) = torch.autograd.grad(kernel(x).sum(), x, create_graph=True)
    with pytest.raises(HigherOrderError, match="PB207"):
        gradient.sum().backward()
