"""F13: the default compiler, once for each way to write an operation; what it is made of is held by the other tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.call.nests import KINDS, function
from tests.call.products import product
from tests.compiled.running import assert_compiles
from tests.compiled.test_decorated import log1pexp, weighted
from tests.compiled.test_nests import Affine
from tests.function.kinds import leaf


def declared() -> Any:
    """Make a class with all that higher orders may be given beside backward."""

    def companion(x: Tensor, w: Tensor, k: float = 3) -> Tensor:
        return x * w * k

    return product(lambda gx, gw: {"x": gx, "w": gw}, reference=staticmethod(companion))


def twice() -> Any:
    """Make a class with a double_backward."""

    def double_backward(ctx: Any, ggx: Tensor, ggw: Tensor, _: None) -> Any:
        raise AssertionError("compiled code has no second derivative")

    return product(double_backward=staticmethod(double_backward))


def with_jvp() -> Any:
    """Make a class with a jvp and a rule for vmap."""
    return product(jvp=staticmethod(lambda ctx, *t: None), vmap=staticmethod(lambda info, dims, *args: None))


PRODUCTS: dict[str, Callable[[], Any]] = {
    "ctx": product,
    "setup_context": lambda: product(style="setup_context"),
    "vjp": lambda: product(method="vjp"),
    "reference, gradients by name": declared,
    "double_backward": twice,
    "jvp": with_jvp,
    "adopted": lambda: pullback.adopt(product(base=torch.autograd.Function)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_flat_calls(name: str) -> None:
    """F13: each style and declaration, compiled with the default compiler."""
    made, x, w = PRODUCTS[name](), leaf(5), leaf(5, seed=1)

    def program(x: Tensor, w: Tensor) -> Any:
        return made.apply(x.sin(), w, 2.0) * x

    assert_compiles(program, (x, w), x, w, backend="inductor")


def test_containers() -> None:
    """F13: nests in and out, and a module, with the default compiler."""
    made, layer = function(KINDS["dict"], KINDS["list"], way="by name"), torch.nn.Linear(3, 2, dtype=torch.float64)
    x, w = leaf(4, 3), leaf(4, 3, seed=1)

    def program(x: Tensor, w: Tensor) -> Any:
        first, second = made.apply({"a": x, "b": w.sin()}, k=2.0)
        return Affine.apply(layer, first * second)

    assert_compiles(program, (x, w, *layer.parameters()), x, w, backend="inductor")


def test_decorated_functions() -> None:
    """F13, F16: functions with a rule of their own, with the default compiler."""
    a, b = leaf(5), leaf(5, seed=1)

    def program(a: Tensor, b: Tensor) -> Any:
        return weighted({"a": log1pexp(a), "b": [b]}, k=3.0)

    assert_compiles(program, (a, b), a, b, backend="inductor")


def test_autocast() -> None:
    """F13, F14: a class that declares cast_inputs, with the default compiler."""

    class Matmul(pullback.Function):
        cast_inputs = torch.float32

        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g @ w.T, x.T @ g

    x, w = leaf(3, 4).detach().float().requires_grad_(), leaf(4, 2).detach().float().requires_grad_()

    def program(x: Tensor, w: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = Matmul.apply(x, w)
            assert out.dtype is torch.float32
            return out

    assert_compiles(program, (x, w), x, w, backend="inductor")
