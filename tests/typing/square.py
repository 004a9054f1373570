"""A typed Function, as a user writes it: mypy --strict and pyright accept it without an ignore."""

import torch
from torch import Tensor

import pullback


class Square(pullback.Function):
    """x squared, element by element."""

    @staticmethod
    def forward(ctx: pullback.Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: pullback.Context, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


def gradient(x: Tensor) -> Tensor:
    """The gradient of the sum of squares."""
    y: Tensor = Square.apply(x)
    (result,) = torch.autograd.grad(y.sum(), x)
    return result
