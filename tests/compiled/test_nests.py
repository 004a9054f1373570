"""F13, F5: calls with containers and keyword-only arguments are compiled whole, with eager's gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pullback
from tests.call.nests import KINDS, SAVING, WAYS, function
from tests.call.products import STYLES
from tests.compiled.running import BACKENDS, assert_compiles
from tests.function.kinds import leaf

DICT, TUPLE = KINDS["dict"], KINDS["tuple"]


@pytest.mark.parametrize(
    ("saving", "style", "backend"), [*zip(SAVING, (*STYLES, "ctx"), (*BACKENDS, "eager"), strict=True)]
)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_argument(name: str, saving: str, style: str, backend: str) -> None:
    """F13: the leaves of each kind of container get eager's gradients, whatever forward keeps of them."""
    kind, a, b = KINDS[name], leaf(3), leaf(3, seed=1)
    made = function(kind, TUPLE, style=style, saving=saving)

    def program(a: Tensor, b: Tensor) -> Any:
        return made.apply(kind.make(a.sin(), b), 2.0)

    assert_compiles(program, (a, b), a, b, backend=backend)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_result(name: str, way: str) -> None:
    """F13: what forward returns comes out of compiled code as the same kind of container."""
    kind, a, b = KINDS[name], leaf(3), leaf(3, seed=1)
    made = function(DICT, kind, way=way)

    def program(a: Tensor, b: Tensor) -> Any:
        one, other = kind.take(made.apply({"a": a, "b": b.sin()}, 2.0))
        return one, other.exp()

    assert_compiles(program, (a, b), a, b)


@pytest.mark.parametrize("name", ["list", "dict", "dataclass"])
def test_containers_that_come_from_outside(name: str) -> None:
    """F13: a container that the compiled function is given is no other than one that it makes."""
    kind, a, b = KINDS[name], leaf(3), leaf(3, seed=1)
    made = function(kind, TUPLE)
    assert_compiles(lambda nest: made.apply(nest, 2.0), (a, b), kind.make(a, b))


class Affine(pullback.Function):
    """What a layer computes, on the layer itself."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Linear, x: Tensor) -> Tensor:
        """Apply the layer."""
        ctx.save_for_backward(x, layer.weight)
        return layer(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        """Return the gradients of the parameters by name."""
        x, weight = ctx.saved_tensors
        return {"layer": {"weight": g.T @ x, "bias": g.sum(0)}, "x": g @ weight}


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules(backend: str) -> None:
    """F13: a module among the arguments is a nest of its parameters in compiled code, too."""
    layer, x = nn.Linear(3, 2, dtype=torch.float64), leaf(4, 3)
    assert_compiles(lambda layer, x: Affine.apply(layer, x).sin(), (x, *layer.parameters()), layer, x, backend=backend)


def test_what_isn_t_differentiated_in_a_container() -> None:
    """F13: numbers, None and tensors that require no grad stay in their places, and get no gradient."""

    class Weighted(pullback.Function):
        @staticmethod
        def forward(ctx: Any, state: dict[str, Any], x: Tensor) -> Tensor:
            ctx.save_for_backward(state["w"][0], state["w"][1], x)
            ctx.power = state["power"]
            return state["w"][0] * state["w"][1] * x ** state["power"]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            _, fixed, x = ctx.saved_tensors
            assert ctx.needs_input_grad == (True, False)
            return {"state": {"w": [g * fixed * x**ctx.power, None], "power": None, "none": None}}

    a, fixed, x = leaf(3), leaf(3, seed=1).detach(), leaf(3, seed=2).detach()

    def program(a: Tensor, fixed: Tensor, x: Tensor) -> Tensor:
        return Weighted.apply({"w": [a, fixed], "power": 2, "none": None}, x)

    assert_compiles(program, (a,), a, fixed, x)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "given", [{}, {"k": 3.0}, {"k": "tensor"}, {"bias": "tensor"}, {"k": 2.0, "bias": "tensor"}], ids=str
)
def test_keyword_only_arguments(given: dict[str, Any], style: str) -> None:
    """F13: keyword-only arguments, given or left out, tensors or not, in both styles."""

    def compute(x: Tensor, *, k: Any = 2.0, bias: Any = None) -> Tensor:
        return x.sin() * k + (0 if bias is None else bias)

    def save(ctx: Any, x: Tensor, k: Any = 2.0, bias: Any = None) -> None:
        ctx.tensor = isinstance(k, Tensor)
        ctx.k, ctx.biased = None if ctx.tensor else k, bias is not None
        ctx.save_for_backward(x, *([k] if ctx.tensor else []))

    def forward(ctx: Any, x: Tensor, *, k: Any = 2.0, bias: Any = None) -> Tensor:
        save(ctx, x, k, bias)
        return compute(x, k=k, bias=bias)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, *rest = ctx.saved_tensors
        k = rest[0] if ctx.tensor else ctx.k
        return {"x": g * x.cos() * k, "k": g * x.sin() if ctx.tensor else None, "bias": g if ctx.biased else None}

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    if style == "setup_context":
        save_all = staticmethod(lambda ctx, inputs, output: save(ctx, *inputs))
        body |= {"forward": staticmethod(compute), "setup_context": save_all}
    made: Any = type("Keyworded", (pullback.Function,), body)
    x, extra = leaf(3), leaf(3, seed=1)

    def program(x: Tensor, extra: Tensor) -> Any:
        return made.apply(x * extra, **{name: extra if value == "tensor" else value for name, value in given.items()})

    assert_compiles(program, (x, extra), x, extra)


def test_a_function_of_another_function() -> None:
    """F13: nests through several calls, one within the other's forward and backward."""
    inner = function(DICT, DICT, way="by name")

    class Outer(pullback.Function):
        @staticmethod
        def forward(ctx: Any, pair: list[Tensor]) -> Any:
            ctx.save_for_backward(*pair)
            return inner.apply({"a": pair[0], "b": pair[1]}, 2.0)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            a, b = ctx.saved_tensors
            return (
                [
                    g["a"] * b * 2 + g["b"] * 3 * inner.apply({"a": a, "b": b}, 1.0)["b"] / a,
                    g["a"] * a * 2 + g["b"] * a**3,
                ],
            )

    a, b = leaf(3), leaf(3, seed=1)

    def program(a: Tensor, b: Tensor) -> Any:
        first = Outer.apply([a, b])
        return Outer.apply([first["a"], first["b"]])

    assert_compiles(program, (a, b), a, b)
