"""The rules without a class: the numbers they are known by, to second order, under transforms, and all are right."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, vjp, vmap

import pullback
from examples import custom_rules as rules
from examples.custom_rules import Point, number

ROOT = Path(__file__).resolve().parents[2]


def close(got: Any, expected: Any) -> None:
    """Require numbers with seven digits in common."""
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected), rtol=1e-6, atol=1e-7, check_dtype=False)


def by_autograd(function: Callable[..., Tensor], *values: float) -> tuple[float, list[float], list[float]]:
    """Value, gradients, and gradients of the sum of gradients, by plain autograd."""
    leaves = [number(value).requires_grad_() for value in values]
    result = function(*leaves)
    first = torch.autograd.grad(result, leaves, create_graph=True, materialize_grads=True)
    total = torch.stack(list(first)).sum()
    second = torch.autograd.grad(total, leaves, materialize_grads=True) if total.requires_grad else [number(0.0)]
    return result.item(), [gradient.item() for gradient in first], [gradient.item() for gradient in second]


def test_it_prints_its_numbers() -> None:
    """Run as a program, it prints one line for each function."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "examples/custom_rules.py"]
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "sine_times      at (2, 3): 2.7278923, tangent -1.2484405, gradient -1.2484405",
        "log1pexp        at 3: 3.0485874; slopes at 0, 1, 2: 0.5000000, 0.7310586, 0.8807971",
        "log1pexp        slope at 100 in float32: 1, naively nan",
        "edge            slope at 0: 1, naively nan",
        "clip_gradient   slopes of a sine from -0.75 to 0.75",
        "look            saw x = 9 and g = -0.9111303",
        "fixed_point     sqrt(2): 1.4142136, derivatives 0.3535534 and -0.08838835",
        "square_times    gradients at (2, 3): 12 and 4",
        "by_sign         slopes at 1 and -1: 2 and 3",
        "nested          gradients in x at (1, 2): 2.5403023 and 2.5403023",
        "compose, apply  slopes 3 and 5",
    ]


