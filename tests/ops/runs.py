"""Calls of an operation and of its formula on the same arguments, and what came of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tests.ops.kinds import Arguments, Kind

SEED = 20


def drawn(kind: Kind, seed: int = 0) -> Arguments:
    """Arguments of a kind; the same for the same seed."""
    return kind.draw(torch.Generator().manual_seed(seed))


def is_float(value: Any) -> bool:
    """Whether it is a tensor of floating-point numbers."""
    return isinstance(value, Tensor) and value.is_floating_point()


def mapped(arguments: Arguments, change: Callable[[Tensor], Tensor]) -> Arguments:
    """The arguments with each floating-point tensor changed; what required grad still does, as a leaf."""
    leaves, form = tree_flatten(arguments)
    new = [change(x.detach()).detach().requires_grad_(x.requires_grad) if is_float(x) else x for x in leaves]
    return tree_unflatten(new, form)


def tracked(arguments: Arguments) -> list[Tensor]:
    """The tensors that require grad."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.requires_grad]


def outputs_of(function: Callable[..., Any], arguments: Arguments) -> list[Tensor]:
    """What a call returns, as a list; the same random numbers each time."""
    torch.manual_seed(SEED)
    return [leaf for leaf in tree_leaves(function(*arguments)) if isinstance(leaf, Tensor)]


def cotangents(outputs: list[Tensor]) -> list[Tensor]:
    """One for each output; the same numbers for the same shapes, whatever the dtype."""
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype) for out in outputs]


def differentiable(outputs: list[Tensor], given: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs that depend on what requires grad, and their cotangents; one of several may not."""
    pairs = [(out, cotangent) for out, cotangent in zip(outputs, given, strict=True) if out.requires_grad]
    return [out for out, _ in pairs], [cotangent for _, cotangent in pairs]


def gradients(function: Callable[..., Any], arguments: Arguments) -> tuple[list[Tensor], list[Tensor]]:
    """Values and first gradients of all that requires grad; zeros where none came."""
    outputs, leaves = outputs_of(function, arguments), tracked(arguments)
    ends, given = differentiable(outputs, cotangents(outputs))
    found = torch.autograd.grad(ends, leaves, given, allow_unused=True, materialize_grads=True)
    return [out.detach() for out in outputs], list(found)


def second(function: Callable[..., Any], arguments: Arguments) -> list[Tensor]:
    """The gradients of a weighted sum of the gradients, by all arguments and cotangents."""
    outputs, leaves = outputs_of(function, arguments), tracked(arguments)
    given = [cotangent.requires_grad_() for cotangent in cotangents(outputs)]
    ends, sent = differentiable(outputs, given)
    first = torch.autograd.grad(ends, leaves, sent, create_graph=True, allow_unused=True, materialize_grads=True)
    connected = [gradient for gradient in first if gradient.requires_grad]
    weights = [torch.cos(torch.arange(g.numel(), dtype=g.dtype)).view(g.shape) for g in connected]
    total = sum((gradient * weight).sum() for gradient, weight in zip(connected, weights, strict=True))
    if not isinstance(total, Tensor):
        return [torch.zeros_like(leaf) for leaf in (*leaves, *given)]
    return list(torch.autograd.grad(total, (*leaves, *given), allow_unused=True, materialize_grads=True))
