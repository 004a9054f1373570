"""First gradients, in the surroundings of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.where.operations import CUBE, SET_UP, SQUARE, SWISH
from benchmarks.where.want import Call, Operation, Section, Want, classes, custom_op, direction, leaf, point, vjp


def gradient(f: Call) -> Tensor:
    """The first gradient."""
    x = leaf()
    (f(x) * direction()).sum().backward()
    assert x.grad is not None
    return x.grad


def checkpointed(f: Call) -> Tensor:
    """The first gradient through a region that is recomputed."""
    x = leaf()
    y = checkpoint(lambda x: f(x.sin()).cos(), x, use_reentrant=False)
    (y * direction()).sum().backward()
    assert x.grad is not None
    return x.grad


def offloaded(f: Call) -> Tensor:
    """The first gradient with saved tensors packed away."""
    x = leaf()
    with torch.autograd.graph.save_on_cpu():
        y = (f(x.sin()) * direction()).sum()
    y.backward()
    assert x.grad is not None
    return x.grad


def compiled(f: Call) -> Tensor:
    """The first gradient of a compiled region, with no graph break."""
    torch.compiler.reset()
    x = leaf()
    run = torch.compile(lambda x: f(x.sin()) * 2, fullgraph=True)
    (run(x) * direction()).sum().backward()
    assert x.grad is not None
    return x.grad


def compiled_transform(f: Call) -> Tensor:
    """torch.func.grad inside of a compiled region."""
    torch.compiler.reset()
    return torch.compile(torch.func.grad(lambda x: (f(x) * direction()).sum()), fullgraph=True)(point())


def doubled_gradient(base: type) -> Any:
    """The identity, with twice its gradient."""

    class Reweighted(base):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 2

    return Reweighted


REWEIGHTED = Operation(
    "Reweighted",
    lambda x: 2 * x - x.detach(),
    {
        **classes(doubled_gradient),
        **vjp("reweighted", lambda x: x.clone(), lambda x: (x.clone(), None), lambda _, g: (g * 2,)),
        **custom_op("reweighted", "(Tensor x) -> Tensor", torch.clone, lambda ctx, g: g * 2, fake=torch.empty_like),
    },
)
"""A gradient that isn't forward's, so that nobody can mistake one for the other."""


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
    return tuple(x.sort())  # type: ignore[return-value]


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
    "First gradients. The compiled rows use the default compiler.",
    [
        Want("first gradient", CUBE, gradient),
        Want("first gradient of a kernel", SQUARE, gradient),
        Want("first gradient, setup_context style", SET_UP, gradient),
        Want("an integer output beside a floating one", SORT, through_sort),
        Want("an argument that is changed in place", IN_PLACE, in_place),
        Want("non-reentrant checkpoint", SWISH, checkpointed),
        Want("saved tensors moved elsewhere by hooks", SWISH, offloaded),
        Want("torch.compile(fullgraph=True), forward and backward", CUBE, compiled, compiled=True),
        Want(
            "torch.compile(fullgraph=True) of torch.func.grad, a gradient that isn't forward's",
            REWEIGHTED,
            compiled_transform,
            compiled=True,
        ),
    ],
)
