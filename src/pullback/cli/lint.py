"""``pullback lint``: files in, one report for each Function out, and an exit code."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pullback.cli import output
from pullback.cli.failure import CLEAN, FINDINGS, UsageError
from pullback.cli.lint_options import LintOptions, resolve
from pullback.finding import Finding, Report
from pullback.lint.run import Linted, lint_paths
from pullback.report.formats import write
from pullback.report.remarks import Remarks
from pullback.report.text import summary
from pullback.rules import RULES, Severity

if TYPE_CHECKING:
    from pathlib import Path

    from pullback.cli.known_failures import KnownFailure


def run(arguments: argparse.Namespace) -> int:
    """Carries out the command.

    Args:
        arguments: What argparse made of the command line.

    Returns:
        The exit code.

    Raises:
        UsageError: The command can't be carried out as it was given.
    """
    options = resolve(arguments, start=os.getcwd())
    if arguments.update_known_failures and not options.known_failures:
        raise UsageError("--update-known-failures needs --known-failures FILE")
    if arguments.statistics and options.output_format not in ("full", "concise"):
        raise UsageError(f"--statistics is text, and can't be written as {options.output_format}")
    paths = options.paths or (".",)
    for path in paths:
        if not os.path.exists(path):
            raise UsageError(f"{path}: no such file or folder")
    entries = _known(options, reasons_due=not arguments.update_known_failures)
    linted = lint_paths(paths, exclude=options.exclude)
    if not linted.files:
        raise UsageError(f"nothing to lint: no Python file in {', '.join(paths)}")
    return _conclude(linted, entries, options, arguments)


def _known(options: LintOptions, *, reasons_due: bool) -> list[KnownFailure]:
    if not options.known_failures or (not reasons_due and not os.path.exists(options.known_failures)):
        return []
    from pathlib import Path  # here and below, since most runs have no such file

    from pullback.cli import known_failures

    return known_failures.read(Path(options.known_failures), reasons_due=reasons_due)


class _Expected(NamedTuple):
    """What known failures make of a run: the reports without them, those that came, and those that didn't."""

    remaining: Sequence[Report]
    known: Sequence[tuple[Finding, str]] = ()
    gone: Sequence[KnownFailure] = ()
    absent: Sequence[tuple[KnownFailure, Path]] = ()


def _expected(linted: Linted, entries: Sequence[KnownFailure], options: LintOptions) -> _Expected:
    if not entries:
        return _Expected(linted.reports)
    from pathlib import Path

    from pullback.cli import known_failures

    remaining, known = known_failures.apart(linted.reports, entries)
    could_come = [entry for entry in entries if options.wants_rule(entry.rule)]
    gone = known_failures.unexpected(linted.reports, could_come)
    absent = known_failures.absent(linted.reports, entries, {Path(file) for file in linted.files})
    return _Expected(remaining, known, gone, absent)


def _conclude(
    linted: Linted, entries: Sequence[KnownFailure], options: LintOptions, arguments: argparse.Namespace
) -> int:
    expected = _expected(linted, entries, options)
    sure = [replace(one, findings=tuple(f for f in one.findings if options.shows(f))) for one in expected.remaining]
    shown = [replace(one, findings=tuple(f for f in one.findings if options.wants(f))) for one in sure]
    remarks = Remarks(
        skipped=tuple(map(str, linted.notes)),
        known=(*expected.known, *((finding, reason) for finding, reason in linted.ignored if options.shows(finding))),
        unexpected=_unexpected(linted, expected, options),
        left_out=sum(len(report.findings) for report in sure) - sum(len(report.findings) for report in shown),
        set_aside=_set_aside(linted, shown),
        fail_on=Severity(options.fail_on),
    )
    unwritten = _written(shown, remarks, options.output_file)
    if arguments.statistics:
        output.write("\n".join([*_statistics(shown), summary(shown, remarks=remarks)]))
    else:
        output.write(write(shown, options.output_format, remarks=remarks, width=output.width()))
    if arguments.statistics or options.output_format == "concise":  # which name findings alone
        for note in linted.notes:
            output.complain(str(note))
    if unwritten:
        raise UsageError("; ".join(unwritten))
    failing = [replace(one, findings=tuple(f for f in one.findings if options.fails(f.severity))) for one in shown]
    if arguments.update_known_failures:
        return _update(options, entries, [*expected.gone, *(entry for entry, _ in expected.absent)], failing)
    return FINDINGS if remarks.unexpected or any(one.findings for one in failing) else CLEAN


def _written(reports: Sequence[Report], remarks: Remarks, files: Sequence[str]) -> list[str]:
    if not files:
        return []
    from pullback.cli import report_files  # here, as known failures above

    return report_files.write_files(reports, remarks, files)


def _set_aside(linted: Linted, shown: Sequence[Report]) -> int:
    """How many reports have nothing above a hint left, because of comments, known failures or a selection."""
    pairs = enumerate(zip(linted.reports, shown, strict=True))
    return sum(after.ok and (not before.ok or number in linted.set_aside) for number, (before, after) in pairs)


def _unexpected(linted: Linted, expected: _Expected, options: LintOptions) -> tuple[str, ...]:
    """What was expected and didn't come: known failures, and comments that hide nothing."""
    found = [f"{entry.function} {entry.rule} was not found ({entry.reason})" for entry in expected.gone]
    found += [f"{entry.function} {entry.rule}: no such Function in {file}" for entry, file in expected.absent]
    # Where files alone are named, as a hook does it, what a comment hides may need another file: a base, or a class.
    whole = any(os.path.isdir(path) for path in options.paths or (".",))
    stale = [one for one in linted.stale if whole and all(options.wants_rule(code) for code in one.codes)]
    return (*found, *(f"{one} hides nothing" for one in stale))


def _statistics(reports: Sequence[Report]) -> list[str]:
    """How many findings each rule has, most frequent first."""
    counts = Counter(finding.rule for report in reports for finding in report.findings)
    width = max((len(str(number)) for number in counts.values()), default=0)
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [f"{number:>{width}}  {code} {RULES[code].severity}: {RULES[code].title}" for code, number in ordered]


def _update(
    options: LintOptions, entries: Sequence[KnownFailure], gone: Sequence[KnownFailure], failing: Sequence[Report]
) -> int:
    from pathlib import Path

    from pullback.cli import known_failures

    path = Path(options.known_failures)
    nameless = known_failures.rewrite(path, entries, gone, failing)
    if nameless:
        missing = ", ".join(f"{entry.function} {entry.rule}" for entry in nameless)
        output.complain(f"{path}: write a reason for {missing}; until then it can't be used")
        return FINDINGS
    return CLEAN
