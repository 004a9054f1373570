"""Gradients that are off by a common factor that single elements are too coarse for."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import first_order
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, run_probe


class Mean(Function):
    """The mean of all squares."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square().mean()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * 2 * x / x.numel()


def mean(made: Any) -> type[Function]:
    """Mean, whose gradient is what `made` makes of the right one."""

    class Other(Mean):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return made(Mean.backward(ctx, g), *ctx.saved_tensors)

    return Other


@pytest.mark.parametrize("factor", [1 + 5e-7, 1 - 2e-6])
def test_a_small_common_factor_is_found(factor: float) -> None:
    """PB203, with the factor: a millionth in a denominator is below what differences by single elements see."""
    function = mean(lambda gradient, x: gradient * factor)
    _, (finding,) = run_probe(first_order.PROBE, function, (leaf(3, 4),))
    assert finding.rule == "PB203"
    assert finding.message == (
        f"the gradient of x is off by a factor of 1 {'+' if factor > 1 else '-'} {abs(factor - 1):.1g}, the same along "
        "each of some random lines"
    )
    assert shows_the_fault(finding, Other=function)


def _by_steps(gradient: Tensor, x: Tensor) -> Tensor:
    """gradient, as a sum that stops early."""
    total, term = torch.zeros_like(gradient), gradient / 2
    while term.abs().max() > 1e-6 * gradient.abs().max():
        total, term = total + term, term / 2
    return total


@pytest.mark.parametrize(
    "made",
    [
        lambda gradient, x: gradient,
        lambda gradient, x: gradient * (1 + 1e-6 * x),
        lambda gradient, x: gradient + 1e-6 * gradient.roll(1),
        _by_steps,
        lambda gradient, x: (gradient.float() * (1 + 5e-7)).double(),
    ],
)
def test_what_is_off_otherwise_is_no_fault_of_this_kind(made: Any) -> None:
    """Approximations are off by another share in each element; a solver stops where it may; float32 is told apart."""
    _, findings = run_probe(first_order.PROBE, mean(made), (leaf(3, 4),))
    assert not any("off by a factor" in finding.message for finding in findings)


def test_of_few_elements_nothing_is_said() -> None:
    """Any two or three are off by one factor, nearly."""
    function = mean(lambda gradient, x: gradient * (1 + 5e-7))
    assert run_probe(first_order.PROBE, function, (leaf(3),))[1] == ()
