"""Higher derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.where.kernels import (
    ONCE,
    REFERENCED,
    SQUARE,
    square,
    square_function,
    square_gradient_kernel,
    square_kernel,
)
from benchmarks.where.operations import CUBE, KEPT, SWISH
from benchmarks.where.want import (
    CUSTOM_OP,
    CUSTOM_VJP,
    Call,
    Operation,
    Section,
    Want,
    classes,
    custom_op,
    declared,
    direction,
    leaf,
    vjp,
)


def nth(order: int) -> Any:
    """A derivative of that order, in a loss with another term: alone, what PyTorch has lost could end in an error."""

    def measure(f: Call) -> Tensor:
        x = leaf()
        y = (f(x) * direction()).sum() + (x**5).sum()
        for left in reversed(range(order)):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=left > 0)
        return y

    return measure


def penalty(f: Call) -> Tensor:
    """The gradient of a loss with a gradient penalty, as it is trained with."""
    x = leaf()
    loss = (f(x) * direction()).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + (gradient**2).sum()).backward()
    assert x.grad is not None
    return x.grad


def by_hand(base: type) -> Any:
    """A class whose backward is a second class, as PyTorch's tutorial on double backward has it."""

    class SquareBackward(base):
        @staticmethod
        def forward(ctx, x, g):
            ctx.save_for_backward(x, g)
            return square_gradient_kernel(x, g)

        @staticmethod
        def backward(ctx, grad_output):
            x, g = ctx.saved_tensors
            return 2 * g * grad_output, 2 * x * grad_output

    class SquareTwice(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return square_kernel(x)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return SquareBackward.apply(x, grad_output)

    return SquareTwice


def decorated_twice() -> Call:
    """The same with two decorated functions."""
    (make_inner,) = vjp(
        "square_backward",
        lambda x, g: square_gradient_kernel(x, g),
        lambda x, g: (square_gradient_kernel(x, g), (x, g)),
        lambda residuals, gg: (2 * residuals[1] * gg, 2 * residuals[0] * gg),
    ).values()
    inner = make_inner()
    (make,) = vjp("square", square_function, lambda x: (square_kernel(x), x), lambda x, g: (inner(x, g),)).values()
    return make()


def registered_twice() -> Call:
    """The same with two registered operators."""
    (make_inner,) = custom_op(
        "square_backward",
        "(Tensor x, Tensor g) -> Tensor",
        square_gradient_kernel,
        lambda ctx, gg: (2 * ctx.saved_tensors[1] * gg, 2 * ctx.saved_tensors[0] * gg),
        lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    ).values()
    inner = make_inner()
    (make,) = custom_op(
        "square_twice",
        "(Tensor x) -> Tensor",
        square_kernel,
        lambda ctx, g: inner(*ctx.saved_tensors, g),
        lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    ).values()
    return make()


BY_HAND = Operation(
    "square",
    lambda x: x * x,
    {**classes(by_hand), CUSTOM_VJP: decorated_twice, CUSTOM_OP: registered_twice},
)
"""A kernel whose gradient is an operation with a derivative of its own."""


def with_double_backward(base: type) -> Any:
    """The kernel with a method for its second derivative."""

    class SquareDoubled(square(base)):
        @staticmethod
        def double_backward(ctx, grad_grad_x):
            return 2 * grad_grad_x  # f''(x) times what comes

    return SquareDoubled


DOUBLED = Operation("SquareDoubled", lambda x: x * x, declared(with_double_backward))
"""A kernel with double_backward."""


def straight_through(base: type) -> Any:
    """Rounding with the gradient of tanh, and a declaration that says so."""

    class Rounded(base):
        @staticmethod
        def forward(ctx, x):
            t = torch.tanh(x)
            ctx.save_for_backward(t)
            return x.round()

        @staticmethod
        def backward(ctx, grad_output):
            (t,) = ctx.saved_tensors
            return grad_output * (1 - t * t)

        @staticmethod
        def surrogate(x):
            return torch.tanh(x)

    return Rounded


ROUNDED = Operation(
    "Rounded",
    torch.tanh,
    {
        **declared(straight_through),
        **vjp(
            "Rounded",
            lambda x: x.round(),
            lambda x: (x.round(), torch.tanh(x)),
            lambda t, g: (g * (1 - t * t),),
            surrogate=lambda x: torch.tanh(x),
        ),
    },
)
"""A gradient that isn't forward's, on purpose; its truth is the surrogate's."""

SECTION = Section(
    "Higher derivatives",
    "By `torch.autograd.grad(…, create_graph=True)`.",
    [
        Want("second derivative, an argument saved", CUBE, nth(2)),
        Want("second derivative, an intermediate saved", SWISH, nth(2)),
        Want("second derivative, an intermediate kept on ctx", KEPT, nth(2)),
        Want("third derivative, an intermediate saved", SWISH, nth(3)),
        Want("gradient penalty, an intermediate saved", SWISH, penalty),
        Want("gradient penalty of a kernel, nothing more given", SQUARE, penalty),
        Want("gradient penalty of a kernel marked once_differentiable", ONCE, penalty),
        Want("gradient penalty of a kernel, its backward an operation of its own", BY_HAND, penalty),
        Want("gradient penalty of a kernel, a `double_backward` given", DOUBLED, penalty),
        Want("gradient penalty of a kernel, a `reference` given", REFERENCED, penalty),
        Want("second derivative of a straight-through gradient, the `surrogate` given", ROUNDED, nth(2)),
    ],
)
