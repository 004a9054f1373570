"""Derivative rules without a class: ten small functions, each with a reason to have a rule of its own.

``python examples/custom_rules.py`` prints a line for each; ``pullback check examples/custom_rules.py`` proves them.
Whoever comes from JAX finds here in PyTorch what the documentation of its ``custom_jvp`` and ``custom_vjp`` shows.

In the rules, x_dot is the tangent that belongs to x, and g the cotangent that belongs to the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

import pullback


def number(value: float) -> Tensor:
    """Make a float64 scalar."""
    return torch.tensor(value, dtype=torch.float64)


# -- 1. A product, by a rule for tangents and by a rule for cotangents -------------------------------------------------


@pullback.custom_jvp
def sine_times(x: Tensor, y: Tensor) -> Tensor:
    """sin(x) y."""
    return torch.sin(x) * y


@sine_times.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, y), (x_dot, y_dot) = primals, tangents
    return sine_times(x, y), torch.cos(x) * x_dot * y + torch.sin(x) * y_dot


@pullback.custom_vjp
def sine_times_too(x: Tensor, y: Tensor) -> Tensor:
    """sin(x) y; what its backward pass needs is computed in the forward pass."""
    return torch.sin(x) * y


def _sine_times_fwd(x: Tensor, y: Tensor) -> Any:
    return sine_times_too(x, y), (torch.cos(x), torch.sin(x), y)


def _sine_times_bwd(residuals: Any, g: Tensor) -> Any:
    cos, sin, y = residuals
    return cos * g * y, sin * g


sine_times_too.defvjp(_sine_times_fwd, _sine_times_bwd)


# -- 2. log(1 + eˣ): the derivative 1 - 1 / (1 + eˣ) has no infinity over infinity -------------------------------------


def naive_log1pexp(x: Tensor) -> Tensor:
    """log(1 + eˣ), whose derivative autograd computes as eˣ / (1 + eˣ): NaN where eˣ overflows."""
    return torch.log(1 + torch.exp(x))


@pullback.custom_jvp
def log1pexp(x: Tensor) -> Tensor:
    """log(1 + eˣ)."""
    return torch.log(1 + torch.exp(x))


log1pexp.defjvps(lambda x_dot, result, x: (1 - 1 / (1 + torch.exp(x))) * x_dot)


# -- 3. x / (1 + √x) on [0, ∞): at 0 the derivative from the right -----------------------------------------------------


def naive_edge(x: Tensor) -> Tensor:
    """x / (1 + √x), whose derivative at 0 autograd computes as 0 times infinity."""
    return x / (1 + torch.sqrt(x))


@pullback.custom_jvp
def edge(x: Tensor) -> Tensor:
    """x / (1 + √x)."""
    return x / (1 + torch.sqrt(x))


@edge.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (x_dot,) = primals, tangents
    root = torch.sqrt(x)
    return edge(x), (root + 2) / (2 * (root + 1) ** 2) * x_dot


# -- 4. Clipped gradients: a rule that is no derivative, on purpose ----------------------------------------------------


@pullback.custom_vjp(nonlinear_backward=True)
def clip_gradient(low: float, high: float, x: Tensor) -> Tensor:
    """x; its gradient is kept between two bounds."""
    return x


clip_gradient.defvjp(
    lambda low, high, x: (x, (low, high)),
    lambda bounds, g: (None, None, torch.clamp(g, *bounds)),
)


def clipped_sine(x: Tensor) -> Tensor:
    """sin(x), with a derivative from -0.75 to 0.75."""
    return torch.sin(clip_gradient(-0.75, 0.75, x))


# -- 5. A look at the backward pass ------------------------------------------------------------------------------------

seen: list[tuple[Any, Any]] = []


@pullback.custom_vjp
def look(x: Tensor) -> Tensor:
    """x; its value and its gradient are written down when the backward pass comes by. A debugger could start there."""
    return x


def _look_bwd(x: Tensor, g: Tensor) -> Tensor:
    seen.append((x.tolist(), g.tolist()))
    return g


look.defvjp(lambda x: (x, x), _look_bwd)


# -- 6. A fixed point x = f(a, x): differentiated at the solution, not through the steps that lead there ---------------
#
# At the solution, dx = A dx + B da with A = ∂f/∂x and B = ∂f/∂a, so dx = (I - A)⁻¹ B da. For a cotangent v that comes
# back for x, the gradient of a is Bᵀ w with w = (I - Aᵀ)⁻¹ v, which is the fixed point of w = v + Aᵀ w.


@functools.partial(pullback.custom_vjp, nondiff_argnums=(0,))
def fixed_point(f: Callable[[Any, Tensor], Tensor], a: Any, start: Tensor) -> Tensor:
    """The x with x = f(a, x), by thirty steps from `start`. Nothing of the steps is kept."""
    x = start
    for _ in range(30):
        x = f(a, x)
    return x


def _fixed_point_fwd(f: Any, a: Any, start: Tensor) -> Any:
    x = fixed_point(f, a, start)
    return x, (a, x)


def _fixed_point_bwd(f: Any, residuals: Any, v: Tensor) -> Any:
    a, x = residuals
    w = fixed_point(functools.partial(_adjoint_step, f), (a, x, v), v)
    _, pull_a = vjp(lambda a: f(a, x), a)
    return *pull_a(w), torch.zeros_like(x)


def _adjoint_step(f: Any, given: Any, w: Tensor) -> Tensor:
    a, x, v = given
    _, pull_x = vjp(lambda x: f(a, x), x)
    return v + pull_x(w)[0]


fixed_point.defvjp(_fixed_point_fwd, _fixed_point_bwd)


def newton_sqrt(a: Tensor) -> Tensor:
    """√a by Newton's method, out of sums, products and quotients."""
    return fixed_point(lambda a, x: 0.5 * (x + a / x), a, a)


