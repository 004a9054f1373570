"""F12, F16: decorated functions under torch.func and in forward mode, compositions included, against the formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import pullback
from tests.custom.rules import MADE, drawn, plain, same
from tests.custom.test_nests import MADE as NESTED
from tests.custom.test_nests import Point, formula, total

Function = Callable[..., Any]


def scalar(function: Function) -> Function:
    """Make a number of what a function returns."""
    return lambda x, y: (function(x, y) * torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype)).sum()


def tangents(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Some tangents for two arguments."""
    return torch.linspace(1, 2, x.numel(), dtype=x.dtype).view_as(x), torch.linspace(-1, 1, y.numel(), dtype=y.dtype)


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: grad(scalar(f), argnums=(0, 1)),
    "vjp": lambda f: lambda x, y: vjp(f, x, y)[1](torch.cos(x.detach())),
    "jvp": lambda f: lambda x, y: jvp(f, (x, y), tangents(x, y)),
    "jvp of one": lambda f: lambda x, y: jvp(lambda x: f(x, y), (x,), (torch.ones_like(x),)),
    "jacrev": lambda f: jacrev(f, argnums=(0, 1)),
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1)),
    "hessian": lambda f: hessian(scalar(f), argnums=(0, 1)),
    "grad of grad": lambda f: grad(lambda x, y: grad(scalar(f))(x, y).square().sum(), argnums=(0, 1)),
    "jvp of grad": lambda f: lambda x, y: jvp(grad(scalar(f), argnums=(0, 1)), (x, y), tangents(x, y)),
    "grad of jvp": lambda f: grad(lambda x, y: jvp(f, (x, y), tangents(x, y))[1].square().sum(), argnums=(0, 1)),
    "jacfwd of jacrev": lambda f: jacfwd(jacrev(f), argnums=(0, 1)),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f), argnums=(0, 1)),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(f), argnums=(0, 1)),
    "jacrev of jacrev": lambda f: jacrev(jacrev(f), argnums=(0, 1)),
    "vmap": vmap,
    "vmap of one": lambda f: lambda x, y: vmap(f, in_dims=(0, None))(x, y[0]),
    "vmap of grad": lambda f: vmap(grad(f, argnums=(0, 1))),
    "vmap of grad of grad": lambda f: vmap(grad(grad(f), argnums=(0, 1))),
    "grad of vmap": lambda f: grad(lambda x, y: scalar(vmap(f))(x, y), argnums=(0, 1)),
    "jvp of vmap": lambda f: lambda x, y: jvp(vmap(f), (x, y), tangents(x, y)),
    "vmap of vmap": lambda f: lambda x, y: vmap(vmap(f, in_dims=(0, None)), in_dims=(None, 0))(x, y),
    "vmap of jvp": lambda f: lambda x, y: vmap(lambda x, y: jvp(f, (x, y), (x, y)))(x, y),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("kind", MADE)
def test_against_the_formula(kind: str, transform: str) -> None:
    """F12: values and derivatives are those of the formula under the same transform."""
    x, y = drawn(3, seed=1).detach(), drawn(3, seed=2).detach()
    apply = TRANSFORMS[transform]
    same(apply(MADE[kind]())(x, y), apply(plain)(x, y))


@pytest.mark.parametrize("kind", MADE)
def test_dual_numbers(kind: str) -> None:
    """F12: a tangent goes through by forward_ad, with and without grad mode, alone and with a graph beneath."""
    function, x, y = MADE[kind](), drawn(3, seed=1), drawn(3, seed=2)
    for mode in (torch.enable_grad, torch.no_grad):
        with forward_ad.dual_level(), mode():
            results = []
            for each in (function, plain):
                dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
                results.append(forward_ad.unpack_dual(each(dual, y.detach())))
            same(tuple(results[0]), tuple(results[1]))
    with forward_ad.dual_level():
        results = []
        for each in (function, plain):
            value = each(forward_ad.make_dual(x, torch.ones_like(x)), y)
            tangent = forward_ad.unpack_dual(value).tangent
            results.append(torch.autograd.grad(tangent.sum(), (x, y), retain_graph=True))
        same(results[0], results[1])


