"""The file of known failures: findings that are expected for now, each with the reason why.

The file is TOML, one table for each::

    [[known]]
    function = "Square"        # or "ops.py:Square", to tell Functions of two files apart
    rule = "PB205"
    reason = "second order is not needed before the next release"

A listed finding doesn't make a run fail. A listed finding that is not found any more does, so the file never rots.

The file of an entry is meant from the folder of the file that lists it. Where there is none of that name, the end of a
path does: ``ops.py:Square`` is the Square of any ``ops.py``. The folder in which a command is run plays no part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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
        folder: Where the file lies that lists it.
    """

    function: str
    rule: str
    reason: str = ""
    folder: Path = field(default=Path(), compare=False)

    def covers(self, finding: Finding, report: Report) -> bool:
        """Whether a finding of a report is the one that was expected, in whatever file it stands."""
        return self.rule == finding.rule and (self.concerns(report) or self._names(finding.function, finding.location))

    def came(self, reports: Iterable[Report]) -> bool:
        """Whether the finding is among those of some reports."""
        return any(self.covers(finding, report) for report in reports for finding in report.findings)

    def concerns(self, report: Report) -> bool:
        """Whether a report is about the Function of this entry."""
        return self._names(report.function, report.location)

    def is_in(self, file: Path) -> bool:
        """Whether the entry names the file in which its Function is, and `file` is it."""
        listed = self.function.rpartition(":")[0]
        if not listed:
            return False
        beside = self.folder / listed
        if beside.exists():
            return beside.resolve() == file.resolve()
        parts = Path(os.path.normpath(listed)).parts
        return file.resolve().parts[-len(parts) :] == parts

    def _names(self, function: str, location: str) -> bool:
        if function == self.function:
            return True
        file = _file(location)
        return file is not None and self.function.rpartition(":")[2] == function and self.is_in(file)


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
    if not path.exists():
        raise UsageError(f"{path}: no such file; --update-known-failures writes it, with the findings of a run")
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
            entry = next((entry for entry in entries if entry.covers(finding, report)), None)
            if entry is None:
                kept.append(finding)
            else:
                known.append((finding, entry.reason))
        remaining.append(replace(report, findings=tuple(kept)))
    return remaining, known


def unexpected(reports: Sequence[Report], entries: Iterable[KnownFailure]) -> list[KnownFailure]:
    """The entries whose Function was checked in full and whose finding did not come.

    Args:
        reports: The reports of a run, with the findings that were expected.
        entries: The known failures that this run could have found.
    """
    complete = [report for report in reports if checked(report) and not _was_cut_short(report)]
    return [
        entry for entry in entries if not entry.came(reports) and any(entry.concerns(report) for report in complete)
    ]


def absent(
    reports: Sequence[Report], entries: Iterable[KnownFailure], files: Iterable[Path]
) -> list[tuple[KnownFailure, Path]]:
    """The entries whose file was checked as a whole and has no such Function, each with that file.

    Args:
        reports: The reports of a run, with the findings that were expected.
        entries: The known failures.
        files: The files of which every Function was checked.
    """
    whole = list(files)
    lost = [e for e in entries if not any(e.concerns(report) for report in reports) and not e.came(reports)]
    places = [(entry, next((file for file in whole if entry.is_in(file)), None)) for entry in lost]
    return [(entry, file) for entry, file in places if file is not None]


def rewrite(
    path: Path, entries: Iterable[KnownFailure], gone: Iterable[KnownFailure], new: Iterable[Report]
) -> list[KnownFailure]:
    """Rewrites the file: entries that are gone are dropped, new findings are added with an empty reason.

    Args:
        path: The file.
        entries: Its entries so far.
        gone: Those that passed unexpectedly.
        new: Reports with the findings that no entry covers.

    Returns:
        The entries that need a reason before the file can be used.
    """
    dropped = list(gone)
    kept = [entry for entry in entries if entry not in dropped]
    folder = path.parent
    added = [
        KnownFailure(function=_best_name(report, folder), rule=finding.rule, folder=folder)
        for report in new
        for finding in report.findings
    ]
    everything = list(dict.fromkeys((*kept, *added)))
    text = _HEAD + "".join(_table(entry) for entry in everything)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror or error}") from error
    return [entry for entry in everything if not entry.reason]


def _was_cut_short(report: Report) -> bool:
    """Whether something of it could not be tried, so that a finding that didn't come may still be there."""
    return any(finding.rule in NOT_CHECKED for finding in report.findings)


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
    return KnownFailure(function=entry["function"], rule=entry["rule"], reason=reason, folder=path.parent)


def _table(entry: KnownFailure) -> str:
    lines = (f"{key} = {toml.quoted(getattr(entry, key))}\n" for key in _KEYS)
    return "\n[[known]]\n" + "".join(lines)


def _file(location: str) -> Path | None:
    file = location.rpartition(":")[0]
    return Path(file.replace("\\", "/")) if file else None


def _best_name(report: Report, folder: Path) -> str:
    """``file.py:Name``, the file that the Function stands in as it is seen from `folder`."""
    file = _file(report.location)
    if file is None:
        return report.function
    try:
        shown = os.path.relpath(file.resolve(), folder.resolve())
    except ValueError:  # on another drive
        shown = str(file.resolve())
    return f"{Path(shown).as_posix()}:{report.function}"
