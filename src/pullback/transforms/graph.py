"""Small nodes that higher orders are built from, and the walk that tells what a gradient depends on.

NOTE [nodes inside transforms]: inside a torch.func transform (vmap around torch.autograd.grad) PyTorch lets no node
like these be made on plain tensors. Its own operations take their place there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction

from pullback.call.dependence import has_values
from pullback.errors import PullbackError
from pullback.torch_private import is_wrapped, leaf_behind, transforms_active


class _Source(TorchFunction):
    """A tensor with a node of its own, so that a walk can find it; nothing flows further back."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, None


class _Substitute(TorchFunction):
    """The value of one tensor, the derivative of another."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, traced: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, grad


class _Guard(TorchFunction):
    """A value whose derivative isn't known: raises when it is asked for, on every path to `anchors`."""

    @staticmethod
    def forward(ctx: Any, failure: Callable[[], Exception], value: Tensor, *anchors: Tensor) -> Tensor:
        ctx.failure = failure
        return value.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        error = ctx.failure()
        try:
            raise error
        except PullbackError:  # the traceback begins anew, outside pullback
            error.__traceback__ = None
            raise


def applied(function: Any, *arguments: Any) -> Any:
    """``function.apply(*arguments)``, which PyTorch leaves untyped."""
    return function.apply(*arguments)


def source(tensor: Tensor) -> Tensor:
    """`tensor` as the start of a graph: it requires grad, and what is sent back to it goes nowhere."""
    with torch.enable_grad():
        if transforms_active():  # NOTE [nodes inside transforms]
            return tensor.detach() - torch.zeros((), dtype=tensor.dtype, device=tensor.device, requires_grad=True)
        anchor = torch.empty(0, requires_grad=True)
        made: Tensor = applied(_Source, anchor, tensor)
    return made


def substitute(value: Tensor, traced: Tensor) -> Tensor:
    """`value`, differentiated as if it were `traced`: the two are the same up to rounding."""
    if not traced.requires_grad:
        return value
    if transforms_active():  # NOTE [nodes inside transforms]
        return corrected(value, traced)
    made: Tensor = applied(_Substitute, value, traced.to(value.dtype) if traced.dtype != value.dtype else traced)
    return made


def corrected(value: Tensor, traced: Tensor) -> Tensor:
    """`traced` with a constant added that makes it `value`, up to rounding."""
    with torch.no_grad():
        difference = value - traced
    return traced + difference


def guard(value: Tensor, failure: Callable[[], Exception], anchors: Iterable[Tensor]) -> Tensor:
    """`value`, which raises when it is differentiated with respect to one of `anchors` or what lies behind them."""
    made: Tensor = applied(_Guard, failure, value, *anchors)
    return made


def alias(tensor: Tensor) -> Tensor:
    """The same values and strides behind a node of their own; gradients flow through."""
    made: Tensor = torch.ops.aten.alias.default(tensor)
    return made


def has_nonzero(tensor: Tensor) -> bool:
    """Whether an element of `tensor`, dense or sparse, isn't zero; taken for granted where its values can't be read."""
    if not has_values(tensor):  # without values no derivative can be lost
        return False
    try:
        return bool(torch.count_nonzero(dense_values(tensor.detach())))
    except RuntimeError:  # a batch, or a tensor that is being traced
        return True


def is_batched(tensor: Tensor | None) -> bool:
    """Whether `tensor` stands for a batch of them."""
    if tensor is None:
        return False
    try:
        tensor.detach()  # for which there is no rule in the batching that torch.autograd.grad does itself
    except RuntimeError:
        return True
    return is_wrapped(tensor)


def dense_values(tensor: Tensor) -> Tensor:
    """What a sparse or nested tensor stores; a strided one as it is."""
    if tensor.layout is torch.strided and not tensor.is_nested:
        return tensor
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
    return tensor.values() if tensor.layout is not torch.strided else torch.cat([t.flatten() for t in tensor.unbind()])


class Reach:
    """What the graph behind a tensor leads to.

    Args:
        tensor: The tensor to start from.
        marked: Nodes to look for; the walk doesn't go behind them.
        edge: Nodes where the walk ends, as the graph behind them belongs to the rest of the model.

    Attributes:
        found: Which of `marked` the tensor depends on.
        grounded: Whether it depends on anything that isn't a `source`.
        leaves: The nodes of leaves that it depends on, other than those of `edge`.
        broken: Whether an operator without a derivative lies between: PyTorch gives it a node, and sends nothing back.
    """

    def __init__(self, tensor: Tensor, marked: Iterable[Any], edge: Iterable[Any]) -> None:
        self.found: set[Any] = set()
        self.leaves: set[Any] = set()
        self.broken = False
        self.grounded = tensor.requires_grad and tensor.grad_fn is None
        wanted, ends = set(marked), set(edge)
        stack, seen = [tensor.grad_fn] if tensor.grad_fn is not None else [], set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in wanted:
                self.found.add(node)
            is_source = isinstance(node, _Source._backward_cls)
            is_broken = node.name().endswith("NotImplemented")
            self.broken = self.broken or is_broken
            ends_here = is_source or is_broken or node in wanted or node in ends
            behind = [] if ends_here else [n for n, _ in node.next_functions if n]
            self.grounded = self.grounded or (not behind and not is_source)
            if node not in ends and leaf_behind(node) is not None:
                self.leaves.add(node)
            stack.extend(behind)
