"""The file of known failures: findings that are expected for now, each with the reason why.

The file is TOML, one table for each::

    [[known]]
    function = "Square"        # or "ops.py:Square", to tell Functions of two files apart
    rule = "PB205"
    reason = "second order is not needed before the next release"

A listed finding doesn't make a run fail. A listed finding that is not found any more does, so the file never rots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pullback.cli import toml
from pullback.cli.failure import UsageError
from pullback.finding import Finding, Report
from pullback.report.remarks import NOT_CHECKED, checked
from pullback.rules import RULES

_KEYS = ("function", "rule", "reason")
_HEAD = "# Findings that are expected for now. Each entry needs a reason; remove it when the finding is gone.\n"


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """One expected finding.

    Attributes:
        function: The Function's name, or ``file.py:Name``.
        rule: The rule's code.
        reason: Why it is expected.
    """

    function: str
    rule: str
    reason: str = ""

    def covers(self, finding: Finding) -> bool:
        """Whether a finding is the one that was expected."""
        return self.rule == finding.rule and self.function in _names(finding.function, finding.location)

    def concerns(self, report: Report) -> bool:
        """Whether a report is about the Function of this entry."""
        return self.function in _names(report.function, report.location)


def read(path: Path, *, reasons_due: bool = True) -> list[KnownFailure]:
    """Reads a file of known failures.

    Args:
        path: The file.
        reasons_due: Whether an entry without a reason is an error; it isn't when the file is about to be rewritten.

    Returns:
        Its entries.

    Raises:
        UsageError: The file or an entry isn't as it should be.
    """
    table = toml.read(path)
    entries = table.pop("known", [])
    if table or not isinstance(entries, list):
        raise UsageError(f"{path}: expected [[known]] tables only, each with function, rule and reason")
    return [_entry(number, entry, path, reasons_due) for number, entry in enumerate(entries, start=1)]


def apart(reports: Sequence[Report], entries: Sequence[KnownFailure]) -> tuple[list[Report], list[tuple[Finding, str]]]:
    """Takes the known findings out of reports.

    Args:
        reports: The reports of a run.
        entries: The known failures.

    Returns:
        The reports without them, and each known finding with its reason.
    """
    known: list[tuple[Finding, str]] = []
    remaining = []
    for report in reports:
        kept = []
        for finding in report.findings:
            entry = next((entry for entry in entries if entry.covers(finding)), None)
            if entry is None:
                kept.append(finding)
            else:
                known.append((finding, entry.reason))
        remaining.append(replace(report, findings=tuple(kept)))
    return remaining, known


def unexpected(
    reports: Sequence[Report], entries: Iterable[KnownFailure], known: Iterable[tuple[Finding, str]]
) -> list[KnownFailure]:
    """The entries whose Function was checked in full and whose finding did not come.

    Args:
        reports: The reports of a run.
        entries: The known failures that this run could have found.
        known: The findings that were expected and came.
    """
    came = [finding for finding, _ in known]
    missing = [entry for entry in entries if not any(entry.covers(finding) for finding in came)]
    complete = [report for report in reports if checked(report) and not _was_cut_short(report, came)]
    return [entry for entry in missing if any(entry.concerns(report) for report in complete)]


def rewrite(
    path: Path, entries: Iterable[KnownFailure], gone: Iterable[KnownFailure], new: Iterable[Finding]
) -> list[KnownFailure]:
    """Rewrites the file: entries that are gone are dropped, new findings are added with an empty reason.

    Args:
        path: The file.
        entries: Its entries so far.
        gone: Those that passed unexpectedly.
        new: Findings that no entry covers.

    Returns:
        The entries that need a reason before the file can be used.
    """
    dropped = list(gone)
    kept = [entry for entry in entries if entry not in dropped]
    added = [KnownFailure(function=_best_name(finding), rule=finding.rule) for finding in new]
    everything = list(dict.fromkeys((*kept, *added)))
    text = _HEAD + "".join(_table(entry) for entry in everything)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror or error}") from error
    return [entry for entry in everything if not entry.reason]


def _was_cut_short(report: Report, known: Iterable[Finding]) -> bool:
    """Whether something of it could not be tried, so that a finding that didn't come may still be there."""
    about = [finding for finding in known if finding.function == report.function]
    return any(finding.rule in NOT_CHECKED for finding in (*report.findings, *about))


def _entry(number: int, entry: object, path: Path, reasons_due: bool) -> KnownFailure:
    place = f"{path}: known failure {number}"
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise UsageError(f"{place} must have function, rule and reason, all strings")
    for key in entry:
        if key not in _KEYS:
            raise UsageError(f"{place} has an unknown key {key!r}; the keys are function, rule and reason")
    if not entry.get("function") or entry.get("rule") not in RULES:
        raise UsageError(f"{place} must name a function and one of the rules; got {entry!r}")
    reason = entry.get("reason", "").strip()
    if reasons_due and not reason:
        raise UsageError(f"{place} ({entry['function']} {entry['rule']}) has no reason; say why it is expected")
    return KnownFailure(function=entry["function"], rule=entry["rule"], reason=reason)


def _table(entry: KnownFailure) -> str:
    lines = (f"{key} = {toml.quoted(getattr(entry, key))}\n" for key in _KEYS)
    return "\n[[known]]\n" + "".join(lines)


def _names(function: str, location: str) -> tuple[str, ...]:
    file = location.rpartition(":")[0].replace("\\", "/")
    return (function, f"{file}:{function}") if file else (function,)


def _best_name(finding: Finding) -> str:
    return _names(finding.function, finding.location)[-1]
