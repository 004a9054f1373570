"""Where forward is an iteration that doesn't converge, nothing is asked of its derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pullback.battery.check import check, make_subject
from pullback.battery.iterations import diverges
from pullback.battery.oracle import moved
from pullback.rules import Severity

PROBES = ("first_order", "second_order", "special_points", "shapes")


def solution(m: Tensor, e: Tensor) -> Tensor:
    """E of Kepler's equation E - e sin E = m, by an iteration that converges where e lies between -1 and 1."""
    found = m
    for _ in range(100):
        found = m + e * found.sin()
    return found


class Kepler(torch.autograd.Function):
    """The solution, with the derivative of an implicit function."""

    @staticmethod
    def forward(ctx, m, e, sign=1.0):
        ctx.save_for_backward(m, e)
        ctx.sign = sign
        return solution(m, e)

    @staticmethod
    def backward(ctx, grad_output):
        m, e = ctx.saved_tensors
        found = Kepler.apply(m, e)
        slope = grad_output / (1 - e * found.cos())
        slope = torch.where(m < 0, ctx.sign * slope, slope)
        return slope, slope * found.sin(), None


def sample() -> tuple[Tensor, Tensor]:
    """Some m, and values of e for which the iteration converges."""
    m = torch.tensor([0.3, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    return m, torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)


def test_nothing_is_asked_where_an_iteration_does_not_converge() -> None:
    """At values that nobody gave, some of them beyond 1."""
    report = check(Kepler, sample(), only=PROBES)
    assert not report.findings, report


def test_a_wrong_gradient_where_it_converges_is_found() -> None:
    """The iteration converges for each m."""
    findings = check(Kepler, (*sample(), -1.0), only=PROBES).findings
    assert {finding.rule for finding in findings} & {"PB203", "PB506"}


@pytest.mark.parametrize("wrong", [1.0, 2.0])
def test_a_loop_that_goes_somewhere_is_no_iteration(wrong: float) -> None:
    """A running mean is as unsettled at its sample as elsewhere, and its gradients are judged everywhere."""

    def mean(x: Tensor) -> Tensor:
        kept = x[0]
        for row in x[1:]:
            kept = 0.5 * kept + 0.5 * row
        return kept

    subject = make_subject(mean, (torch.linspace(0.5, 2.0, 24, dtype=torch.float64).view(8, 3),))
    (case,) = subject.cases
    assert not diverges(subject, case, moved(subject, case, lambda _, tensor: -wrong * tensor))


def test_an_iteration_that_needs_more_steps_than_it_has_diverges() -> None:
    """Its last step is still large."""
    subject = make_subject(solution, sample())
    (case,) = subject.cases
    there = moved(subject, case, lambda name, tensor: tensor if name == "m" else tensor * 0 - 1.2)
    assert diverges(subject, case, there)
    assert not diverges(subject, case, case)


class Det(torch.autograd.Function):
    """A determinant, with the inverse in its gradient; for a singular matrix that raises, or something else does."""

    @staticmethod
    def forward(ctx, a, otherwise):
        ctx.save_for_backward(a)
        ctx.otherwise = otherwise
        return torch.linalg.det(a)

    @staticmethod
    def backward(ctx, grad_output):
        (a,) = ctx.saved_tensors
        det = torch.linalg.det(a)
        if ctx.otherwise and bool(det == 0):
            raise RuntimeError("shapes don't fit")
        return grad_output * det * torch.linalg.inv(a).mT, None


def test_a_singular_matrix_that_backward_refuses_aloud_is_a_hint() -> None:
    """The derivative exists there, and by the inverse it isn't to be had; whatever else raises is an error."""
    a = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (finding,) = check(Det, (a, False), only=("special_points",)).findings
    assert (finding.rule, finding.severity) == ("PB506", Severity.HINT)
    (finding,) = check(Det, (a, True), only=("special_points",)).findings
    assert (finding.rule, finding.severity) == ("PB506", Severity.ERROR)


class Loose(torch.autograd.Function):
    """The solution of x = a + 0.3 sin x to five digits of 1, or to none, with the derivative of the solution."""

    @staticmethod
    def forward(ctx, a, wrong):
        found = a.clone()
        for _ in range(100):
            before, found = found, a + 0.3 * found.sin()
            if not bool(((found - before).abs() >= 1e-5).any()):
                break
        ctx.save_for_backward(found)
        ctx.wrong = wrong
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (found,) = ctx.saved_tensors
        slope = 1 / (1 - 0.3 * found.cos())
        return grad_output * torch.where(found < 0, ctx.wrong * slope, slope), None


def test_an_iteration_that_stops_early_for_small_numbers_is_let_be() -> None:
    """Its first step is below the tolerance there; at other values a wrong gradient is found."""
    a = torch.linspace(0.3, 0.9, 4, dtype=torch.float64).requires_grad_()
    report = check(Loose, (a, 1.0), only=("special_points",))
    assert not report.findings, report
    assert check(Loose, (a, 0.5), only=("special_points",)).findings


@pytest.mark.parametrize("seed", [21, 22, 25, 26, 29, 32, 38, 39])
def test_a_solver_with_a_tolerance_is_judged_by_it(seed: int) -> None:
    """Differences of what it returns have five digits; an error of a percent is found."""
    a = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    report = check(Loose, (a, 1.0), only=("first_order",))
    assert not report.findings, report

    class Off(Loose):
        @staticmethod
        def backward(ctx, grad_output):
            return Loose.backward(ctx, 1.01 * grad_output)

    assert [finding.rule for finding in check(Off, (a, 1.0), only=("first_order",)).findings] == ["PB203"]
