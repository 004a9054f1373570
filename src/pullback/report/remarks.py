"""What a run over several Functions has to say beside their reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pullback.finding import Finding, Report, Status
from pullback.rules import Severity

NOT_CHECKED = ("PB120", "PB121", "PB122", "PB123", "PB124")
"""The rules that say that something could not be checked: no selection of other rules hides their findings."""


@dataclass(frozen=True, kw_only=True)
class Remarks:
    """What belongs to the run rather than to one Function.

    Attributes:
        skipped: What was left unchecked on purpose, in sentences (an abstract class, for instance).
        known: Findings that the file of known failures lists, each with its reason. They are in no report.
        unexpected: Known failures that didn't fail, in sentences. Each makes the run fail.
        left_out: How many findings were left out by a selection of rules.
        set_aside: How many reports have nothing above a hint only because such findings are known or were left out.
        fail_on: The least severity that makes the run fail.
    """

    skipped: tuple[str, ...] = ()
    known: tuple[tuple[Finding, str], ...] = ()
    unexpected: tuple[str, ...] = ()
    left_out: int = 0
    set_aside: int = 0
    fail_on: Severity = Severity.WARNING


NO_REMARKS = Remarks()
"""Nothing to add."""


class Counts(NamedTuple):
    """The numbers of a summary.

    Attributes:
        functions: How many reports are about a Function.
        clean: Reports in which probes ran and nothing above a hint was found.
        faulty: Reports in which probes ran and something above a hint was found.
        set_aside: Reports of which all such findings are known or were left out: neither clean nor faulty.
        unchecked: Reports in which no probe ran to its end: neither clean nor faulty.
        unloadable: Reports on a file or module that can't be loaded: nobody knows what Functions are in it.
        errors: Findings of severity ``error``.
        warnings: Findings of severity ``warning``.
        hints: Findings of severity ``hint``.
    """

    functions: int
    clean: int
    faulty: int
    set_aside: int
    unchecked: int
    unloadable: int
    errors: int
    warnings: int
    hints: int


def checked(report: Report) -> bool:
    """Whether at least one probe ran to its end; without that nothing counts as clean."""
    return any(outcome.status is not Status.SKIPPED for outcome in report.outcomes.values())


def unloadable(report: Report) -> bool:
    """Whether a report is about a file or module that can't be loaded, and about no Function."""
    return not report.outcomes and any(finding.rule == "PB120" for finding in report.findings)


def is_read_only(report: Report) -> bool:
    """Whether the Function was only read, by the linter, so that there are no samples, probes or seeds to tell of."""
    return [*report.outcomes] == ["lint"]


def column_of(finding: Finding, before: str) -> str:
    """The column of a finding behind `before`, empty where it isn't known."""
    column = finding.evidence.get("column")
    return f"{before}{column}" if type(column) is int and column > 0 else ""


def skipped_by_reason(report: Report) -> dict[str, list[str]]:
    """Why probes were skipped, each reason once, with the names of its probes."""
    reasons: dict[str, list[str]] = {}
    for name, outcome in report.outcomes.items():
        if outcome.status is Status.SKIPPED:
            reasons.setdefault(outcome.reason or "no reason given", []).append(name)
    return reasons


def has_hints_alone(report: Report, probe: str) -> bool:
    """Whether a probe found something, and nothing above a hint."""
    severities = [finding.severity for finding in report.findings if finding.probe == probe]
    return bool(severities) and all(severity is Severity.HINT for severity in severities)


def count(reports: Sequence[Report], *, remarks: Remarks = NO_REMARKS) -> Counts:
    """Counts reports and findings for a summary."""
    severities = [finding.severity for report in reports for finding in report.findings]
    functions = [report for report in reports if not unloadable(report)]
    ran = [report for report in functions if checked(report)]
    ok = sum(report.ok for report in ran)
    return Counts(
        functions=len(functions),
        clean=ok - remarks.set_aside,
        faulty=len(ran) - ok,
        set_aside=remarks.set_aside,
        unchecked=len(functions) - len(ran),
        unloadable=len(reports) - len(functions),
        errors=severities.count(Severity.ERROR),
        warnings=severities.count(Severity.WARNING),
        hints=severities.count(Severity.HINT),
    )
