"""Complex arguments for samples that are real."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import first_order
from pullback.battery.samples import Sample
from pullback.finding import Finding
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe

NOTE = "complex arguments: forward takes them, and backward has no conjugates, as for real ones alone"


class Product(Function):
    """a @ b + c, with the conjugates of the convention."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b + c

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return g @ b.mH, a.mH @ g, g


class RealAlone(Product):
    """As most are written; the gradient of c is right for complex numbers by chance."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return g @ b.mT, a.mT @ g, g


class OneForgotten(Product):
    """One conjugate of two."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return g @ b.mH, a.mT @ g, g


def found(function: Any, vary: tuple[str, ...] = ("dtype",)) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Findings and notes for real matrices."""
    sample = Sample((leaf(2, 3), leaf(3, 2), leaf(2, 2)), vary=vary)
    outcome, findings = run_probe(first_order.PROBE, function, sample)
    return findings, outcome.notes


def test_conjugates_everywhere_pass() -> None:
    """And nothing is noted."""
    assert found(Product) == ((), ())


def test_a_backward_for_real_numbers_alone_is_noted() -> None:
    """Nobody promised complex ones, so nothing is found."""
    assert found(RealAlone) == ((), (NOTE,))


def test_a_conjugate_that_one_gradient_lacks_is_found() -> None:
    """The other has it, so complex arguments are meant; they were never in a sample."""
    (finding,), _ = found(OneForgotten)
    assert (finding.rule, finding.evidence["argument"]) == ("PB203", "b")
    assert (
        "forward takes complex arguments, and the gradient of b is wrong for them, while that of a" in finding.message
    )
    assert "refuse complex arguments" in finding.remedy
    assert shows_the_fault(finding, OneForgotten=OneForgotten)


class Solved(Function):
    """a⁻¹ b for symmetric a, whose lower half alone is read, as for real numbers; cholesky_solve has a conjugate."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        lower = torch.linalg.cholesky(a)
        solved = torch.cholesky_solve(b, lower)
        ctx.save_for_backward(lower, solved)
        return solved

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        lower, solved = ctx.saved_tensors
        gb = torch.cholesky_solve(g, lower)
        ga = -gb @ solved.mT
        return ga.tril() + ga.triu(1).mT, gb


class SolvedWithSome(Solved):
    """The same with one conjugate by hand, and so meant for complex numbers; another is forgotten."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        lower, solved = ctx.saved_tensors
        gb = torch.cholesky_solve(g, lower)
        ga = -gb @ solved.mH
        return ga.tril() + ga.triu(1).mT, gb


def positive() -> Tensor:
    """A symmetric positive definite matrix."""
    root = leaf(3, 3).detach()
    return (root @ root.mT + 3 * torch.eye(3, dtype=root.dtype)).requires_grad_()


def test_a_conjugate_inside_an_operator_is_no_promise() -> None:
    """cholesky_solve conjugates whoever calls it: of real samples alone that says nothing, and a note comes."""
    outcome, findings = run_probe(first_order.PROBE, Solved, (positive(), leaf(3, 2)))
    assert findings == ()
    assert [note for note in outcome.notes if "complex" in note] == [
        "complex arguments: forward takes them, and no conjugate in backward is but that of an operator"
    ]


def test_beside_one_by_hand_a_conjugate_inside_an_operator_counts() -> None:
    """PB203 where backward writes a conjugate, and the gradient is wrong for complex numbers all the same."""
    _, (finding,) = run_probe(first_order.PROBE, SolvedWithSome, (positive(), leaf(3, 2)))
    assert (finding.rule, finding.evidence["argument"]) == ("PB203", "a")


def test_what_the_author_forbids_is_not_tried() -> None:
    """No other dtypes, no complex ones."""
    assert found(OneForgotten, vary=("values",)) == ((), ())


def test_a_refusal_is_noted() -> None:
    """forward may say that it takes real numbers."""

    class Refuses(OneForgotten):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            if a.is_complex():
                raise TypeError("real numbers, please")
            return Product.forward(ctx, a, b, c)

    assert found(Refuses) == ((), ("refused: complex arguments (TypeError: real numbers, please)",))


@pytest.mark.parametrize("function", [torch.sin, torch.abs, lambda x: (x * x.conj()).real, lambda x: x.real, torch.sgn])
def test_functions_of_pytorch_are_right(function: Callable[..., Tensor]) -> None:
    """Holomorphic ones and others, to complex and to real numbers."""
    outcome, findings = run_probe(first_order.PROBE, function, (leaf(4),))
    assert findings == ()
    assert not any("complex" in note for note in outcome.notes)


def test_without_a_differentiable_output_there_is_nothing_to_judge() -> None:
    """That is another finding's; with complex arguments it is no other."""
    outcome, findings = run_probe(first_order.PROBE, lambda x: x.detach() * 2, (leaf(4),))
    assert "PB123" not in rules(findings)
    assert not any("complex" in note for note in outcome.notes)


def test_a_detour_through_complex64_is_found() -> None:
    """PB214: for real arguments nothing is rounded."""

    class Turned(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.t()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.t().to(torch.complex64).to(g.dtype) if g.is_complex() else g.t()

    _, (finding,) = run_probe(first_order.PROBE, Turned, (leaf(2, 3),))
    assert (finding.rule, finding.where) == ("PB214", "argument x, sample 0")
    assert finding.message.startswith("the gradient of x is complex128 and has the precision of float32")
    assert shows_the_fault(finding, Turned=Turned)
