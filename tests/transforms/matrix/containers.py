"""Kinds that take or give containers of tensors and keyword-only arguments, and kinds without a class."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pullback
from tests.transforms.matrix.kind import Kinds, floats

KINDS = Kinds()


@KINDS.kind(lambda xs: xs[0] * xs[1].exp(), floats((3,), (3,)), use=lambda f, x, y: f([x, y]))
def list_argument() -> Any:
    """Take a list of tensors, and save an intermediate."""

    class ProductExp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, xs: list[Tensor]) -> Tensor:
            e = xs[1].exp()
            ctx.save_for_backward(*xs, e)
            return xs[0] * e

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> list[Tensor]:
            x, _, e = ctx.saved_tensors
            return [g * e, g * x * e]

    return ProductExp


def _both(state: dict[str, Tensor], power: int) -> dict[str, Tensor]:
    return {"product": state["x"] ** power * state["y"], "sine": state["y"].sin()}


@KINDS.kind(_both, floats((3,), (3,)), use=lambda f, x, y: tuple(f({"x": x, "y": y}, 3).values()))
def dict_to_dict() -> Any:
    """Take a dict and a number, and give a dict, whose cotangent is one too."""

    class ProductAndSine(pullback.Function):
        @staticmethod
        def forward(ctx: Any, state: dict[str, Tensor], power: int) -> dict[str, Tensor]:
            ctx.save_for_backward(state["x"], state["y"])
            ctx.power = power
            return _both(state, power)

        @staticmethod
        def backward(ctx: Any, g: dict[str, Tensor]) -> tuple[dict[str, Tensor], None]:
            (x, y), power = ctx.saved_tensors, ctx.power
            by_y = g["product"] * x**power + g["sine"] * y.cos()
            return {"x": g["product"] * y * power * x ** (power - 1), "y": by_y}, None

    return ProductAndSine


class Pair(NamedTuple):
    """Two tensors."""

    first: Tensor
    second: Tensor


@KINDS.kind(
    lambda pair: Pair(pair.first * pair.second, pair.first.exp()),
    floats((3,), (3,)),
    use=lambda f, x, y: tuple(f(Pair(x, y))),
)
def named_tuples() -> Any:
    """Take a named tuple, and give one, whose entries are outputs as of any tuple."""

    class ProductAndExp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, pair: Pair) -> Pair:
            e = pair.first.exp()
            ctx.save_for_backward(*pair, e)
            return Pair(pair.first * pair.second, e)

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Pair]:
            x, y, e = ctx.saved_tensors
            return (Pair(g * y + h * e, g * x),)

    return ProductAndExp


@KINDS.kind(
    lambda x, *, scale, shift: (x * scale).tanh() + shift,
    floats((3,), (3,)),
    use=lambda f, x, s: f(x, scale=2.0, shift=s),
)
def keyword_only() -> Any:
    """Take a number and a tensor by keyword alone, in setup_context style."""

    class ScaledTanh(pullback.Function):
        @staticmethod
        def forward(x: Tensor, *, scale: float, shift: Tensor) -> Tensor:
            return (x * scale).tanh() + shift

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            x, ctx.scale, _ = inputs
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, Tensor]:
            (x,) = ctx.saved_tensors
            return g * ctx.scale * (1 - (x * ctx.scale).tanh() ** 2), None, g

    return ScaledTanh


def applied(function: Any) -> Any:
    """A decorated function in the place of a class."""
    return SimpleNamespace(apply=function, __name__=function.__name__)


def log1pexp(x: Tensor) -> Tensor:
    """log(1 + e^x), in the way that overflows."""
    return (1 + x.exp()).log()


@KINDS.kind(log1pexp, floats((3,)))
def custom_vjp() -> Any:
    """Decorate a function with custom_vjp."""
    decorated = pullback.custom_vjp(log1pexp)

    def fwd(x: Tensor) -> tuple[Tensor, Tensor]:
        return log1pexp(x), x

    def bwd(x: Tensor, g: Tensor) -> tuple[Tensor]:
        return (g * x.sigmoid(),)

    decorated.defvjp(fwd, bwd)
    return applied(decorated)


def _weighted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp() * y, y.square().sum()


@KINDS.kind(_weighted, floats((3,), (3,)), unsaved="PB206")
def custom_vjp_residuals() -> Any:
    """Keep an intermediate in a dict of residuals, for two results."""
    decorated = pullback.custom_vjp(_weighted)

    def fwd(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
        e = x.exp()
        return (e * y, y.square().sum()), {"e": e, "y": y}

    def bwd(kept: dict[str, Tensor], cotangents: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        g, h = cotangents
        return {"x": g * kept["e"] * kept["y"], "y": g * kept["e"] + 2 * h * kept["y"]}

    decorated.defvjp(fwd, bwd)
    return applied(decorated)


@KINDS.kind(lambda x, y: (x * y).sin(), floats((3,), (3,)))
def custom_jvp() -> Any:
    """Decorate a function with custom_jvp."""

    def sine_of_product(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x * y)

    decorated = pullback.custom_jvp(sine_of_product)

    @decorated.defjvp
    def rule(primals: tuple[Tensor, Tensor], tangents: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        (x, y), (s, t) = primals, tangents
        return decorated(x, y), torch.cos(x * y) * (s * y + x * t)

    return applied(decorated)
