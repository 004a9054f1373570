"""F16: custom_jvp by plain autograd: reverse mode is the transpose of the rule, to any order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import DefinitionError, GradientError, MissingMethodError
from tests.custom.rules import by_jvp, by_jvps, drawn, number, orders, plain, same


@pytest.mark.parametrize("make", [by_jvp, by_jvps])
def test_gradients_to_second_order(make: Any) -> None:
    """First and second derivatives of the transposed rule are those of the formula."""
    leaves = drawn(3, seed=1), drawn(3, seed=2)
    same(orders(make(), leaves), orders(plain, leaves))
    same(
        orders(lambda x, y: make()(x * x, y + x), leaves),
        orders(lambda x, y: plain(x * x, y + x), leaves),
    )


def test_third_order() -> None:
    """All orders follow from a rule that calls the function for its value."""

    @pullback.custom_jvp
    def exp(x: Tensor) -> Tensor:
        return torch.exp(x)

    exp.defjvps(lambda x_dot, result, x: x_dot * result)
    x = number(0.5)
    value: Tensor = exp(x)
    for _ in range(3):
        (value,) = torch.autograd.grad(value, x, create_graph=True)
    assert value.item() == pytest.approx(torch.exp(x).item(), rel=1e-14)


def test_the_value_is_the_rules() -> None:
    """Where something is differentiated, the result is the one that the rule returns; elsewhere the function's."""

    @pullback.custom_jvp
    def f(x: Tensor) -> Tensor:
        return x

    f.defjvp(lambda primals, tangents: (primals[0] + 100, 2 * tangents[0]))
    x = number(1.0)
    assert f(x.detach()).item() == 1.0
    result = f(x)
    assert result.item() == 101.0
    (gradient,) = torch.autograd.grad(result, x)
    assert gradient.item() == 2.0


