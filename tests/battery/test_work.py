"""Which operators only served a gradient that nobody asked for."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.check import check, make_subject
from pullback.battery.nodes import node_of
from pullback.battery.work import Waste, wasted_work
from tests.battery.running import leaf


class Product(Function):
    """A product and a constant term, with everything computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        shared = g.exp().log()
        return (shared * w).view(g.shape), (shared * x).neg_()


def waste_for(needed: str) -> dict[str, Waste]:
    """The waste when only one argument requires grad."""
    subject = make_subject(Product, (leaf(4), leaf(4)))
    inputs = subject.fresh(subject.cases[0], requires={needed})
    outputs = subject.call(inputs)
    node = node_of(subject, outputs)
    return dict(wasted_work(subject, node, inputs, needed, [torch.ones(4, dtype=torch.float64)]))


def test_shared_operators_are_not_wasted_and_views_cost_nothing() -> None:
    """exp and log serve both; the product and the in-place sign serve w alone."""
    assert waste_for("x") == {"w": Waste(("aten.mul",), 4)}
    assert waste_for("w") == {"x": Waste(("aten.mul",), 4)}


def test_a_sparse_gradient_goes_through_the_whole_battery() -> None:
    """It has no plain memory to compare addresses of."""

    class Lookup(Function):
        @staticmethod
        def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
            ctx.shape = table.shape
            ctx.save_for_backward(index)
            return table[index]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (index,) = ctx.saved_tensors
            return torch.sparse_coo_tensor(index[None], g, ctx.shape), None

    only = ["first_order", "subsets", "linearity", "layouts", "precision", "second_order"]
    assert check(Lookup, (leaf(4, 2), torch.tensor([0, 2, 2])), only=only).findings == ()
