"""What the torch that runs the tests can do, tried out: a test whose premise it lacks is skipped, with that reason."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.autograd import Function


class _Same(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def _takes_keywords() -> bool:
    try:
        _Same.apply(x=torch.ones(1))
    except TypeError:
        return False
    return True


# Whether torch's own `apply` takes arguments by name; pullback's does on any torch.
KEYWORDS = _takes_keywords()

# Whether a backward can have its gradients in one list; to a torch that can't, `boxed_grads_call` means nothing.
BOXES = hasattr(Function, "boxed_grads_call")

needs_keywords = pytest.mark.skipif(not KEYWORDS, reason="the apply of this torch takes no arguments by name")
needs_boxes = pytest.mark.skipif(not BOXES, reason="this torch hands no backward its gradients in one list")


class _HoldsItself(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.cycle = ctx
        return 2 * x


class _CountsNodes(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * grad * len(ctx.next_functions)


def a_cycle_keeps_what_was_saved() -> bool:
    """Tell whether what was saved outlives the graph where ctx refers to itself; else such a cycle costs nothing."""
    collects = gc.isenabled()
    gc.disable()
    try:
        x = torch.ones(1, requires_grad=True) * 1
        alive = weakref.ref(x)
        _HoldsItself.apply(x)
        del x
        return alive() is not None
    finally:
        if collects:
            gc.enable()


def a_grad_fn_holds_its_node() -> bool:
    """Tell whether the grad_fn of a Function's output, held alone, keeps the node; else the graph goes without it."""
    node: Any = _Same.apply(torch.ones(1, requires_grad=True)).grad_fn
    try:
        node._sequence_nr()
    except RuntimeError:
        return False
    return True


def compiles_next_functions() -> bool:
    """Tell whether a backward that reads `ctx.next_functions` is compiled at all."""
    x = torch.ones(1, requires_grad=True)
    try:
        torch.compile(_CountsNodes.apply, backend="eager", fullgraph=True)(x).sum().backward()
    except Exception:  # whatever torch's tracer runs into
        return False
    return True


needs_cycles = pytest.mark.skipif(
    not a_cycle_keeps_what_was_saved(), reason="on this torch, what is saved on a ctx in a cycle is freed"
)
