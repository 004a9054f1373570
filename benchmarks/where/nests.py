"""Containers of tensors, as arguments and as results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, func

from benchmarks.where.want import (
    Call,
    Operation,
    Section,
    Want,
    classes,
    custom_op,
    direction,
    leaf,
    pair_gradients,
    point,
    vjp,
)

# A nest: a pair of tensors a and b in some container, of which the operation is a·sin(b), or which it returns.


def product(a: Tensor, b: Tensor) -> Tensor:
    """The operation on the pair."""
    return a * b.sin()


def product_gradients(a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Its gradient, tensor by tensor."""
    return g * b.sin(), g * a * b.cos()


def on_nest(take: Call, put: Call) -> Call:
    """A class whose one argument is a nest, which `take` takes apart and `put` puts together."""

    def make(base: type) -> Any:
        class PairProduct(base):
            @staticmethod
            def forward(ctx, pair):
                a, b = take(pair)
                ctx.save_for_backward(a, b)
                return product(a, b)

            @staticmethod
            def backward(ctx, grad_output):
                return (put(*product_gradients(*ctx.saved_tensors, grad_output)),)

        return PairProduct

    return make


def of_nest(take: Call, put: Call) -> dict[str, Any]:
    """The same in the class columns and as a decorated function."""
    return {
        **classes(on_nest(take, put)),
        **vjp(
            "PairProduct",
            lambda pair: product(*take(pair)),
            lambda pair: (product(*take(pair)), take(pair)),
            lambda pair, g: (put(*product_gradients(*pair, g)),),
        ),
    }


def values(pair: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The tensors of a dict, by name."""
    return pair["a"], pair["b"]


def parameters(pair: Any) -> tuple[Tensor, ...]:
    """The parameters of a module, by name."""
    return pair.a, pair.b


def by_name(a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """A dict of both."""
    return {"a": a, "b": b}


LIST = Operation(
    "PairProduct",
    lambda pair: product(*pair),
    {
        **of_nest(lambda pair: pair, lambda a, b: [a, b]),
        **custom_op(
            "PairProduct",
            "(Tensor[] pair) -> Tensor",
            lambda pair: product(*pair),
            lambda ctx, g: [*product_gradients(*ctx.saved_tensors, g)],
            lambda ctx, inputs, output: ctx.save_for_backward(*inputs[0]),
            fake=lambda pair: torch.empty_like(pair[0]),
        ),
    },
)


class Pair(torch.nn.Module):
    """Two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(value) for value in (point(), direction()))


def of_dict(pair: dict[str, Tensor]) -> Tensor:
    """The operation on a dict, for custom_op to read its annotations."""
    return product(*values(pair))


def of_module(pair: Pair) -> Tensor:
    """The operation on a module's parameters."""
    return product(*parameters(pair))


def unreached(ctx: Any, g: Any) -> None:
    """A backward for what custom_op doesn't take."""
    raise NotImplementedError


DICT = Operation(
    "PairProduct", of_dict, {**of_nest(values, by_name), **custom_op("PairProduct", None, of_dict, unreached)}
)
MODULE = Operation(
    "PairProduct", of_module, {**of_nest(parameters, by_name), **custom_op("PairProduct", None, of_module, unreached)}
)


def through_list(f: Call) -> Any:
    """Gradients of the tensors of a list."""
    pair = (leaf(), direction().requires_grad_())
    return pair_gradients(pair, f([*pair]))


def through_dict(f: Call) -> Any:
    """Gradients of the tensors of a dict."""
    pair = (leaf(), direction().requires_grad_())
    return pair_gradients(pair, f(by_name(*pair)))


def through_module(f: Call) -> Any:
    """Gradients of the parameters of a module."""
    module = Pair()
    return pair_gradients((module.a, module.b), f(module))


def transformed_dict(f: Call) -> Any:
    """torch.func.grad by a dict."""
    return func.grad(lambda pair: (f(pair) * direction()).sum())(by_name(point(), direction()))


def returning(put: Call, take: Call) -> Call:
    """A class that returns a nest of sine and cosine."""

    def make(base: type) -> Any:
        class SineCosine(base):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return put(x.sin(), x.cos())

            @staticmethod
            def backward(ctx, grads):
                (x,) = ctx.saved_tensors
                g_sin, g_cos = take(grads)
                return g_sin * x.cos() - g_cos * x.sin()

        return SineCosine

    return make


def returned(put: Call, take: Call) -> dict[str, Any]:
    """The same in the class columns and as a decorated function."""

    def bwd(x: Tensor, grads: Any) -> tuple[Tensor]:
        g_sin, g_cos = take(grads)
        return (g_sin * x.cos() - g_cos * x.sin(),)

    return {
        **classes(returning(put, take)),
        **vjp("SineCosine", lambda x: put(x.sin(), x.cos()), lambda x: (put(x.sin(), x.cos()), x), bwd),
    }


LIST_OUT = Operation(
    "SineCosine",
    lambda x: [x.sin(), x.cos()],
    {
        **returned(lambda a, b: [a, b], lambda grads: grads),
        **custom_op(
            "SineCosine",
            "(Tensor x) -> Tensor[]",
            lambda x: [x.sin(), x.cos()],
            lambda ctx, grads: grads[0] * ctx.saved_tensors[0].cos() - grads[1] * ctx.saved_tensors[0].sin(),
            lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
            fake=lambda x: [torch.empty_like(x), torch.empty_like(x)],
        ),
    },
)


def to_dict(x: Tensor) -> dict[str, Tensor]:
    """The operation that returns a dict, for custom_op to read its annotations."""
    return by_name(x.sin(), x.cos())


DICT_OUT = Operation(
    "SineCosine", to_dict, {**returned(by_name, values), **custom_op("SineCosine", None, to_dict, unreached)}
)


def through_outputs(f: Call) -> Any:
    """The gradient through each tensor of what is returned, and what it is returned in."""
    x = leaf()
    output = f(x)
    first, second = output.values() if isinstance(output, dict) else output
    loss = (first * direction() + second * second).sum() + x.sum()
    return type(output).__name__, torch.autograd.grad(loss, x)


SECTION = Section(
    "Containers of tensors",
    "Each tensor has its own gradient.",
    [
        Want("a list of tensors as an argument", LIST, through_list),
        Want("a dict of tensors as an argument", DICT, through_dict),
        Want("a module as an argument, gradients for its parameters", MODULE, through_module),
        Want("a dict of tensors under torch.func.grad", DICT, transformed_dict),
        Want("a list of tensors as the result", LIST_OUT, through_outputs),
        Want("a dict of tensors as the result", DICT_OUT, through_outputs),
    ],
)
