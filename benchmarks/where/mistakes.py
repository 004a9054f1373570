"""What an error says when an operation is written or called wrong: words that it has to name stand in the row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.where.calls import KEYWORD, weigh_function, weigh_fwd, weighed
from benchmarks.where.want import (
    CUSTOM_OP,
    CUSTOM_VJP,
    Call,
    Operation,
    Section,
    Want,
    classes,
    custom_op,
    direction,
    leaf,
    pair_gradients,
    vjp,
)


def forgetful(base: type) -> Any:
    """A backward that forgets an argument."""

    class WeighForgetful(base):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, grad_output):
            _, weight = ctx.saved_tensors
            return grad_output * weight

    return WeighForgetful


FORGETFUL = Operation(
    "WeighForgetful",
    weigh_function,
    {
        **classes(forgetful),
        **vjp("WeighForgetful", weigh_function, weigh_fwd, lambda residuals, g: (g * residuals[1],)),
        **weighed(
            "WeighForgetful",
            "(Tensor x, Tensor weight) -> Tensor",
            lambda ctx, g: g * ctx.saved_tensors[1],
        ),
    },
)


def pair_of_leaves(f: Call) -> Any:
    """The gradients of both arguments."""
    x, weight = leaf(), direction().requires_grad_()
    return pair_gradients((x, weight), f(x, weight))


def overwritten(f: Call) -> Any:
    """The gradients after an argument that was saved has been written to."""
    x, weight = leaf(), direction().requires_grad_()
    moved = weight.clone()
    output = f(x, moved)
    moved.mul_(2)
    return pair_gradients((x, weight), output)


def capturing(base: type) -> Any:
    """A class that reads a parameter from outside."""
    outside = direction().requires_grad_()

    class WeighCaptured(base):
        @staticmethod
        def forward(ctx, x):
            return x * outside

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * outside

    return WeighCaptured


def decorated_capturing() -> Call:
    """The same as a decorated function."""
    outside = direction().requires_grad_()

    def weigh_captured(x: Tensor) -> Tensor:
        return x * outside

    (make,) = vjp("WeighCaptured", weigh_captured, lambda x: (x * outside, None), lambda _, g: (g * outside,)).values()
    return make()


def registered_capturing() -> Call:
    """The same as a registered operator."""
    outside = direction().requires_grad_()
    (make,) = custom_op(
        "WeighCaptured", "(Tensor x) -> Tensor", lambda x: x * outside, lambda ctx, g: g * outside
    ).values()
    return make()


CAPTURED = Operation(
    "WeighCaptured",
    lambda x: x * direction(),
    {**classes(capturing), CUSTOM_VJP: decorated_capturing, CUSTOM_OP: registered_capturing},
)


def one_leaf(f: Call) -> Any:
    """A call and its gradient."""
    x = leaf()
    return torch.autograd.grad((f(x) * direction()).sum(), x)


SECTION = Section(
    "Mistakes",
    "Something is written or called wrong, and the right answer is an error that names the argument. "
    "What a class captures is found by `pullback check`, PB503, and not by the call.",
    [
        Want("backward forgets the gradient of an argument", FORGETFUL, pair_of_leaves, error=("weight",)),
        Want("a saved argument is changed before backward", KEYWORD, overwritten, error=("weight",)),
        Want("a tensor that requires grad is captured, not passed", CAPTURED, one_leaf, error=("outside",)),
    ],
)