# -- 7. One rule for each argument -------------------------------------------------------------------------------------


@pullback.custom_jvp
def square_times(x: Tensor, y: Tensor) -> Tensor:
    """x² y."""
    return x**2 * y


square_times.defjvps(
    lambda x_dot, result, x, y: 2 * x * y * x_dot,
    lambda y_dot, result, x, y: x**2 * y_dot,
)


# -- 8. Python's control flow ------------------------------------------------------------------------------------------


@pullback.custom_jvp(surrogate=lambda x: 2 * x if x > 0 else 3 * x)
def by_sign(x: Tensor) -> Tensor:
    """sin(x) or cos(x); with a derivative that says which. `surrogate` tells the checker what it is meant to be."""
    return torch.sin(x) if x > 0 else torch.cos(x)


@by_sign.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (x_dot,) = primals, tangents
    return by_sign(x), (2 if x > 0 else 3) * x_dot


# -- 9. Nests: a named tuple goes in, a dict with a tuple comes out ----------------------------------------------------


class Point(NamedTuple):
    """A point in the plane."""

    x: Tensor
    y: Tensor


@pullback.custom_jvp
def nested(point: Point) -> dict[str, Any]:
    """A nest of a nest, by a rule for tangents."""
    return {"a": point.x**2, "b": (torch.sin(point.x), torch.cos(point.y))}


@nested.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (point,), (dot,) = primals, tangents
    second = torch.cos(point.x) * dot.x, -torch.sin(point.y) * dot.y
    return nested(point), {"a": 2 * point.x * dot.x, "b": second}


@pullback.custom_vjp
def nested_too(point: Point) -> dict[str, Any]:
    """The same by a rule for cotangents."""
    return {"a": point.x**2, "b": (torch.sin(point.x), torch.cos(point.y))}


def _nested_bwd(point: Point, g: Any) -> Any:
    first, second = g["b"]
    x = 2 * point.x * g["a"] + torch.cos(point.x) * first
    return (Point(x, -torch.sin(point.y) * second),)


nested_too.defvjp(lambda point: (nested_too(point), point), _nested_bwd)


def of_nest(function: Callable[[Point], dict[str, Any]]) -> Callable[[Point], Tensor]:
    """A number made of what `function` returns."""

    def value(point: Point) -> Tensor:
        result = function(point)
        total: Tensor = result["a"] + result["b"][0]
        return total

    return value


# -- 10. Functions as arguments: they have no derivative, and come first in the rules ----------------------------------


@functools.partial(pullback.custom_jvp, nondiff_argnums=(0, 2), surrogate=lambda f, x, h: 3 * x)
def compose(f: Callable[[Tensor], Tensor], x: Tensor, h: Callable[[Tensor], Tensor]) -> Tensor:
    """f(h(x)); with a derivative that says who made it."""
    return f(h(x))


@compose.defjvp
def _(f: Any, h: Any, primals: Any, tangents: Any) -> Any:
    return f(h(primals[0])), 3 * tangents[0]


