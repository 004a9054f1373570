"""F1: contiguous_grads = True hands backward contiguous gradients, however they arrive."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.function.kinds import leaf
from tests.torch_features import needs_boxes


def watching(seen: list[Any], **attributes: Any) -> Any:
    """Define x ↦ (3 x, 5 x), whose backward notes whether its gradients are contiguous."""

    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 3, x * 5

    def backward(ctx: Any, *grads: Any) -> Tensor:
        g, h = grads[0] if attributes.get("boxed_grads_call") else grads
        seen.append([grad if grad is None else grad.is_contiguous() for grad in (g, h)])
        return (0 if g is None else 3 * g) + (0 if h is None else 5 * h)

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Watching", (pullback.Function,), {**body, **attributes})


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
@pytest.mark.parametrize("boxed", [pytest.param(False, id=""), pytest.param(True, id="boxed", marks=needs_boxes)])
def test_gradients_are_made_contiguous(boxed: bool, create_graph: bool) -> None:
    """F1: expanded and transposed gradients arrive contiguous where it is declared, boxed ones too; None stays None."""
    for declared in (False, True):
        seen: list[Any] = []
        function = watching(seen, contiguous_grads=declared, boxed_grads_call=boxed)
        x = leaf(2, 3)
        first, second = function.apply(x)
        weights = leaf(3, 2, seed=1).detach()
        loss = first.sum() + (second.t() * weights).sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=create_graph)
        assert torch.equal(gradient, 3 + 5 * weights.t())
        first, _ = function.apply(x)
        (gradient,) = torch.autograd.grad(first.sum(), x, create_graph=create_graph)
        assert torch.equal(gradient, torch.full_like(x, 3))
        assert seen == [[declared, declared], [declared, None]]
