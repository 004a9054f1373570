"""First gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.where.kernels import SQUARE
from benchmarks.where.operations import CUBE, SET_UP
from benchmarks.where.want import Call, Operation, Section, Want, classes, custom_op, direction, leaf, vjp


def gradient(f: Call) -> Tensor:
    """The first gradient."""
    x = leaf()
    (f(x) * direction()).sum().backward()
    assert x.grad is not None
    return x.grad


def sorted_class(base: type) -> Any:
    """Values that have a gradient, and indices that have none."""

    class SortRows(base):
        @staticmethod
        def forward(ctx, x):
            values, indices = x.sort()
            ctx.save_for_backward(indices)
            ctx.mark_non_differentiable(indices)
            return values, indices

        @staticmethod
        def backward(ctx, grad_values, grad_indices):
            (indices,) = ctx.saved_tensors
            return torch.zeros_like(grad_values).scatter(0, indices, grad_values)

    return SortRows


def sort_function(x: Tensor) -> tuple[Tensor, Tensor]:
    """What custom_vjp decorates."""
    return tuple(x.sort())


SORT = Operation(
    "sort",
    sort_function,
    {
        **classes(sorted_class),
        **vjp(
            "sort",
            sort_function,
            lambda x: (sort_function(x), x.argsort()),
            lambda indices, g: (torch.zeros_like(g[0]).scatter(0, indices, g[0]),),
        ),
        **custom_op(
            "sort",
            "(Tensor x) -> (Tensor, Tensor)",
            sort_function,
            lambda ctx, g, _: torch.zeros_like(g).scatter(0, ctx.saved_tensors[0], g),
            lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
        ),
    },
)
"""A floating output and an integer one."""


def through_sort(f: Call) -> tuple[Tensor, Tensor]:
    """The gradient of the sorted values, weighted by their rank."""
    x = leaf()
    values, indices = f(x)
    (values * indices * direction()).sum().backward()
    assert x.grad is not None
    return x.grad, indices


def dirty_class(base: type) -> Any:
    """An operation in place."""

    class ScaleInPlace(base):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(3)

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 3

    return ScaleInPlace


IN_PLACE = Operation("ScaleInPlace", lambda x: x.mul_(3), classes(dirty_class))
"""Writes to its argument, and says so."""


def in_place(f: Call) -> Tensor:
    """The gradient behind a write to an intermediate."""
    x = leaf()
    y = x.sin()
    f(y)
    (y * direction()).sum().backward()
    assert x.grad is not None
    return x.grad


SECTION = Section(
    "Training",
    "First gradients.",
    [
        Want("first gradient", CUBE, gradient),
        Want("first gradient of a kernel", SQUARE, gradient),
        Want("first gradient, setup_context style", SET_UP, gradient),
        Want("an integer output beside a floating one", SORT, through_sort),
        Want("an argument that is changed in place", IN_PLACE, in_place),
    ],
)
