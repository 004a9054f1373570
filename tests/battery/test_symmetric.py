"""Arguments that are meant to be symmetric matrices are changed symmetrically."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pullback.battery.check import check

PROBES = ("first_order", "second_order", "special_points", "shapes")


def positive_definite() -> tuple[Tensor]:
    """One symmetric positive definite matrix."""
    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return ((x @ x.T + 4 * torch.eye(4, dtype=torch.float64)).requires_grad_(),)


def log_det(gradient: Callable[[Tensor], Tensor]) -> type[torch.autograd.Function]:
    """The logarithm of a determinant by the lower half of a matrix, with that function of the inverse as gradient."""

    class LogDet(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return 2 * torch.linalg.cholesky(a).diagonal(dim1=-2, dim2=-1).log().sum(-1)

        @staticmethod
        def backward(ctx, grad_output):
            (a,) = ctx.saved_tensors
            return grad_output[..., None, None] * gradient(torch.linalg.inv(a))

    return LogDet


def test_a_symmetric_gradient_is_right_where_one_half_is_read() -> None:
    """Forward doesn't vary with the upper half, and by its lower half it varies twice as much."""
    report = check(log_det(lambda inverse: inverse.mT), positive_definite(), only=PROBES)
    assert not report.findings, report


@pytest.mark.parametrize(
    ("gradient", "rule"),
    [
        (lambda inverse: inverse / 2, "PB203"),
        (lambda inverse: 2 * inverse - inverse.diagonal().diag(), "PB203"),  # twice off the diagonal, in both halves
        (lambda inverse: 2 * inverse - inverse.detach(), "PB205"),
    ],
)
def test_a_wrong_one_is_found(gradient: Callable[[Tensor], Tensor], rule: str) -> None:
    """Along symmetric directions, too, a wrong gradient or a cut graph shows, and so it does in the lines."""
    (finding,) = check(log_det(gradient), positive_definite(), only=PROBES).findings
    assert finding.rule == rule
    assert "(a + a.mT) / 2" in finding.repro


class Square(torch.autograd.Function):
    """a², which is refused where a isn't symmetric."""

    right = True

    @staticmethod
    def forward(ctx, a):
        if not torch.equal(a, a.mT):
            raise ValueError("a must be symmetric")
        ctx.save_for_backward(a)
        return a @ a

    @classmethod
    def backward(cls, ctx, grad_output):
        (a,) = ctx.saved_tensors
        found = grad_output @ a.mT + (a.mT @ grad_output if cls.right else 0)
        return (found + found.mT) / 2


class HalfOfSquare(Square):
    """One of its two terms is missing."""

    right = False


def test_a_forward_that_demands_symmetry_is_checked() -> None:
    """What refuses a single element that moved takes two that mirror each other."""
    sample = positive_definite()
    assert not check(Square, sample, only=PROBES).findings
    assert [finding.rule for finding in check(HalfOfSquare, sample, only=PROBES).findings] == ["PB203"]


class Eigenvalues(torch.autograd.Function):
    """Those of the lower half; nobody says for which matrices."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(a)
        ctx.save_for_backward(vectors)
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (vectors,) = ctx.saved_tensors
        return (vectors * grad_output.unsqueeze(-2)) @ vectors.mT


def test_a_guessed_matrix_is_made_symmetric() -> None:
    """Forward reads one half of whatever is guessed, and backward returns both."""
    report = check(Eigenvalues, only=PROBES)
    assert not report.findings, report


class Solve(torch.autograd.Function):
    """a⁻¹ b for any matrix; backward forgets the transpose."""

    @staticmethod
    def forward(ctx, a, b):
        x = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        a, x = ctx.saved_tensors
        u = torch.linalg.solve(a.mT, grad_output)
        return -torch.outer(x, u), u


def test_a_symmetric_sample_alone_says_nothing() -> None:
    """A transposed gradient by a symmetric matrix that is read in full is wrong: its elements are forward's own."""
    b = torch.ones(4, dtype=torch.float64, requires_grad=True)
    (finding,) = check(Solve, (*positive_definite(), b), only=("first_order",)).findings
    assert (finding.rule, finding.evidence["argument"]) == ("PB203", "a")
