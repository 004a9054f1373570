"""Samples that run what others run are passed over by the probes of surroundings, and no others."""

from typing import Any

import torch
from torch import Tensor

import pullback
from pullback.battery.check import make_subject
from pullback.battery.paths import dealt, passed_over, telling
from pullback.battery.probes import hooks
from pullback.finding import Status
from tests.battery.running import run_probe


def leaf(*shape: int) -> Tensor:
    """A float64 leaf."""
    return torch.rand(shape, dtype=torch.float64).add_(0.3).requires_grad_()


class Squares(pullback.Function):
    """x², or 2 x for large numbers: a branch within an expression, in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: float) -> Tensor:
        ctx.small = number < 5
        ctx.save_for_backward(x)
        return x * x if number < 5 else x + x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return (2 * x * g if ctx.small else g + g), None


def kept(function: Any, *samples: tuple[object, ...]) -> list[int]:
    """The numbers of the samples that are taken."""
    return [case.index for case in telling(make_subject(function, *samples))]


def test_samples_that_differ_in_numbers_and_sizes_alone_are_passed_over() -> None:
    """One of them runs all that the others run."""
    assert kept(Squares, *((leaf(size), number) for size, number in ((3, 1.0), (4, 2.0), (7, 3.0)))) == [0]


def test_a_branch_within_a_line_is_a_path_of_its_own() -> None:
    """Instructions are seen, not lines: either side of a conditional expression is taken."""
    assert kept(Squares, (leaf(3), 1.0), (leaf(3), 2.0), (leaf(3), 9.0), (leaf(3), 8.0)) == [0, 2]


def test_operators_tell_paths_apart_where_there_is_no_code_to_see() -> None:
    """torch.matmul is one call, and runs dot for vectors and mm for matrices."""
    pairs = ((2, 3), (3, 4)), ((4, 3), (3, 2)), ((3,), (3,)), ((5,), (5,))
    assert kept(torch.matmul, *((leaf(*a), leaf(*b)) for a, b in pairs)) == [0, 2]


def test_other_kinds_of_arguments_are_kept() -> None:
    """Dimensions, dtypes, layouts, flags, and which arguments require grad."""
    x = leaf(3)
    others = [
        (leaf(3, 2), 1.0),
        (x.detach() > 0.5, 1.0),
        (leaf(6).detach()[::2].requires_grad_(), 1.0),
        (x, True),
        (x, None),
    ]

    def plain(x: Tensor, flag: object) -> Tensor:
        return x * 2

    for other in others:
        assert kept(plain, (x, 1.0), (x, 1.0), (x, 1.0), other) == [0, 3]


def test_two_samples_are_never_too_many() -> None:
    """What is won there isn't worth a sentence."""
    assert kept(Squares, (leaf(3), 1.0), (leaf(4), 2.0)) == [0, 1]


def test_the_report_names_the_samples_that_were_passed_over() -> None:
    """In a note of each probe that did."""
    samples = [(leaf(size), 1.0) for size in (3, 4, 5)]
    (note,) = passed_over(make_subject(Squares, *samples))
    told = "samples 1, 2 run no instruction and no operator that others don't: not tried here"
    assert note.text == told
    outcome, findings = run_probe(hooks.PROBE, Squares, *samples)
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, (told,), ())
    (single,) = passed_over(make_subject(Squares, *samples, (leaf(3), 9.0)), "another word")
    assert single.text == "samples 1, 2 run no instruction and no operator that others don't: another word"


def test_a_fault_on_a_path_of_its_own_is_found() -> None:
    """The last of many samples takes the branch that keeps a tensor where a hook can't see that it was replaced."""
    kept_by_address: dict[int, Tensor] = {}

    class ByAddress(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, number: float) -> Tensor:
            ctx.save_for_backward(x)
            if number > 5:
                kept_by_address[x.data_ptr()] = x.detach()
            ctx.by_address = number > 5
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            return 2 * (kept_by_address.get(x.data_ptr(), x * 0) if ctx.by_address else x) * g, None

    small = [(leaf(3), float(number)) for number in range(4)]
    outcome, findings = run_probe(hooks.PROBE, ByAddress, *small, (leaf(3), 9.0))
    assert outcome.status is Status.FAILED
    assert {finding.rule for finding in findings} == {"PB519"}


def test_each_trial_is_dealt_to_one_sample_that_can_make_it() -> None:
    """None is lost, none is made twice, and one that a single sample can make falls to it."""
    subject = make_subject(Squares, (leaf(3), 1.0), (leaf(3), 9.0))
    one, other = subject.cases
    names = [f"trial {number}" for number in range(20)]
    hands = dealt(subject, {one: [*names, "only here"], other: names})
    assert "only here" in hands[one]
    assert sorted([*hands[one], *hands[other]]) == sorted([*names, "only here"])
    assert hands[one] & set(names)
    assert hands[other]


def test_another_seed_deals_otherwise() -> None:
    """What one run tries with one sample, another run tries with another: the same for the same seed."""
    samples = (leaf(3), 1.0), (leaf(3), 9.0)
    names = [f"trial {number}" for number in range(20)]

    def first_hand(seed: int) -> set[str]:
        subject = make_subject(Squares, *samples, seed=seed)
        return dealt(subject, dict.fromkeys(subject.cases, names))[subject.cases[0]]

    assert first_hand(0) == first_hand(0)
    assert first_hand(0) != first_hand(1)
