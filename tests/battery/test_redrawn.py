"""The sample with values from a normal distribution: which ones are drawn, and what only they show."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.case import Case
from pullback.battery.check import make_subject
from pullback.battery.probes import special_points
from pullback.battery.redrawn import redrawn, resized
from pullback.battery.samples import Sample
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Cube(Function):
    """x³, and what backward makes of x before it is used, for subclasses to spoil."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def read(x: Tensor) -> Tensor:
        """x, as backward reads it."""
        return x

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * cls.read(x) * x


@pytest.mark.parametrize(
    "read",
    [lambda x: torch.where(x.abs() < 0.05, 0.05, x), lambda x: torch.where((x > 20) & (x < 100), 20, x)],
    ids=["near 0", "beyond 20"],
)
@pytest.mark.parametrize("seed", range(2))
def test_a_formula_that_fails_for_small_or_for_large_values_is_found(
    read: Callable[[Tensor], Tensor], seed: int
) -> None:
    """Values of the size of the sample's don't get there."""

    class Spoilt(Cube):
        @staticmethod
        def read(x: Tensor) -> Tensor:
            return read(x)

    sample = (torch.linspace(0.5, 1.5, 9, dtype=torch.float64).requires_grad_(),)
    _, (finding,) = run_probe(special_points.PROBE, Spoilt, sample, seed=seed)
    assert "with values " in finding.message
    assert shows_the_fault(finding, Spoilt=Spoilt)
    assert run_probe(special_points.PROBE, Cube, sample, seed=seed)[1] == ()


def test_values_of_other_sizes_are_the_samples_own() -> None:
    """What doesn't vary stays, and so does a variant out that forward refuses."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        if x.abs().max() > 20:
            raise ValueError("too large")
        return x * w

    subject = make_subject(product, (torch.ones(2, dtype=torch.float64, requires_grad=True), torch.ones(2).double()))
    (case,) = subject.all_cases
    ((label, variant),) = resized(subject, case)
    assert label == "values divided by 64"
    assert [tensor.tolist() for tensor in variant.sample.args] == [[1 / 64] * 2, [1.0] * 2]  # type: ignore[attr-defined]  # both are tensors


def test_a_matrix_that_is_symmetric_and_doesnt_vary_stays() -> None:
    """What solves with it may be for such matrices alone."""

    def solved(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve(a, b)

    a, b = torch.eye(3, dtype=torch.float64), leaf(3)
    for made in drawn(solved, a, b):
        assert torch.equal(made[0], a)
        assert not torch.equal(made[1], b)


def drawn(function: Callable[..., Any], *args: object) -> list[list[Tensor]]:
    """The tensors of each variant."""
    subject = make_subject(function, args)
    (case,) = subject.all_cases
    found: list[Case] = list(redrawn(subject, case))
    return [[tensor.detach() for _, _, tensor in subject.named_tensors(variant.sample)] for variant in found]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "read", [Tensor.abs, lambda x: x.clamp(-2, 2), lambda x: x * (x > 0) / (x > 0)], ids=["sign", "table", "zero"]
)
def test_a_formula_for_some_values_is_found_whatever_is_drawn(
    read: Callable[[Tensor], Tensor], seed: int, count: int
) -> None:
    """For positive numbers, for small ones: of one number too, which may come out positive and small."""

    class Spoilt(Cube):
        @staticmethod
        def read(x: Tensor) -> Tensor:
            return read(x)

    _, findings = run_probe(special_points.PROBE, Spoilt, Sample((leaf(count),), vary=("values",)), seed=seed)
    assert "PB203" in rules(findings)


def test_the_finding_says_with_which_values() -> None:
    """Values from a normal distribution aren't special, so the rule is that of any gradient."""

    class Positive(Cube):
        @staticmethod
        def read(x: Tensor) -> Tensor:
            return x.abs()

    for shape in ((3,), (5, 6)):
        finding = run_probe(special_points.PROBE, Positive, (leaf(*shape),))[1][0]
        assert "with values from a normal distribution, the gradient of x isn't forward's derivative" in finding.message
        assert finding.evidence["argument"] == "x"
        assert shows_the_fault(finding, Positive=Positive)


def test_a_backward_that_raises_for_negative_numbers_is_found() -> None:
    """forward took them."""

    class Positive(Cube):
        @staticmethod
        def read(x: Tensor) -> Tensor:
            assert bool((x >= 0).all()), "negative"
            return x

    finding = run_probe(special_points.PROBE, Positive, (leaf(3),))[1][0]
    assert (finding.rule, finding.got) == ("PB125", "AssertionError: negative")
    assert shows_the_fault(finding, Positive=Positive)


def test_right_functions_pass() -> None:
    """Those for all numbers, those for positive ones, and those with kinks anywhere."""
    for function in (Cube.apply, torch.log, lambda x: x.clamp(-1.5, 1.5), lambda x: x.abs().sqrt(), torch.special.i0e):
        for seed in range(2):
            assert run_probe(special_points.PROBE, function, (leaf(3),), seed=seed)[1] == ()


def test_where_no_values_are_taken_there_is_a_note() -> None:
    """A refusal is no fault."""

    def picky(x: Tensor) -> Tensor:
        if not bool(((x >= 0) & (x <= 1.25)).all()):
            raise ValueError("from 0 to 1.25")
        return x * x

    outcome, findings = run_probe(special_points.PROBE, picky, (torch.full((9,), 0.5, dtype=torch.float64),))
    assert findings == ()
    assert "refused: values from a normal distribution, sample 0" in outcome.notes


def test_negative_numbers_give_way_to_positive_ones() -> None:
    """The logarithm takes those alone."""
    for tensors in drawn(torch.log, leaf(30)):
        assert bool((tensors[0] > 0).all())
    assert any(bool((tensors[0] < 0).any()) for tensors in drawn(torch.sin, leaf(30)))


def test_of_few_numbers_each_has_both_signs_and_is_small_and_large() -> None:
    """Two variants of a small tensor, and one of a larger one, where chance sees to it."""
    one, other = (tensors[0] for tensors in drawn(torch.sin, leaf(5)))
    assert bool((one.sign() == -other.sign()).all())
    assert bool(((one.abs() > 2) ^ (other.abs() > 2)).all())
    assert len(drawn(torch.sin, leaf(9))) == 1


def test_constants_stay_where_they_can_be_no_others() -> None:
    """All floating arguments are drawn; where that is refused, those that are differentiated."""
    mask = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)

    def masked(x: Tensor, mask: Tensor) -> Tensor:
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError("no mask")
        return x * mask

    for x, kept in drawn(masked, leaf(3), mask):
        assert kept.equal(mask)
        assert bool((x.abs() >= 0.1).all())
