"""Graphs that no tensor holds, and what the garbage collector hides."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

import pullback
from pullback import ops
from tests.torch_features import a_grad_fn_holds_its_node


class Keeps(torch.autograd.Function):
    """Saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0]


@pytest.mark.parametrize("collections", [False, True])
@pytest.mark.parametrize("holder", ["grad_fn", "edge"])
@pytest.mark.parametrize("function", [torch.exp, Keeps.apply, lambda x: ops.swiglu(x.exp(), x)])
def test_a_node_holds_its_graph(function: Any, holder: str, collections: bool) -> None:
    """A grad_fn in a variable, or a GradientEdge, keeps what the graph keeps, though its tensor is gone."""
    if holder == "grad_fn" and function is not torch.exp and not a_grad_fn_holds_its_node():
        pytest.skip("to this torch the grad_fn of a Function is no node once its output is gone")
    x = torch.randn(10, requires_grad=True)
    with pullback.saved_memory() as expected:
        y = function(x * 1.0)
    with pullback.saved_memory() as ledger:
        result = function(x * 1.0)
        held = result.grad_fn if holder == "grad_fn" else get_gradient_edge(result)
        del result
        if collections:
            gc.collect()
    assert ledger.total == expected.total > 0
    del held
    assert y.requires_grad


def test_a_node_from_before_the_block_is_not_the_blocks() -> None:
    """As with tensors: what was there before doesn't count."""
    x = torch.randn(10, requires_grad=True)
    node = x.exp().grad_fn
    with pullback.saved_memory() as ledger:
        pass
    assert ledger.total == 0
    assert node is not None


def test_a_freeze_in_the_block_is_said_to_hide_tensors() -> None:
    """gc.freeze moves objects to where the collector doesn't tell of them."""
    x = torch.randn(10, requires_grad=True)
    try:
        with pullback.saved_memory() as ledger:
            y = x.exp()
            gc.freeze()
    finally:
        gc.unfreeze()
    assert ledger.unseen == (
        "gc.freeze() in the block: it hides tensors made before it, and graphs that they alone hold.",
    )
    assert y.requires_grad