@pytest.mark.parametrize("kind", MADE)
def test_the_graph_around_a_transform(kind: str) -> None:
    """F12: what torch.func returns can be differentiated by autograd outside."""
    x, y = drawn(3, seed=1), drawn(3, seed=2)
    results = []
    for each in (MADE[kind](), plain):
        inner = grad(scalar(each))(x, y)
        results.append(torch.autograd.grad(inner.square().sum(), (x, y)))
    same(results[0], results[1])


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap", "grad of grad", "vmap of grad", "jvp of grad"])
@pytest.mark.parametrize("kind", NESTED)
def test_nests(kind: str, transform: str) -> None:
    """F5, F12: nests go in and out under transforms, too."""
    x, y = drawn(3, seed=1).detach(), drawn(3, seed=2).detach()
    point = Point(x, y)
    dot = Point(torch.ones_like(x), torch.full_like(y, 2))

    def value(f: Function) -> Function:
        return lambda point: total(f(point))

    apply: dict[str, Callable[[Function], Any]] = {
        "grad": lambda f: grad(value(f))(point),
        "jvp": lambda f: jvp(f, (point,), (dot,)),
        "vmap": lambda f: vmap(f)(point),
        "grad of grad": lambda f: grad(lambda p: grad(value(f))(p).x.square().sum())(point),
        "vmap of grad": lambda f: vmap(grad(value(f)))(point),
        "jvp of grad": lambda f: jvp(grad(value(f)), (point,), (dot,)),
    }
    same(apply[transform](NESTED[kind]()), apply[transform](formula))


def test_the_rule_runs_only_where_something_is_differentiated() -> None:
    """Under vmap alone the function runs, and not its rule, as in JAX."""
    ran: list[str] = []

    @pullback.custom_jvp
    def f(x: Tensor) -> Tensor:
        ran.append("f")
        return torch.sin(x)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        ran.append("rule")
        return torch.sin(primals[0]), torch.cos(primals[0]) * tangents[0]

    x = drawn(3).detach()
    vmap(f)(x)
    assert set(ran) == {"f"}
    jvp(f, (x,), (x,))
    assert "rule" in ran


@pytest.mark.parametrize("kind", MADE)
def test_a_tensor_without_a_derivative_under_vmap(kind: str) -> None:
    """What isn't differentiated may be batched."""

    @pullback.custom_vjp(nondiff_argnames=("weight",))
    def weighted(x: Tensor, weight: Tensor) -> Tensor:
        return MADE[kind]()(x, weight)

    weighted.defvjp(lambda x, weight: (plain(x, weight), x), lambda weight, x, g: (torch.cos(x) * weight * g,))
    x, weight = drawn(3, seed=1).detach(), drawn(3, seed=2).detach()
    same(vmap(grad(weighted))(x, weight), vmap(grad(plain))(x, weight))


def test_the_value_of_a_rule_in_forward_mode() -> None:
    """Under jvp the result is the one that the rule of custom_jvp returns."""

    @pullback.custom_jvp
    def f(x: Tensor) -> Tensor:
        return x

    f.defjvp(lambda primals, tangents: (primals[0] + 100, 2 * tangents[0]))
    x = torch.ones(2, dtype=torch.float64)
    value, tangent = jvp(f, (x,), (x,))
    assert value.tolist() == [101.0, 101.0]
    assert tangent.tolist() == [2.0, 2.0]


def test_a_backward_pass_that_iterates_until_nothing_changes() -> None:
    """Forward mode is derived where such a bwd takes its steps: a cotangent of zeros would end it after the first."""

    def settled(step: Function, start: Tensor) -> Tensor:
        before, value = start, step(start)
        while (value - before).abs().max() > 1e-13:
            before, value = value, step(value)
        return value

    @pullback.custom_vjp
    def cosine_point(a: Tensor) -> Tensor:
        """The x with x = a cos(x)."""
        return settled(lambda x: a * torch.cos(x), torch.zeros_like(a))

    def bwd(residuals: Any, g: Tensor) -> Any:
        a, x = residuals
        return (torch.cos(x) * settled(lambda w: g - a * torch.sin(x) * w, g),)

    def fwd(a: Tensor) -> Any:
        x = cosine_point(a)
        return x, (a, x)

    cosine_point.defvjp(fwd, bwd)
    a = torch.tensor([0.3, 0.6], dtype=torch.float64)
    x, tangent = jvp(cosine_point, (a,), (torch.ones_like(a),))
    torch.testing.assert_close(tangent, torch.cos(x) / (1 + a * torch.sin(x)), rtol=1e-10, atol=0)