def test_a_matrix_product() -> None:
    """A tangent map that isn't elementwise is transposed as well."""

    @pullback.custom_jvp
    def matmul(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    matmul.defjvp(lambda p, t: (matmul(*p), t[0] @ p[1] + p[0] @ t[1]))
    leaves = drawn(2, 3, seed=1), drawn(3, 4, seed=2)
    same(orders(matmul, leaves), orders(torch.matmul, leaves))


def test_several_outputs() -> None:
    """Each output has its tangent, in a tuple like the result."""

    @pullback.custom_jvp
    def polar(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sqrt(x * x + y * y), torch.atan2(y, x)

    @polar.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (x_dot, y_dot) = primals, tangents
        r, angle = polar(x, y)
        return (r, angle), ((x * x_dot + y * y_dot) / r, (x * y_dot - y * x_dot) / r**2)

    leaves = drawn(3, seed=1), drawn(3, seed=2)

    def formula(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack((torch.sqrt(x * x + y * y), torch.atan2(y, x)))

    same(orders(lambda x, y: torch.stack(polar(x, y)), leaves), orders(formula, leaves))


def test_none_is_a_zero_tangent() -> None:
    """A rule that is None, or that returns None, adds nothing."""

    @pullback.custom_jvp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    product.defjvps(lambda x_dot, result, x, y: x_dot * y, None)
    x, y = number(2.0), number(5.0)
    gradients = torch.autograd.grad(product(x, y), (x, y), materialize_grads=True)
    assert [gradient.item() for gradient in gradients] == [5.0, 0.0]

    @pullback.custom_jvp
    def constant(x: Tensor) -> Tensor:
        return x * 0 + 1

    constant.defjvp(lambda primals, tangents: (constant(*primals), None))
    (gradient,) = torch.autograd.grad(constant(x), x, materialize_grads=True)
    assert gradient.item() == 0.0


def test_tangents_of_what_has_none() -> None:
    """A float's tangent is 0.0; an integer, a string and an integer tensor have none."""
    seen: list[Any] = []

    @pullback.custom_jvp
    def f(x: Tensor, scale: float, n: int, mode: str, index: Tensor) -> Tensor:
        return x * scale

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        seen.append(tangents)
        return primals[0] * primals[1], tangents[0] * primals[1] + primals[0] * tangents[1]

    x = number(2.0)
    (gradient,) = torch.autograd.grad(f(x, 3.0, 2, "mode", torch.tensor([1])), x)
    assert gradient.item() == 3.0
    assert all(tangents[1:] == (0.0, None, None, None) for tangents in seen)


def test_gradients_that_are_not_needed_are_not_computed() -> None:
    """Only the tangents of arguments that require grad are transposed."""
    asked: list[tuple[bool, bool]] = []

    @pullback.custom_jvp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @product.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        asked.append(tuple(tangent.requires_grad for tangent in tangents))
        return product(*primals), tangents[0] * primals[1] + primals[0] * tangents[1]

    x, y = drawn(2), drawn(2).detach()
    product(x, y).sum().backward()
    assert asked == [(False, False), (True, False)]


def test_python_control_flow() -> None:
    """The rule may branch on values."""

    @pullback.custom_jvp
    def f(x: Tensor) -> Tensor:
        return torch.sin(x) if x > 0 else torch.cos(x)

    f.defjvp(lambda primals, tangents: (f(*primals), (2 if primals[0] > 0 else 3) * tangents[0]))
    gradients = [torch.autograd.grad(f(x), x)[0].item() for x in (number(1.0), number(-1.0))]
    assert gradients == [2.0, 3.0]


@pytest.mark.parametrize(
    ("tangent", "expected", "got"),
    [
        (lambda t: t.sum(), "a tensor of shape (2,), as the result is", "()"),
        (lambda t: (t, t), "a tensor or None", "a tuple of 2"),
    ],
)
def test_a_tangent_that_is_unlike_the_result(tangent: Any, expected: str, got: str) -> None:
    """PB202: the tangent must be of the result's structure and shapes."""

    @pullback.custom_jvp
    def f(x: Tensor) -> Tensor:
        return 2 * x

    f.defjvp(lambda primals, tangents: (2 * primals[0], tangent(tangents[0])))
    with pytest.raises(GradientError) as caught:
        f(drawn(2)).sum().backward()
    text = str(caught.value)
    assert "PB202 the rule of f returned a tangent that isn't like the result." in text
    assert f"expected: {expected}" in text
    assert f"got: {got}" in text


def test_a_rule_returns_a_pair() -> None:
    """A rule that returns the tangent alone is told what to return."""

    @pullback.custom_jvp
    def f(x: Tensor) -> Tensor:
        return 2 * x

    f.defjvp(lambda primals, tangents: 2 * tangents[0])
    with pytest.raises(GradientError, match=r"PB202 the rule of f returned something else than a pair"):
        f(number(1.0))


def test_called_before_its_derivative_is_given() -> None:
    """PB112: a call before defjvp says what to call."""

    @pullback.custom_jvp
    def f(x: Tensor) -> Tensor:
        return 2 * x

    with pytest.raises(MissingMethodError, match=r"PB112 f is called, and it has no derivative yet"):
        f(torch.ones(1))


def test_rules_that_can_never_be_called() -> None:
    """PB111 and PB106: rules that don't fit the arguments are refused where they are given."""

    @pullback.custom_jvp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    with pytest.raises(DefinitionError) as caught:
        product.defjvp(lambda primals: primals)
    assert "PB111 the rule of product can't take what it is called with." in str(caught.value)
    assert "expected: primals, tangents" in str(caught.value)
    with pytest.raises(DefinitionError) as caught:
        product.defjvps(lambda x_dot, result, x, y: x_dot)
    assert "PB111 product.defjvps takes one rule, or None, for each argument." in str(caught.value)
    assert "expected: 2, for x, y" in str(caught.value)
    with pytest.raises(DefinitionError) as caught:
        product.defjvps(lambda x_dot, x, y: x_dot, None)
    assert "PB111 the rule for x of product can't take what it is called with." in str(caught.value)
    assert "expected: x_dot, result, x, y" in str(caught.value)

    @pullback.custom_jvp(nondiff_argnums=(0,))
    def power(n: int, x: Tensor) -> Tensor:
        return x**n

    with pytest.raises(DefinitionError) as caught:
        power.defjvps(None, None)
    assert "PB106 power has arguments without a derivative" in str(caught.value)
    assert "remedy: Write one rule, and give it to power.defjvp." in str(caught.value)


def test_defjvp_is_a_decorator() -> None:
    """defjvp returns the rule, so that its name stays."""

    @pullback.custom_jvp
    def f(x: Tensor) -> Tensor:
        return 2 * x

    def rule(primals: Any, tangents: Any) -> Any:
        return 2 * primals[0], 2 * tangents[0]

    assert f.defjvp(rule) is rule


def test_a_rule_that_iterates_until_nothing_changes() -> None:
    """A rule that solves for its tangent, as implicit differentiation does, is transposed where it takes its steps."""

    def settled(step: Any, start: Tensor) -> Tensor:
        before, value = start, step(start)
        while (value - before).abs().max() > 1e-13:
            before, value = value, step(value)
        return value

    @pullback.custom_jvp
    def cosine_point(a: Tensor) -> Tensor:
        """The x with x = a cos(x)."""
        return settled(lambda x: a * torch.cos(x), torch.zeros_like(a))

    @cosine_point.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (a,), (a_dot,) = primals, tangents
        x = cosine_point(a)
        return x, settled(lambda x_dot: torch.cos(x) * a_dot - a * torch.sin(x) * x_dot, torch.zeros_like(a_dot))

    a = torch.tensor([0.3, 0.6], dtype=torch.float64, requires_grad=True)
    x = cosine_point(a)
    (gradient,) = torch.autograd.grad(x.sum(), a)
    torch.testing.assert_close(gradient, (torch.cos(x) / (1 + a * torch.sin(x))).detach(), rtol=1e-10, atol=0)


def test_under_saved_tensor_hooks() -> None:
    """The rule is transposed while hooks are set, too."""
    product, x, y = by_jvp(), drawn(3), drawn(3, seed=1)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        gradients = torch.autograd.grad(product(x, y).sum(), (x, y))
    same(gradients, (torch.cos(x).detach() * y.detach(), torch.sin(x).detach()))


@pytest.mark.parametrize("calls", [1, 20], ids=["watched", "unwatched"])
def test_a_rule_that_draws_random_numbers(calls: int) -> None:
    """The rule draws for the derivative what it drew for the result, and nobody else's numbers change by it."""

    @pullback.custom_jvp
    def dropped(x: Tensor) -> Tensor:
        return x * torch.rand_like(x)

    @dropped.defjvp
    def _rule(primals: Any, tangents: Any) -> Any:
        mask = torch.rand_like(primals[0])
        return primals[0] * mask, tangents[0] * mask

    for _ in range(calls):
        x = drawn(5, seed=1)
        value = dropped(x)
        torch.rand(3)
        before = torch.get_rng_state()
        (gradient,) = torch.autograd.grad(value.sum(), x)
        torch.testing.assert_close(gradient, (value / x).detach())
        assert torch.equal(torch.get_rng_state(), before)
    result, tangent = torch.func.jvp(dropped, (x.detach(),), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, result / x.detach())
    gradient, total = torch.func.grad_and_value(lambda x: dropped(x).sum())(x.detach())
    torch.testing.assert_close((gradient * x.detach()).sum(), total)
