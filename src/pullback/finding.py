"""What every stage emits: a `Finding`; and what a check returns: a `Report` of outcomes and findings.

Everything here is plain data that needs no torch: the writers in `pullback.report` know nothing else.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from pullback.rules import RULES, Severity

MAP_SIDE = 32
"""An `ErrorMap` has at most this many rows, and as many columns."""


@dataclass(frozen=True, kw_only=True)
class ErrorMap:
    """Where a tensor is wrong: its errors, made small enough for a picture.

    The last two axes are the rows and the columns of the map; a tensor of one axis has one row, one without axes a
    single number. Each number is the largest error among the elements that it stands for, so that one wrong element
    among thousands is still seen.

    Attributes:
        shape: The shape of the tensor.
        block: How many elements one number stands for: those of all leading axes, and of the last two axes as many rows
            and columns.
        values: Row by row the errors: 0.0 where the tensor is right within its tolerance, None where the error is
            infinite or not a number.
    """

    shape: tuple[int, ...]
    block: tuple[int, int, int]
    values: tuple[tuple[float | None, ...], ...]

    @property
    def evidence(self) -> dict[str, object]:
        """The map as a finding keeps it, JSON-ready."""
        return {"shape": list(self.shape), "block": list(self.block), "values": [list(row) for row in self.values]}

    @staticmethod
    def read(evidence: object) -> ErrorMap | None:
        """The map that `evidence` gave; None for anything else."""
        if not isinstance(evidence, Mapping):
            return None
        shape, block, values = (evidence.get(name) for name in ("shape", "block", "values"))
        if not (_are_sizes(shape) and _are_sizes(block) and len(block) == 3 and isinstance(values, (list, tuple))):
            return None
        rows = [tuple(row) for row in values if isinstance(row, (list, tuple)) and all(map(_is_error, row))]
        if len(rows) < len(values) or 0 in (*shape, *block):
            return None
        height, width = (-(-size // step) for size, step in zip((1, 1, *shape)[-2:], block[1:], strict=True))
        if len(rows) != height or any(len(row) != width for row in rows) or max(height, width) > MAP_SIDE:
            return None
        return ErrorMap(shape=tuple(shape), block=(block[0], block[1], block[2]), values=tuple(rows))


def _are_sizes(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, (list, tuple)) and all(type(size) is int and size >= 0 for size in value)


def _is_error(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


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
        evidence: Numbers behind it (largest error, index, cost, error map), JSON-ready.
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

    @property
    def error_map(self) -> ErrorMap | None:
        """Where the tensor that is wrong is wrong, if each of its elements was compared."""
        return ErrorMap.read(self.evidence.get("error_map"))


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
        return self.render()

    def render(self, output_format: str = "full") -> str:
        """The report as text, for people or machines.

        Args:
            output_format: ``full``, ``concise``, ``json``, ``junit``, ``github``, ``sarif`` or ``html``, as ``pullback
                check --output-format`` takes it.

        Raises:
            ValueError: There is no such format.
        """
        from pullback.report.formats import write

        return write([self], output_format)
