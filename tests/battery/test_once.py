"""The probe `once`: a declared once_differentiable keeps its promise to raise."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback
from pullback.battery.probes import once
from pullback.finding import Status
from tests.battery.running import leaf, run_probe


class Square(Function):
    """x², declared once differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g


class PullbackSquare(pullback.Function):
    """The same on pullback's Function."""

    forward = Square.forward
    backward = Square.backward


def test_the_declaration_is_respected() -> None:
    """PyTorch's guard raises when the gradient is differentiated: passed, for both base classes."""
    for function in (Square, PullbackSquare):
        outcome, findings = run_probe(once.PROBE, function, (leaf(2),))
        assert outcome.status is Status.PASSED
        assert findings == ()


def test_a_stripped_guard_is_found() -> None:
    """An outer decorator detaches what comes out, and with it the node that would raise: PB207."""
    inner = Square.backward

    @functools.wraps(inner)
    def stripped(ctx: Any, g: Tensor) -> Tensor:
        result: Tensor = inner(ctx, g)
        return result.detach()

    class Stripped(Square):
        backward = staticmethod(stripped)

    _, (finding,) = run_probe(once.PROBE, Stripped, (leaf(2),))
    assert finding.rule == "PB207"
    assert "once differentiable" in finding.message
    assert "outermost" in finding.remedy


def test_a_gradient_of_zero_has_nothing_to_lose() -> None:
    """Where the gradient is 0 whatever grad_output is, a constant is right."""

    class Zero(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.zeros_like(x)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.zeros_like(g)

    _, findings = run_probe(once.PROBE, Zero, (leaf(2),))
    assert findings == ()


def test_without_the_declaration_it_is_skipped() -> None:
    """Nothing was promised: skipped with a reason."""

    class Undeclared(Square):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    outcome, _ = run_probe(once.PROBE, Undeclared, (leaf(2),))
    assert outcome.status is Status.SKIPPED
    assert "once_differentiable" in outcome.reason
