"""Gradients of arguments that no sample differentiates by."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import first_order
from pullback.finding import Finding
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


class Product(Function):
    """x * w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        return g * w, g * x


def findings(function: Any, *others: Tensor) -> tuple[Finding, ...]:
    """What is found where x alone requires grad."""
    return run_probe(first_order.PROBE, function, (leaf(3), *(others or (leaf(3).detach(),))))[1]


def test_right_gradients_zeros_and_none_pass() -> None:
    """A constant to its author gets nothing, or zeros; and what raises for it promises nothing."""

    class NoGradient(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            return Product.backward(ctx, g)[0], None

    class Zeros(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            return Product.backward(ctx, g)[0], torch.zeros_like(g)

    class Refuses(Product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            assert not w.requires_grad
            return Product.forward(ctx, x, w)

    for function in (Product, NoGradient, Zeros, Refuses):
        assert findings(function) == ()
    assert findings(Product, torch.tensor([1, 2, 3])) == ()


def test_a_wrong_gradient_is_found() -> None:
    """The sample doesn't ask for it, and the next caller may."""

    class Twice(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            gx, gw = Product.backward(ctx, g)
            assert gw is not None
            return gx, 2 * gw

    (finding,) = findings(Twice)
    assert (finding.rule, finding.evidence["argument"]) == ("PB203", "w")
    assert "doesn't require grad in the sample, and it isn't the derivative where it alone does" in finding.message
    assert shows_the_fault(finding, Twice=Twice)
    assert Twice.__name__ in finding.repro


@pytest.mark.parametrize("at_once", [True, False])
def test_a_wrong_flag_is_found(at_once: bool) -> None:
    """The gradient is there with that of x, and alone it is None, or made of None."""

    class Guarded(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            x, w = ctx.saved_tensors
            gx = g * w if ctx.needs_input_grad[0] else None
            if at_once:
                return gx, g * x if ctx.needs_input_grad[0] else None
            return gx, gx * x / w

    (finding,) = findings(Guarded)
    assert finding.rule == ("PB203" if at_once else "PB208")
    assert finding.evidence["argument"] == "w"
    assert shows_the_fault(finding, Guarded=Guarded)


def test_a_wrong_formula_is_told_before_the_flag_that_it_needs() -> None:
    """Both are one fault: the gradient of x in the place of the cotangent."""

    class Mixed(Product):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
            x, w = ctx.saved_tensors
            gx = g * w if ctx.needs_input_grad[0] else None
            return gx, gx * x

    (finding,) = findings(Mixed)
    assert finding.rule == "PB203"
    assert "where it too does" in finding.message
