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
from pullback.rules import Severity
from tests.battery.repros import shown, shows_the_fault
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
    """A guard that raises when the gradient is differentiated is no fault."""
    _, findings = run_probe(once.PROBE, PullbackSquare, (leaf(2),))
    assert [finding for finding in findings if finding.severity is not Severity.HINT] == []


_NEEDLESS = (
    "backward is declared once differentiable, and without the declaration its derivative is right at every sample"
)


def test_a_declaration_without_need_is_a_hint() -> None:
    """PB205 as a hint where it makes a second differentiation raise, as pullback's guard does."""
    _, (finding,) = run_probe(once.PROBE, PullbackSquare, (leaf(2),))
    assert (finding.rule, finding.severity, finding.message) == ("PB205", Severity.HINT, _NEEDLESS)
    assert finding.remedy == "Drop once_differentiable, unless a second derivative is to be refused."
    assert "once_differentiable" in shown(finding, Square=Square, PullbackSquare=PullbackSquare)


def test_a_declaration_that_loses_what_would_be_right_is_a_hint_that_says_so() -> None:
    """PyTorch's own guard isn't on the way to an argument; the usual idiom all the same, and taken at its word."""
    _, (finding,) = run_probe(once.PROBE, Square, (leaf(2),))
    assert (finding.rule, finding.severity) == ("PB205", Severity.HINT)
    assert finding.message == (
        f"{_NEEDLESS}; with it torch.autograd.grad loses that in silence, since PyTorch's guard isn't on its way"
    )
    assert shows_the_fault(finding, Square=Square)


def test_a_declaration_with_need_passes() -> None:
    """What was computed in forward and saved, or leaves autograd, has no second derivative of its own."""

    class Saved(Square):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(2 * x)
            return x**2

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (slope,) = ctx.saved_tensors
            return slope * g

    class PullbackSaved(pullback.Function):
        forward = Saved.forward
        backward = Saved.backward

    class Opaque(Square):
        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return torch.from_numpy(2 * x.detach().numpy() * g.detach().numpy())

    for function in (Saved, PullbackSaved, Opaque):
        outcome, findings = run_probe(once.PROBE, function, (leaf(2),))
        assert (outcome.status, findings) == (Status.PASSED, ())


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