@pytest.mark.parametrize("function", [rules.sine_times, rules.sine_times_too])
def test_sine_times(function: Any) -> None:
    """sin(x) y at (2, 3), to second order, by plain autograd, forward mode and vmap."""
    value, first, second = by_autograd(function, 2.0, 3.0)
    close(value, 2.7278922804770453)
    close(first, [-1.2484405096414273, 0.9092974268256817])
    # -sin(2) 3 + cos(2), and cos(2)
    close(second, [-3.1440391170241875, -0.4161468365471424])
    two, three = number(2.0), number(3.0)
    close(jvp(function, (two, three), (number(1.0), number(0.0)))[1], -1.2484405096414273)
    close(hessian(function)(two, three), -2.7278922804770453)
    x, y = torch.rand(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    close(vmap(grad(function))(x, y), torch.cos(x) * y)


def test_log1pexp() -> None:
    """Its derivative is the logistic function, safe where the exponential overflows; so is the second."""
    value, first, second = by_autograd(rules.log1pexp, 3.0)
    close(value, 3.048587351573742)
    close(first, [0.9525741268224334])
    close(second, [0.04517665973091213])
    close(vmap(grad(rules.log1pexp))(torch.arange(3.0)), [0.5, 0.7310585786, 0.8807970780])
    assert grad(rules.log1pexp)(torch.tensor(100.0)).item() == 1.0
    assert grad(rules.naive_log1pexp)(torch.tensor(100.0)).isnan()
    close(jvp(rules.log1pexp, (number(3.0),), (number(2.0),))[1], 2 * 0.9525741268224334)


def test_edge() -> None:
    """At the edge of its domain it has the derivative from the right."""
    _, (slope,), _ = by_autograd(rules.edge, 0.0)
    assert slope == 1.0
    assert grad(rules.naive_edge)(number(0.0)).isnan()
    # (√x + 2) / (2 (√x + 1)²) at 4, and its derivative -(√x + 3) / (4 √x (√x + 1)³)
    _, (slope,), (curvature,) = by_autograd(rules.edge, 4.0)
    close([slope, curvature], [4 / 18, -5 / 216])
    close(vmap(grad(rules.edge))(torch.tensor([0.0, 4.0])), [1.0, 4 / 18])


def test_clip_gradient() -> None:
    """Gradients are clipped, one by one under vmap as well; bounds get none."""
    t = torch.linspace(0, 10, 100, dtype=torch.float64)
    expected = torch.cos(t).clamp(-0.75, 0.75)
    close(vmap(grad(rules.clipped_sine))(t), expected)
    leaf = t.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(rules.clipped_sine(leaf).sum(), leaf, create_graph=True)
    close(gradient.detach(), expected)
    (second,) = torch.autograd.grad(gradient.sum(), leaf)
    # What comes back for the gradient's own derivative is clipped on its way, too.
    close(second, torch.where(torch.cos(t).abs() < 0.75, -torch.sin(t), 0.0).clamp(-0.75, 0.75))


def test_look() -> None:
    """The backward pass shows value and gradient, and is otherwise that of the identity."""
    rules.seen.clear()
    slope = grad(lambda x: torch.sin(rules.look(x**2)))(number(3.0))
    ((x, g),) = rules.seen
    close([x, g], [9.0, -0.9111302618846769])
    close(slope, 6 * -0.9111302618846769)


def test_fixed_point() -> None:
    """√2 by Newton's method: the derivatives at the solution are 1 / (2 √2) and -1 / (4 √8), to any order."""
    value, first, second = by_autograd(rules.newton_sqrt, 2.0)
    close([value, *first, *second], [2**0.5, 0.35355339059327373, -0.08838834764831843])
    two = number(2.0)
    close(grad(rules.newton_sqrt)(two), 0.35355339059327373)
    close(grad(grad(rules.newton_sqrt))(two), -0.08838834764831843)
    a = torch.arange(1, 5, dtype=torch.float64)
    close(vmap(rules.newton_sqrt)(a), a.sqrt())
    close(vmap(grad(rules.newton_sqrt))(a), 0.5 / a.sqrt())
    close(jvp(rules.newton_sqrt, (two,), (number(1.0),))[1], 0.35355339059327373)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        rules.newton_sqrt(number(2.0).requires_grad_())
    assert len(kept) == 2  # a and the solution: none of the thirty steps


def test_square_times() -> None:
    """A rule for each argument."""
    value, first, second = by_autograd(rules.square_times, 2.0, 3.0)
    assert (value, first, second) == (12.0, [12.0, 4.0], [10.0, 4.0])


def test_by_sign() -> None:
    """The rule branches as the function does."""
    assert [by_autograd(rules.by_sign, value)[1] for value in (1.0, -1.0)] == [[2.0], [3.0]]


@pytest.mark.parametrize("function", [rules.nested, rules.nested_too])
def test_nested(function: Any) -> None:
    """A gradient is a nest like the argument; second derivatives and forward mode go through."""
    point = Point(number(1.0), number(2.0))
    result = function(point)
    close([result["a"], *result["b"]], [1.0, 0.8414709848078965, -0.4161468365471424])
    gradient = grad(rules.of_nest(function))(point)
    assert type(gradient) is Point
    close([gradient.x, gradient.y], [2.5403023058681398, 0.0])
    value = rules.of_nest(function)
    _, first, second = by_autograd(lambda x, y: value(Point(x, y)), 1.0, 2.0)
    close([*first, *second], [2.5403023058681398, 0.0, 2 - 0.8414709848078965, 0.0])
    _, tangent = jvp(function, (point,), (Point(number(1.0), number(1.0)),))
    close([tangent["a"], *tangent["b"]], [2.0, 0.5403023058681398, -0.9092974268256817])
    cotangent = {"a": number(1.0), "b": (number(1.0), number(1.0))}
    (gradient,) = vjp(function, point)[1](cotangent)
    close([gradient.x, gradient.y], [2.5403023058681398, -0.9092974268256817])


def test_functions_as_arguments() -> None:
    """They reach the function and come first in the rules."""
    three = number(3.0)
    assert rules.compose(lambda x: x**3, three, lambda y: 5 * y).item() == 3375.0
    assert grad(rules.compose, argnums=1)(lambda x: x**3, three, lambda y: 5 * y).item() == 3.0
    assert rules.apply(lambda x: x**2, number(4.0)).item() == 16.0
    assert grad(rules.apply, argnums=1)(lambda x: x**2, number(4.0)).item() == 5.0


def test_the_rule_runs_where_something_is_differentiated() -> None:
    """Called plainly or under vmap, the function runs; under vjp fwd does, and bwd when its result is pulled back."""
    ran: list[str] = []

    @pullback.custom_vjp
    def f(x: Tensor) -> Tensor:
        ran.append("f")
        return torch.sin(x)

    def fwd(x: Tensor) -> Any:
        ran.append("fwd")
        return torch.sin(x), torch.cos(x)

    def bwd(cos: Tensor, g: Tensor) -> Any:
        ran.append("bwd")
        return (cos * g,)

    f.defvjp(fwd, bwd)
    close(f(number(3.0)), 0.1411200080598672)
    close(vmap(f)(torch.arange(3.0)), torch.sin(torch.arange(3.0)))
    assert set(ran) == {"f"}
    ran.clear()
    value, pull = vjp(f, number(3.0))
    assert ran == ["fwd"]
    close(value, 0.1411200080598672)
    close(pull(number(1.0))[0], -0.9899924966004454)
    assert ran == ["fwd", "bwd"]
