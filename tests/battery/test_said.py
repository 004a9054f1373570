"""An error of pullback's own that comes out of a call is a finding with its code, whichever probe met it."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

import pullback
from pullback.battery import battery
from pullback.battery.check import make_subject
from pullback.battery.engine import check as check_found
from pullback.battery.probe import Note, Probe
from pullback.battery.subject import ForwardRaised, Subject
from pullback.battery.targets import Found
from pullback.errors import CallError, HigherOrderError, PullbackError, TransformError
from pullback.finding import Finding, Report, Status
from tests.battery.running import leaf


def rules_of(report: Report) -> list[str]:
    """The codes in a report."""
    return [finding.rule for finding in report.findings]


def scaled_by(weight: Tensor) -> Any:
    """A decorated function that captures `weight`, which its rule doesn't."""

    def scaled(x: Tensor) -> Tensor:
        return x * weight

    function = pullback.custom_vjp(scaled)
    function.defvjp(lambda x: (x * 3, ()), lambda residuals, g: (g * 3,))
    return function


def raising_in(wanted: Callable[[Tensor], bool], *errors: PullbackError) -> Callable[[Tensor], Tensor]:
    """A function that raises the errors, one after the other, where its argument is `wanted`."""
    left: list[PullbackError] = []

    def function(x: Tensor) -> Tensor:
        if wanted(x):
            left[:] = left or errors
            raise left.pop(0)
        return x * 2

    return function


def outside_grad(x: Tensor) -> bool:
    """Whether nothing is differentiated."""
    return not x.requires_grad


def in_forward_mode(x: Tensor) -> bool:
    """Whether the argument has a tangent."""
    return unpack_dual(x).tangent is not None


def under_vmap(x: Tensor) -> bool:
    """Whether the argument is one of a batch."""
    return torch._C._functorch.is_batchedtensor(x)


def test_a_capture_that_only_the_call_without_a_gradient_meets_is_found_once() -> None:
    """fn captures a tensor that requires grad and its rule doesn't: PB503 from all probes together, with its lines."""
    # The lines are for a new process: of a function only the first calls are watched, and the probes make many.
    function, again = (scaled_by(torch.tensor(3.0, dtype=torch.float64, requires_grad=True)) for _ in range(2))
    report = pullback.check(function, (leaf(3),))
    (finding,) = report.findings
    assert (finding.rule, report.ok) == ("PB503", False)
    assert "weight" in finding.message
    assert finding.remedy.startswith("Pass weight as an argument")
    assert not any("PB503" in sentence for sentence in report.untested)
    with pytest.raises(CallError, match="weight"):
        exec(finding.repro, {"scaled": again})


def test_the_same_function_without_the_fault_is_clean() -> None:
    """The captured tensor doesn't require grad."""
    report = pullback.check(scaled_by(torch.tensor(3.0, dtype=torch.float64)), (leaf(3),))
    assert report.findings == ()


@pytest.mark.parametrize("wanted", [outside_grad, in_forward_mode, under_vmap])
def test_a_fault_is_found_wherever_the_call_raises_it(wanted: Callable[[Tensor], bool]) -> None:
    """Without a gradient, in forward mode and under vmap."""
    report = pullback.check(raising_in(wanted, CallError("PB503", "f uses w", got="w")), (leaf(3),))
    assert rules_of(report) == ["PB503"]
    assert report.findings[0].got == "w"
    assert report.outcomes[report.findings[0].probe].status is Status.FAILED


@pytest.mark.parametrize("rule", ["PB510", "PB511", "PB512", "PB513", "PB514"])
@pytest.mark.parametrize("wanted", [in_forward_mode, under_vmap])
def test_the_refusal_of_a_transform_is_no_fault(wanted: Callable[[Tensor], bool], rule: str) -> None:
    """It is said among what was not tested, or in a note."""
    report = pullback.check(raising_in(wanted, TransformError(rule, "f can't be run so")), (leaf(3),))
    assert report.findings == ()
    notes = [note for outcome in report.outcomes.values() for note in outcome.notes]
    assert any(rule in sentence for sentence in (*report.untested, *notes))


def test_two_places_with_one_code_are_two_findings() -> None:
    """The report doesn't join what has another text."""
    errors = CallError("PB503", "f uses w"), CallError("PB503", "f uses v")
    report = pullback.check(raising_in(outside_grad, *errors), (leaf(3),))
    assert sorted(finding.message for finding in report.findings) == ["f uses v", "f uses w"]


def one_probe(body: Callable[[Subject], Iterable[Finding | Note]], function: Any) -> tuple[Finding, ...]:
    """The findings of one made-up probe."""
    probe = Probe("made_up", "nothing", body)
    ((_, _, findings),) = battery.run(make_subject(function, (leaf(3),)), [probe])
    return findings


def noting(subject: Subject) -> Iterator[Finding | Note]:
    """A probe that makes a note of whatever forward raises without a gradient."""
    for case in subject.cases:
        try:
            subject.call(subject.fresh(case, requires=()))
        except ForwardRaised as refused:
            yield Note(f"refused: {refused}")


def test_a_note_hides_no_fault() -> None:
    """A probe that swallows the error fails all the same."""
    (finding,) = one_probe(noting, raising_in(outside_grad, HigherOrderError("PB219", "f has another value")))
    assert (finding.rule, finding.probe, finding.message) == ("PB219", "made_up", "f has another value")


def test_an_ordinary_error_in_a_variant_stays_a_note() -> None:
    """A forward may refuse what it likes by an error of its own."""

    def picky(x: Tensor) -> Tensor:
        if not x.requires_grad:
            raise ValueError("no")
        return x * 2

    assert one_probe(noting, picky) == ()


def test_a_probe_that_has_told_of_the_fault_is_not_doubled() -> None:
    """Its own finding has the argument and the lines, so the bare error is left out."""

    def telling(subject: Subject) -> Iterator[Finding | Note]:
        yield from noting(subject)
        yield subject.finding("PB219", subject.cases[0], "told in full")

    (finding,) = one_probe(telling, raising_in(outside_grad, HigherOrderError("PB219", "f has another value")))
    assert finding.message == "told in full"


class Unfit(pullback.Function):
    """backward returns a number where the cotangent is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Twice x."""
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor | float:
        """Wrong for a cotangent of zeros."""
        return g * 2 if bool(g.any()) else 0.0


def test_a_backward_that_ends_a_probe_has_the_code_of_its_error() -> None:
    """PB202, and not PB125 with the code in its text."""

    def zeros(subject: Subject) -> Iterator[Finding | Note]:
        inputs = subject.fresh(subject.cases[0])
        outputs = subject.call(inputs)
        subject.gradients(outputs, [torch.zeros_like(output.tensor) for output in outputs], inputs.varying)
        yield Note("not reached")

    (finding,) = one_probe(zeros, Unfit)
    assert finding.rule == "PB202"
    assert "Unfit" in finding.message


def test_a_decorated_function_without_a_rule_has_its_own_code_from_the_command_too() -> None:
    """The engine of the command line makes PB112 of it, not PB121 with PB112 in its text."""
    bare = pullback.custom_vjp(lambda x: x * 2)
    found = Found(function=bare, name="bare", location=f"{Path(__file__)}:1")
    given = {"bare": [(leaf(3),)]}
    report = check_found(found, given, only=(), skip=(), orders=1, seed=0, progress=lambda probe: None)
    assert rules_of(report) == ["PB112"]
    assert report.findings[0].remedy
