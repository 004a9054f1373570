"""F5, F16: nests of tensors as arguments, results, residuals, cotangents, tangents; modules as arguments."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import pullback
from pullback.errors import GradientError
from tests.custom.rules import drawn, number, same


class Point(NamedTuple):
    """A point in the plane."""

    x: Tensor
    y: Tensor


def formula(point: Point) -> dict[str, Any]:
    """A dict with a tensor and a tuple of tensors."""
    return {"a": point.x**2, "b": (torch.sin(point.x), torch.cos(point.y))}


def by_vjp() -> Any:
    """The formula with a rule for its cotangent."""

    @pullback.custom_vjp
    def f(point: Point) -> dict[str, Any]:
        return formula(point)

    def bwd(point: Point, g: Any) -> Any:
        first, second = g["b"]
        x = 2 * point.x * g["a"] + torch.cos(point.x) * first
        return (Point(x, -torch.sin(point.y) * second),)

    f.defvjp(lambda point: (f(point), point), bwd)
    return f


def by_jvp() -> Any:
    """The formula with a rule for its tangent."""

    @pullback.custom_jvp
    def f(point: Point) -> dict[str, Any]:
        return formula(point)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (point,), (dot,) = primals, tangents
        tangent = {"a": 2 * point.x * dot.x, "b": (torch.cos(point.x) * dot.x, -torch.sin(point.y) * dot.y)}
        return f(point), tangent

    return f


def by_jvps() -> Any:
    """The formula with a rule for the tangent of its one argument."""

    @pullback.custom_jvp
    def f(point: Point) -> dict[str, Any]:
        return formula(point)

    f.defjvps(
        lambda dot, result, point: {
            "a": 2 * point.x * dot.x,
            "b": (torch.cos(point.x) * dot.x, -torch.sin(point.y) * dot.y),
        }
    )
    return f


MADE = {"vjp": by_vjp, "jvp": by_jvp, "jvps": by_jvps}


def total(result: dict[str, Any]) -> Tensor:
    """A number that depends on every part of the result."""
    value: Tensor = (result["a"] * result["b"][0] + 3 * result["b"][1] ** 2).sum()
    return value


@pytest.mark.parametrize("kind", MADE)
def test_a_named_tuple_to_a_dict(kind: str) -> None:
    """Value, first and second derivatives of a function from one nest to another."""
    function = MADE[kind]()
    x, y = drawn(3, seed=1), drawn(3, seed=2)
    result = function(Point(x, y))
    expected = formula(Point(x, y))
    assert list(result) == ["a", "b"]
    assert type(result["b"]) is tuple
    same(result, expected)
    first = torch.autograd.grad(total(result), (x, y), create_graph=True)
    truth = torch.autograd.grad(total(expected), (x, y), create_graph=True)
    same(first, truth)
    second = torch.autograd.grad(first[0].sum() + first[1].square().sum(), (x, y))
    same(second, torch.autograd.grad(truth[0].sum() + truth[1].square().sum(), (x, y)))


@pytest.mark.parametrize("kind", MADE)
def test_one_leaf_alone(kind: str) -> None:
    """One leaf of a result may be used alone, and one leaf of an argument differentiated alone."""
    function, x, y = MADE[kind](), drawn(3, seed=1), drawn(3, seed=2)
    (gradient,) = torch.autograd.grad(function(Point(x.detach(), y))["b"][1].sum(), y)
    same(gradient, -torch.sin(y.detach()))
    gx, gy = torch.autograd.grad(function(Point(x, y))["a"].sum(), (x, y), allow_unused=True, materialize_grads=True)
    same(gx, 2 * x.detach())
    assert not gy.any()


@pytest.mark.parametrize("kind", MADE)
def test_without_a_gradient_the_result_is_as_returned(kind: str) -> None:
    """Where nothing requires grad, the function's own result comes back."""
    point = Point(drawn(2).detach(), drawn(2).detach())
    result = MADE[kind]()(point)
    same(result, formula(point))
    assert not result["a"].requires_grad


@pytest.mark.parametrize("kind", [list, tuple, collections.deque, dict, collections.OrderedDict])
def test_containers(kind: Any) -> None:
    """Each kind of container comes to the rules as itself, and takes its gradient as itself."""
    build = (lambda a, b: kind(a=a, b=b)) if issubclass(kind, dict) else (lambda a, b: kind((a, b)))
    seen: list[type] = []

    def parts(pair: Any) -> Any:
        return tuple(pair.values()) if isinstance(pair, dict) else tuple(pair)

    @pullback.custom_vjp
    def product(pair: Any) -> Any:
        a, b = parts(pair)
        return [a * b]

    def fwd(pair: Any) -> Any:
        seen.append(type(pair))
        return product(pair), pair

    def bwd(pair: Any, g: Any) -> Any:
        seen.extend((type(pair), type(g)))
        a, b = parts(pair)
        return (build(b * g[0], a * g[0]),)

    product.defvjp(fwd, bwd)
    a, b = number(2.0), number(5.0)
    (result,) = product(build(a, b))
    gradients = torch.autograd.grad(result, (a, b))
    assert [gradient.item() for gradient in gradients] == [5.0, 2.0]
    assert seen == [kind, kind, list]


