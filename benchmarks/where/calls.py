"""Arguments by keyword, and gradients by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.where.want import (
    Call,
    Operation,
    Section,
    Want,
    classes,
    custom_op,
    declared,
    direction,
    leaf,
    pair_gradients,
    vjp,
)


def weigh(base: type) -> Any:
    """A class whose second argument may be passed by keyword."""

    class WeighByName(base):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, grad_output):
            x, weight = ctx.saved_tensors
            return grad_output * weight, grad_output * x

    return WeighByName


def weigh_keyword_only(base: type) -> Any:
    """A class whose second argument must be passed by keyword."""

    class WeighByName(base):
        @staticmethod
        def forward(ctx, x, *, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, grad_output):
            x, weight = ctx.saved_tensors
            return grad_output * weight, grad_output * x

    return WeighByName


def weigh_keyword_only_set_up(base: type) -> Any:
    """The same in setup_context style."""

    class WeighByName(base):
        @staticmethod
        def forward(x, *, weight):
            return x * weight

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad_output):
            x, weight = ctx.saved_tensors
            return grad_output * weight, grad_output * x

    return WeighByName


def weighted_gradients(residuals: tuple[Tensor, Tensor], g: Tensor) -> tuple[Tensor, Tensor]:
    """The backward of custom_vjp."""
    x, weight = residuals
    return g * weight, g * x


def weighed(name: str, schema: str, backward: Call) -> dict[str, Any]:
    """The registered operator."""
    return custom_op(
        name,
        schema,
        lambda x, weight: x * weight,
        backward,
        lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        fake=lambda x, weight: torch.empty_like(x),
    )


def op_backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
    """The backward of custom_op."""
    return weighted_gradients(ctx.saved_tensors, g)


def weigh_function(x: Tensor, weight: Tensor) -> Tensor:
    """What custom_vjp decorates."""
    return x * weight


def weigh_function_keyword_only(x: Tensor, *, weight: Tensor) -> Tensor:
    """What custom_vjp decorates."""
    return x * weight


def weigh_fwd(x: Tensor, weight: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Its forward."""
    return x * weight, (x, weight)


def weigh_fwd_keyword_only(x: Tensor, *, weight: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Its forward."""
    return x * weight, (x, weight)


KEYWORD = Operation(
    "WeighByName",
    weigh_function,
    {
        **classes(weigh),
        **vjp("WeighByName", weigh_function, weigh_fwd, weighted_gradients),
        **weighed("WeighByName", "(Tensor x, Tensor weight) -> Tensor", op_backward),
    },
)
KEYWORD_ONLY = Operation(
    "WeighByName",
    weigh_function_keyword_only,
    {
        **classes(weigh_keyword_only),
        **vjp("WeighByName", weigh_function_keyword_only, weigh_fwd_keyword_only, weighted_gradients),
        **weighed("WeighByName", "(Tensor x, *, Tensor weight) -> Tensor", op_backward),
    },
)
KEYWORD_ONLY_SET_UP = Operation("WeighByName", weigh_function_keyword_only, classes(weigh_keyword_only_set_up))


def by_keyword(f: Call) -> Any:
    """The gradients of both arguments, one of them passed by keyword."""
    x, weight = leaf(), direction().requires_grad_()
    return pair_gradients((x, weight), f(x, weight=weight))


def weigh_by_name(base: type) -> Any:
    """A class that returns its gradients by argument name."""

    class WeighByName(base):
        @staticmethod
        def forward(ctx, x, scale, weight):
            ctx.save_for_backward(x, weight)
            ctx.scale = scale
            return x * weight * scale

        @staticmethod
        def backward(ctx, grad_output):
            x, weight = ctx.saved_tensors
            return {"weight": grad_output * x * ctx.scale, "x": grad_output * weight * ctx.scale}

    return WeighByName


def weigh_scaled(x: Tensor, scale: float, weight: Tensor) -> Tensor:
    """The operation."""
    return x * weight * scale


BY_NAME = Operation(
    "WeighByName",
    weigh_scaled,
    {
        **declared(weigh_by_name),
        **vjp(
            "WeighByName",
            weigh_scaled,
            lambda x, scale, weight: (x * weight * scale, (x, scale, weight)),
            lambda r, g: {"weight": g * r[0] * r[1], "x": g * r[2] * r[1]},
        ),
    },
)


def scaled(f: Call) -> Any:
    """The gradients of the tensors of three arguments."""
    x, weight = leaf(), direction().requires_grad_()
    return pair_gradients((x, weight), f(x, 2.0, weight))


SECTION = Section(
    "Arguments by name",
    "Arguments and gradients by keyword.",
    [
        Want("a tensor by keyword", KEYWORD, by_keyword),
        Want("a keyword-only tensor", KEYWORD_ONLY, by_keyword),
        Want("a keyword-only tensor, setup_context style", KEYWORD_ONLY_SET_UP, by_keyword),
        Want("gradients returned by argument name", BY_NAME, scaled),
    ],
)