@pullback.custom_vjp(nondiff_argnums=(0,), surrogate=lambda f, x: 5 * x)
def apply(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f(x); with a derivative that says who made it."""
    return f(x)


apply.defvjp(lambda f, x: (f(x), None), lambda f, _, g: (5 * g,))


# -- What `pullback check` tries them with -----------------------------------------------------------------------------


@pullback.samples_for(log1pexp)
def _() -> Iterator[Any]:
    yield (torch.tensor([-3.0, 0.5, 3.0], dtype=torch.float64),)


@pullback.samples_for(edge)
def _() -> Iterator[Any]:
    yield pullback.Sample((torch.tensor([0.25, 1.0, 4.0], dtype=torch.float64),), vary=("layout", "dtype"))


@pullback.samples_for(clip_gradient)
def _() -> Iterator[Any]:
    yield -0.75, 0.75, torch.tensor([0.5, -2.0], dtype=torch.float64)


@pullback.samples_for(fixed_point)
def _() -> Iterator[Any]:
    a = torch.tensor([1.5, 3.0], dtype=torch.float64)
    yield pullback.Sample((_half_way, a, torch.ones(2, dtype=torch.float64)), vary=("layout",))


def _half_way(a: Tensor, x: Tensor) -> Tensor:
    return 0.2 * torch.cos(x) + 0.1 * a


@pullback.samples_for(by_sign)
def _() -> Iterator[Any]:
    yield from (pullback.Sample((number(value),), vary=("layout", "dtype")) for value in (1.0, -1.0))


@pullback.samples_for(compose)
def _() -> Iterator[Any]:
    yield torch.sin, torch.tensor([0.5, 2.0], dtype=torch.float64), torch.cos


@pullback.samples_for(apply)
def _() -> Iterator[Any]:
    yield torch.sin, torch.tensor([0.5, 2.0], dtype=torch.float64)


@pullback.samples_for(nested)
@pullback.samples_for(nested_too)
def _() -> Iterator[Any]:
    yield (Point(torch.tensor([0.5, 2.0], dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)),)


def lines() -> Iterator[str]:
    """One line for each function."""
    two, three = number(2.0), number(3.0)
    value, tangent = jvp(sine_times, (two, three), (number(1.0), number(0.0)))
    gradient = grad(sine_times_too)(two, three)
    yield f"sine_times      at (2, 3): {value:.7f}, tangent {tangent:.7f}, gradient {gradient:.7f}"
    slopes = vmap(grad(log1pexp))(torch.arange(3, dtype=torch.float64))
    shown = ", ".join(f"{slope:.7f}" for slope in slopes)
    safe, naive = (grad(function)(torch.tensor(100.0)) for function in (log1pexp, naive_log1pexp))
    yield f"log1pexp        at 3: {log1pexp(three):.7f}; slopes at 0, 1, 2: {shown}"
    yield f"log1pexp        slope at 100 in float32: {safe:g}, naively {naive:g}"
    yield f"edge            slope at 0: {grad(edge)(number(0.0)):g}, naively {grad(naive_edge)(number(0.0)):g}"
    t = torch.linspace(0, 10, 1000, dtype=torch.float64)
    slopes = vmap(grad(clipped_sine))(t)
    yield f"clip_gradient   slopes of a sine from {slopes.min():g} to {slopes.max():g}"
    grad(lambda x: torch.sin(look(x**2)))(three)
    (found,) = seen
    yield f"look            saw x = {found[0]:g} and g = {found[1]:.7f}"
    first, second = grad(newton_sqrt)(two), grad(grad(newton_sqrt))(two)
    yield f"fixed_point     sqrt(2): {newton_sqrt(two):.7f}, derivatives {first:.7f} and {second:.8f}"
    both = [grad(square_times, argnums=index)(two, three) for index in (0, 1)]
    yield f"square_times    gradients at (2, 3): {both[0]:g} and {both[1]:g}"
    yield f"by_sign         slopes at 1 and -1: {grad(by_sign)(number(1.0)):g} and {grad(by_sign)(number(-1.0)):g}"
    point = Point(number(1.0), number(2.0))
    by_tangents, by_cotangents = (grad(of_nest(function))(point) for function in (nested, nested_too))
    yield f"nested          gradients in x at (1, 2): {by_tangents.x:.7f} and {by_cotangents.x:.7f}"
    slope = grad(compose, argnums=1)(lambda x: x**3, three, lambda y: 5 * y)
    yield f"compose, apply  slopes {slope:g} and {grad(apply, argnums=1)(lambda x: x**2, number(4.0)):g}"


if __name__ == "__main__":
    for line in lines():
        print(line)
