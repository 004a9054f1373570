"""pullback's own errors as findings: one that comes out of a call in any probe is a fault, and has said its code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro import backward_lines, plain_lines
from pullback.battery.subject import Case, Subject
from pullback.errors import PullbackError
from pullback.finding import Finding


def said(subject: Subject, case: Case | None, error: PullbackError, repro: str = "", *, argument: str = "") -> Finding:
    """What the error says, as a finding with the error's own code."""
    return subject.finding(
        error.rule, case, error.message, argument=argument, expected=error.expected, got=error.got,
        remedy=error.remedy, repro=repro, evidence={"said": error.message},
    )  # fmt: skip


def left_over(subject: Subject) -> Iterator[Finding]:
    """A finding for each error that came out of a call and that shows a fault, once for each code and place.

    A rule that a probe itself has found is left out: that finding tells more of the same fault.
    """
    told: set[tuple[str, str]] = set()
    for error in list(subject.said):  # the calls below may add to it
        key = error.rule, error.message
        if error.rule not in subject.found and key not in told:
            told.add(key)
            case, repro = _shown(subject, error)
            yield said(subject, case, error, repro)
    subject.said.clear()


def _shown(subject: Subject, error: PullbackError) -> tuple[Case | None, str]:
    """The first sample that shows the error in a plain call, and the lines that do; neither where a variant did."""
    ways: tuple[tuple[bool, Callable[[Subject, Case], str]], ...] = ((False, plain_lines), (True, backward_lines))
    for case in subject.cases:
        for tracked, lines in ways:
            try:
                inputs = subject.fresh(case, requires=None if tracked else ())
                outputs = subject.call(inputs)
                if tracked:
                    subject.gradients(outputs, [subject.cotangent(out.tensor) for out in outputs], inputs.varying)
            except (ForwardRaised, BackwardRaised) as raised:
                if isinstance(raised.error, PullbackError) and raised.error.rule == error.rule:
                    return case, lines(subject, case)
    return None, ""
