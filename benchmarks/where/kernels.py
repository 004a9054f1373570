"""Kernels: operations that neither autograd nor vmap can look into, with more or less told about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.where.want import Operation, classes, custom_op, declared, vjp


def kernel(function: Any, *tensors: Tensor) -> Tensor:
    """Run NumPy on tensors, as a stand-in for a kernel: autograd and vmap see nothing of it."""
    return torch.from_numpy(np.asarray(function(*(tensor.detach().numpy() for tensor in tensors))))


def square_kernel(x: Tensor) -> Tensor:
    """The forward kernel."""
    return kernel(lambda x: x * x, x)


def square_gradient_kernel(x: Tensor, g: Tensor) -> Tensor:
    """The backward kernel."""
    return kernel(lambda x, g: 2 * x * g, x, g)


def square(base: type) -> Any:
    """A class whose forward and backward are kernels."""

    class Square(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return square_kernel(x)

        @staticmethod
        def backward(ctx, grad_output):
            return square_gradient_kernel(*ctx.saved_tensors, grad_output)

    return Square


def square_function(x: Tensor) -> Tensor:
    """What custom_vjp decorates."""
    return square_kernel(x)


SQUARE = Operation(
    "square",
    lambda x: x * x,
    {
        **classes(square),
        **vjp("square", square_function, lambda x: (square_kernel(x), x), lambda x, g: (square_gradient_kernel(x, g),)),
        **custom_op(
            "square",
            "(Tensor x) -> Tensor",
            square_function,
            lambda ctx, g: square_gradient_kernel(*ctx.saved_tensors, g),
            lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        ),
    },
)
"""A kernel in both directions, and nothing else given."""


def square_with_reference(base: type) -> Any:
    """The kernels, and the formula that they compute."""

    class Square(square(base)):
        @staticmethod
        def reference(x):
            return x * x

    return Square


REFERENCED = Operation(
    "square",
    lambda x: x * x,
    {
        **declared(square_with_reference),
        **vjp(
            "square",
            square_function,
            lambda x: (square_kernel(x), x),
            lambda x, g: (square_gradient_kernel(x, g),),
            reference=lambda x: x * x,
        ),
    },
)
"""The kernel with a formula."""


def batched(base: type) -> Any:
    """A kernel in setup_context style that brings its own rule for vmap."""

    class SquareBatched(base):
        @staticmethod
        def forward(x):
            return square_kernel(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad_output):
            return square_gradient_kernel(*ctx.saved_tensors, grad_output)

        @staticmethod
        def vmap(info, in_dims, x):
            return SquareBatched.apply(x), in_dims[0]

    return SquareBatched


BATCHED = Operation(
    "SquareBatched",
    lambda x: x * x,
    {
        **classes(batched),
        **custom_op(
            "SquareBatched",
            "(Tensor x) -> Tensor",
            square_kernel,
            lambda ctx, g: square_gradient_kernel(*ctx.saved_tensors, g),
            lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
            vmap=lambda info, in_dims, x: (square_kernel(x), in_dims[0]),
        ),
    },
)
"""A kernel with its own rule for vmap."""


def once(base: type) -> Any:
    """A kernel whose author declares that there is no second derivative."""

    class SquareOnce(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return square_kernel(x)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad_output):
            return square_gradient_kernel(*ctx.saved_tensors, grad_output)

    return SquareOnce


ONCE = Operation("SquareOnce", lambda x: x * x, classes(once))
"""A kernel that is declared to be once differentiable."""
