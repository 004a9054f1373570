"""The loop over probes keeps the contract that its module states."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from pullback.battery.battery import PROBES, run, select
from pullback.battery.check import make_subject
from pullback.battery.probe import NotApplicable, Note, Probe, Skip
from pullback.battery.subject import BackwardRaised, Subject
from pullback.finding import Finding, Outcome, Status


def subject_of(function: Any = torch.sin, *sample: Tensor) -> Subject:
    """A subject with one small sample."""
    return make_subject(function, sample or (torch.rand(3, dtype=torch.float64, requires_grad=True),))


def outcome_of(body: Any, subject: Subject | None = None) -> tuple[Outcome, tuple[Finding, ...]]:
    """Run one made-up probe."""
    probe = Probe("made_up", "nothing", body)
    ((_, outcome, findings),) = run(subject or subject_of(), [probe], seed=0)
    return outcome, findings


def test_every_probe_says_what_it_proves_in_one_sentence() -> None:
    """Names are identifiers and unique, sentences are short and without a full stop."""
    for name, probe in PROBES.items():
        assert name == probe.name
        assert name.isidentifier()
        assert 10 < len(probe.proves) < 120
        assert not probe.proves.endswith(".")


def test_no_probe_changes_the_sample_nor_the_global_random_state() -> None:
    """Bit for bit, over the whole battery."""
    x = torch.rand(2, 3, dtype=torch.float64).requires_grad_()
    before = x.detach().clone()
    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(2), random.random()
    torch.manual_seed(1)
    random.seed(1)
    for name, outcome, _ in run(subject_of(lambda x: x.sin() * 2, x), PROBES.values(), seed=0):
        assert isinstance(outcome.status, Status), name
    assert torch.equal(x, before)
    assert x.grad is None
    assert torch.equal(torch.rand(2), expected[0])
    assert random.random() == expected[1]


def test_a_probe_without_findings_passes_and_keeps_its_notes() -> None:
    """A note alone doesn't fail a probe."""
    outcome, findings = outcome_of(lambda subject: [Note("refused: a variant")])
    assert (outcome.status, outcome.notes, findings) == (Status.PASSED, ("refused: a variant",), ())


def test_a_finding_fails_the_probe_and_is_signed_with_its_name() -> None:
    """The probe's name is on the finding."""
    outcome, (finding,) = outcome_of(lambda subject: [subject.finding("PB203", None, "wrong")])
    assert outcome.status is Status.FAILED
    assert finding.probe == "made_up"


@pytest.mark.parametrize(("size", "blamed"), [(3, False), (2000, True)])
def test_only_large_samples_are_blamed_for_the_time(size: int, blamed: bool) -> None:
    """Of three numbers no smaller sample would prove the same in less time."""
    probe = Probe("made_up", "nothing", lambda subject: [], patience=-1.0)
    ((_, outcome, _),) = run(subject_of(torch.sin, torch.rand(size)), [probe])
    (note,) = outcome.notes
    assert note.startswith("took 0.0 s")
    assert ("smaller samples would prove the same" in note) == blamed
    assert ("they are small" in note) != blamed


def test_a_skip_has_its_reason() -> None:
    """Never a silent pass."""

    def body(subject: Subject) -> Iterable[Finding]:
        raise Skip("nothing to see")

    outcome, _ = outcome_of(body)
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "nothing to see")


def test_what_does_not_apply_is_skipped_and_remembered() -> None:
    """The report's list of what was not tested passes over it."""
    subject = subject_of()

    def body(_: Subject) -> Iterable[Finding]:
        raise NotApplicable("only one argument")

    outcome, _ = outcome_of(body, subject)
    assert outcome.status is Status.SKIPPED
    assert subject.inapplicable == {"made_up"}


def test_a_crash_of_a_probe_is_a_finding_that_names_the_line() -> None:
    """PB123, and not a pass."""

    def body(subject: Subject) -> Iterable[Finding]:
        raise ZeroDivisionError("oh")

    outcome, (finding,) = outcome_of(body)
    assert outcome.status is Status.FAILED
    assert (finding.rule, finding.message) == ("PB123", "the probe made_up crashed: ZeroDivisionError: oh")
    assert str(finding.evidence["raised_at"]).startswith(__file__)


def test_backward_that_raises_inside_a_probe_is_a_finding() -> None:
    """PB125."""

    def body(subject: Subject) -> Iterable[Finding]:
        raise BackwardRaised(ValueError("bad"))

    _, (finding,) = outcome_of(body)
    assert finding.rule == "PB125"
    assert "ValueError: bad" in finding.message


def test_without_a_working_sample_all_but_the_first_probe_are_skipped() -> None:
    """One finding, not one for each probe."""
    subject = subject_of(lambda x: x.view(77))
    results = list(run(subject, PROBES.values(), seed=0))
    assert [finding.rule for _, _, findings in results for finding in findings] == ["PB122"]
    assert {outcome.reason for name, outcome, _ in results if name != "runs"} == {
        "no sample on which forward and backward run"
    }


def test_the_same_seed_draws_the_same_for_a_probe_whatever_ran_before() -> None:
    """A probe's draws depend on the seed and its name alone."""
    drawn: list[float] = []

    def body(subject: Subject) -> Iterable[Finding]:
        drawn.append(float(torch.rand(1, generator=subject.random)))
        return []

    subject = subject_of()
    outcome_of(body, subject)
    subject.cotangent(torch.rand(100))
    outcome_of(body, subject)
    assert drawn[0] == drawn[1]


def test_select_keeps_the_order_and_the_first_probe() -> None:
    """`runs` reports what the others pass over, so it is never left out."""
    assert [probe.name for probe in select(["second_order", "values"])] == ["runs", "values", "second_order"]
    assert "runs" in [probe.name for probe in select(skip=["runs"])]


def test_select_leaves_out_orders_above_the_one_asked_for() -> None:
    """orders=1 has no second-order probe."""
    assert {probe.order for probe in select(orders=1)} == {1}


def test_select_refuses_unknown_names() -> None:
    """A misspelt name must not switch anything off in silence."""
    with pytest.raises(ValueError, match="no probe is called frist_order"):
        select(["frist_order"])