def test_a_list_is_the_gradient_of_a_single_list() -> None:
    """With one argument that is a list, its gradient is a list of the same length."""

    @pullback.custom_vjp
    def total(xs: list[Tensor]) -> Tensor:
        return torch.stack(xs).sum()

    total.defvjp(lambda xs: (torch.stack(xs).sum(), len(xs)), lambda count, g: [g * k for k in range(count)])
    xs = [number(1.0) for _ in range(3)]
    assert [gradient.item() for gradient in torch.autograd.grad(total(xs), xs)] == [0.0, 1.0, 2.0]


def test_none_for_a_container_is_none_for_each_leaf() -> None:
    """None stands for the gradient of a whole nest."""

    @pullback.custom_vjp
    def first(x: Tensor, rest: dict[str, Tensor]) -> Tensor:
        return x * 2

    first.defvjp(lambda x, rest: (x * 2, None), lambda _, g: (2 * g, None))
    x, y = number(1.0), number(1.0)
    gx, gy = torch.autograd.grad(first(x, {"y": y}), (x, y), allow_unused=True)
    assert gx.item() == 2.0
    assert gy is None


def test_a_gradient_of_another_structure_is_an_error() -> None:
    """A gradient that isn't a nest like its argument names the argument."""

    @pullback.custom_vjp
    def total(pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] + pair[1]

    total.defvjp(lambda pair: (pair[0] + pair[1], None), lambda _, g: ((g, g, g),))
    with pytest.raises(GradientError, match="pair"):
        total((number(1.0), number(1.0))).backward()


def test_a_tangent_of_another_structure_is_an_error() -> None:
    """A tangent that isn't a nest like the result says where it differs."""

    @pullback.custom_jvp
    def both(x: Tensor) -> Any:
        return {"a": x, "b": 2 * x}

    both.defjvp(lambda p, t: (both(*p), {"a": t[0]}))
    with pytest.raises(GradientError, match=r"PB202 the rule of both returned a tangent that isn't like the result"):
        both(number(1.0))["a"].backward()


def mse(module: nn.Module, x: Tensor) -> Tensor:
    """The mean square of what a module returns."""
    value: Tensor = module(x).square().mean()
    return value


def of_module_by_vjp() -> Any:
    """The mean square, with the gradients of a module's parameters from torch.func.vjp."""

    @pullback.custom_vjp
    def f(module: nn.Module, x: Tensor) -> Tensor:
        return mse(module, x)

    def bwd(residuals: Any, g: Tensor) -> Any:
        module, x = residuals
        parameters = dict(module.named_parameters())
        _, pull = torch.func.vjp(
            lambda p, x: torch.func.functional_call(module, p, (x,)).square().mean(), parameters, x
        )
        return pull(g)

    f.defvjp(lambda module, x: (mse(module, x), (module, x)), bwd)
    return f


def of_module_by_jvp() -> Any:
    """The mean square, with a rule for the tangents of a module's parameters, which come as a dict by name."""

    @pullback.custom_jvp
    def f(module: nn.Module, x: Tensor) -> Tensor:
        return mse(module, x)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (module, x), (dots, x_dot) = primals, tangents
        result = module(x)
        inner = x_dot @ module.weight.T + x @ dots["weight"].T + dots["bias"]
        return f(module, x), (2 * result * inner).mean()

    return f


@pytest.mark.parametrize("make", [of_module_by_vjp, of_module_by_jvp])
def test_a_module_is_a_nest_of_its_parameters(make: Any) -> None:
    """A module's parameters get their gradients, first and second order; its gradient is a dict by name."""
    module, x = nn.Linear(3, 2, dtype=torch.float64), drawn(4, 3)
    leaves = [*module.parameters(), x]
    function = make()
    first = torch.autograd.grad(function(module, x), leaves, create_graph=True)
    truth = torch.autograd.grad(mse(module, x), leaves, create_graph=True)
    same(first, truth)
    second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)
    same(second, torch.autograd.grad(sum(gradient.square().sum() for gradient in truth), leaves))


def test_a_module_reaches_the_rules_as_itself() -> None:
    """In a first-order call, fwd and bwd get the very module that was passed."""
    seen: list[Any] = []

    @pullback.custom_vjp
    def f(module: nn.Module, x: Tensor) -> Any:
        return module(x)

    def fwd(module: nn.Module, x: Tensor) -> Any:
        seen.append(module)
        return module(x), (module, x)

    def bwd(residuals: Any, g: Tensor) -> Any:
        module, x = residuals
        seen.append(module)
        return {"weight": g.T @ x, "bias": g.sum(0)}, g @ module.weight

    f.defvjp(fwd, bwd)
    module, x = nn.Linear(3, 2, dtype=torch.float64), drawn(4, 3)
    f(module, x).sum().backward()
    assert seen == [module, module]
    expected = torch.autograd.grad(module(x).sum(), [*module.parameters(), x])
    assert module.weight.grad is not None
    assert module.bias.grad is not None
    same((module.weight.grad, module.bias.grad, x.grad), expected)
