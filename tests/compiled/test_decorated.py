"""F13, F16: functions with a rule of their own are compiled whole, with eager's gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.compiled.running import BACKENDS, assert_compiles
from tests.function.kinds import leaf

each_backend = pytest.mark.parametrize("backend", BACKENDS)


@pullback.custom_vjp
def clip_gradient(x: Tensor, low: float, high: float) -> Tensor:
    """Return x, whose gradient is clipped."""
    return x.clone()


clip_gradient.defvjp(lambda x, low, high: (x.clone(), (low, high)), lambda res, g: (g.clip(*res), None, None))


@pullback.custom_vjp
def weighted(state: dict[str, Any], *, k: float = 2.0) -> dict[str, Tensor]:
    """Return a nest of a nest."""
    return {"y": state["a"] * state["b"][0] * k, "n": state["a"].sin()}


def _weighted_fwd(state: dict[str, Any], *, k: float = 2.0) -> Any:
    a, (b,) = state["a"], state["b"]
    return {"y": a * b * k, "n": a.sin()}, {"pair": (a, b), "k": k}


def _weighted_bwd(residuals: Any, g: dict[str, Tensor]) -> Any:
    (a, b), k = residuals["pair"], residuals["k"]
    return {"state": {"a": g["y"] * b * k + g["n"] * a.cos(), "b": [g["y"] * a * k]}, "k": None}


weighted.defvjp(_weighted_fwd, _weighted_bwd)


@pullback.custom_jvp
def log1pexp(x: Tensor) -> Tensor:
    """Return log(1 + exp(x))."""
    return torch.log(1 + torch.exp(x))


@log1pexp.defjvp
def _log1pexp_rule(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return log1pexp(x), (1 - 1 / (1 + torch.exp(x))) * t


@pullback.custom_jvp
def product(pair: list[Tensor], scale: float) -> dict[str, Tensor]:
    """Return two products."""
    return {"y": pair[0] * pair[1] * scale, "z": pair[0] + 1}


@product.defjvp
def _product_rule(primals: Any, tangents: Any) -> Any:
    ((a, b), k), ((ta, tb), tk) = primals, tangents
    assert tk == 0
    return product([a, b], k), {"y": (ta * b + a * tb) * k, "z": ta}


@each_backend
def test_vjp(backend: str) -> None:
    """F16: residuals, a gradient that isn't forward's, and numbers."""
    x = leaf(3)
    assert_compiles(lambda x: (clip_gradient(x, -1.0, 1.0) ** 2) * 3, (x,), x, backend=backend)


@each_backend
def test_vjp_of_nests(backend: str) -> None:
    """F16: nests as arguments, residuals, results and gradients, with a keyword-only argument."""
    a, b = leaf(3), leaf(3, seed=1)

    def program(a: Tensor, b: Tensor) -> Any:
        return weighted({"a": a.exp(), "b": [b]}, k=3.0)

    assert_compiles(program, (a, b), a, b, backend=backend)


@each_backend
def test_jvp(backend: str) -> None:
    """F16: a rule for tangents, which uses the function itself, is transposed in the graph."""
    x = leaf(3)
    assert_compiles(lambda x: log1pexp(log1pexp(x * 2)).sin(), (x,), x, backend=backend)


@each_backend
def test_jvp_of_nests(backend: str) -> None:
    """F16: one rule for a nest of tensors and a number."""
    a, b = leaf(3), leaf(3, seed=1)
    assert_compiles(lambda a, b: product([a, b.sin()], 2.0), (a, b), a, b, backend=backend)


def test_jvp_that_isn_t_forward_s() -> None:
    """F16: the gradient is by the rule, not by what the function computes."""

    @pullback.custom_jvp
    def rounded(x: Tensor) -> Tensor:
        return x.round()

    rounded.defjvps(lambda t, out, x: 3 * t)
    x = leaf(3)
    compiled = torch.compile(lambda x: rounded(x * 2), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], torch.full((3,), 6.0).double())


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -0.0], ids=str)
def test_jvp_at_special_values(value: float) -> None:
    """F16: values are the function's own to the sign of zero, whatever the rule makes of its tangents there."""

    @pullback.custom_jvp
    def same(x: Tensor) -> Tensor:
        return x.clone()

    same.defjvps(lambda t, out, x: t * x)
    x = torch.tensor([value, 1.0], dtype=torch.float64, requires_grad=True)
    out = torch.compile(same, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(torch.nan_to_num(out, nan=7.0), torch.nan_to_num(x, nan=7.0))
    assert torch.equal(out.signbit()[1:], x.signbit()[1:])
    assert bool(out[0].signbit() == x[0].signbit()) or math.isnan(value)


def test_without_a_gradient() -> None:
    """F16: where nothing is differentiated, the function itself is compiled."""
    x = leaf(3).detach()
    for function in (lambda x: clip_gradient(x, -1.0, 1.0), log1pexp):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), function(x))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), function(x))


class Scaling(torch.nn.Module):
    """A module with a method that has a rule."""

    k = 2.0

    @pullback.custom_vjp
    def scaled(self, x: Tensor) -> Tensor:
        """Return a multiple of x."""
        return x * self.k

    scaled.defvjp(lambda self, x: (x * self.k, (x, self.k)), lambda res, g: (None, 3 * g * res[0] * res[1]))

    def forward(self, x: Tensor) -> Tensor:
        """Call the method."""
        return self.scaled(x).sin()


def test_a_method() -> None:
    """F16: a method with a rule of its own is compiled whole, bound to its object."""
    x, module = leaf(3), Scaling()
    assert_compiles(lambda x: module(x) + Scaling.scaled(module, x), (x,), x)


def test_a_result_of_tuples() -> None:
    """F16: what a function returns may be a tuple that holds more than tensors."""

    @pullback.custom_vjp
    def several(x: Tensor) -> Any:
        return {"a": x * 2, "b": (x * 3, None, "s")}, [x.clone()]

    several.defvjp(lambda x: (several.fn(x), None), lambda _, g: (2 * g[0]["a"] + 5 * g[0]["b"][0] + 7 * g[1][0],))
    x = leaf(3)
    assert_compiles(several, (x,), x)
