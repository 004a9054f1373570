"""What every stage emits: a `Finding`; and what a check returns: a `Report` of outcomes and findings.

Everything here is plain data that needs no torch: the writers in `pullback.report` know nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pullback.rules import RULES, Severity


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault, said so that a person can act on it.

    Attributes:
        rule: The rule's code, such as ``PB203``.
        function: The name of the Function or callable at fault.
        where: The argument, output or saved tensor by name, and the sample: ``argument x, sample 0``.
        message: What happened, in one sentence.
        expected: What should have come.
        got: What came.
        severity: ``error``, ``warning`` or ``hint``; the rule's own unless given.
        remedy: What to do; the rule's own unless given.
        repro: A few runnable lines that show the fault.
        probe: The probe that found it.
        evidence: Numbers behind it (largest error, index, cost), JSON-ready.
        location: ``file.py:12``, where the Function is defined, if known.
    """

    rule: str
    function: str
    where: str
    message: str
    expected: str = ""
    got: str = ""
    severity: Severity = None  # type: ignore[assignment]  # filled from the rule in __post_init__
    remedy: str = ""
    repro: str = ""
    probe: str = ""
    evidence: Mapping[str, object] = field(default_factory=dict)
    location: str = ""

    def __post_init__(self) -> None:
        rule = RULES[self.rule]
        if self.severity is None:
            object.__setattr__(self, "severity", rule.severity)
        if not self.remedy:
            object.__setattr__(self, "remedy", rule.remedy)


class Status(str, enum.Enum):
    """How a probe ended; a probe that could not run is skipped with a reason, never passed."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one probe ended.

    Attributes:
        status: ``passed``, ``failed`` (it has findings, hints included) or ``skipped``.
        reason: Why it was skipped; empty otherwise.
        seconds: How long it took.
        notes: What it left out, such as refused variants (``refused: …``).
    """

    status: Status
    reason: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


LARGEST_SEED = 2**32 - 1
"""A run's seed is from 0 to this: NumPy takes no larger one."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `pullback.check` found out about one Function.

    Attributes:
        function: The name of the Function or callable.
        findings: Every fault, worst first; one cause gives one finding.
        outcomes: Probe name -> how it ended, in the order of the battery.
        samples: Where the samples came from: ``given``, ``declared``, ``registered`` or ``inferred``, and how many.
        untested: What was not tested, in sentences.
        seed: The seed that repeats this run.
        location: ``file.py:12``, where the Function is defined, if known.
    """

    function: str
    findings: tuple[Finding, ...] = ()
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    samples: str = ""
    untested: tuple[str, ...] = ()
    seed: int = 0
    location: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is no error and no warning; hints don't count."""
        return all(finding.severity is Severity.HINT for finding in self.findings)

    def __str__(self) -> str:
        from pullback.report.text import full

        return full([self])
