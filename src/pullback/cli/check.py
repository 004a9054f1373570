"""``pullback check``: targets in, one report for each Function out, and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pullback.cli import known_failures, output, targets
from pullback.cli.failure import CLEAN, FINDINGS, INTERRUPTED, USAGE, UsageError
from pullback.cli.known_failures import KnownFailure
from pullback.cli.options import CheckOptions, origin, resolve
from pullback.cli.process import Worker
from pullback.cli.progress import Progress
from pullback.cli.protocol import Job
from pullback.cli.report_files import unwritable, write_files
from pullback.cli.supervisor import START_SECONDS, Result, supervise
from pullback.finding import Report
from pullback.report.formats import write
from pullback.report.remarks import Remarks, checked, unloadable
from pullback.rules import Severity


def run(arguments: argparse.Namespace, *, engine: str) -> int:
    """Carries out the command.

    Args:
        arguments: What argparse made of the command line.
        engine: The module that finds Functions and checks them, imported by workers only.

    Returns:
        The exit code.

    Raises:
        UsageError: The command can't be carried out as it was given.
    """
    options = resolve(arguments, start=os.getcwd())
    try:
        return _run(arguments, options, engine)
    except UsageError as error:
        place = origin(arguments, start=os.getcwd())
        raise UsageError(f"{error} ({place})" if place else str(error)) from error


def _run(arguments: argparse.Namespace, options: CheckOptions, engine: str) -> int:
    if arguments.list:
        output.write(_listing(engine))
        return CLEAN
    if arguments.update_known_failures and not options.known_failures:
        raise UsageError("--update-known-failures needs --known-failures FILE")
    if not options.targets:
        raise UsageError("name at least one target: file.py, file.py:Class, package.module:Class or a folder")
    entries = _known(options, reasons_due=not arguments.update_known_failures)
    chosen = targets.resolve(options.targets)
    unwritten = unwritable(options.output_file)
    if unwritten:
        raise UsageError("; ".join(unwritten))
    results = _check(chosen, options, engine)
    interrupted = bool(results and results[-1].interrupted)
    if interrupted and not any(result.reports for result in results):
        raise KeyboardInterrupt
    _demand_something(results)
    reports = [report for result in results for report in result.reports]
    skipped = tuple(sentence for result in results for sentence in result.skipped)
    # Of a part of the Functions nobody can tell which known failures are gone.
    absent = [] if interrupted else known_failures.absent(reports, entries, _whole(chosen, results))
    unmet = list(_unmet(chosen, results))
    update = arguments.update_known_failures and not interrupted and not unmet
    code = _conclude(reports, skipped, entries, absent, options, update=update)
    for sentence in (*unmet, *(result.interrupted for result in results if result.interrupted)):
        output.complain(sentence)
    return INTERRUPTED if interrupted else USAGE if unmet else code


def _listing(engine: str) -> str:
    with Worker(Job(source="", engine=engine)) as worker:
        message = worker.receive(START_SECONDS)
    if message["kind"] != "ready":
        raise UsageError(message["message"])
    lines = [f"{name}\n    {proves}" for name, proves in message["probes"]]
    return "\n".join(lines)


def _known(options: CheckOptions, *, reasons_due: bool) -> list[KnownFailure]:
    path = Path(options.known_failures)
    if not options.known_failures or (not reasons_due and not path.exists()):
        return []
    return known_failures.read(path, reasons_due=reasons_due)


def _check(chosen: Sequence[targets.Target], options: CheckOptions, engine: str) -> list[Result]:
    results = []
    with _ended_by_sigterm(), Progress() as progress:
        for target in chosen:
            job = Job(
                source=target.source,
                is_file=target.is_file,
                names=target.names,
                whole=target.whole,
                engine=engine,
                only=options.only,
                skip=options.skip,
                orders=options.orders,
                seed=options.seed,
                samples=options.samples,
            )
            result = supervise(job, limit=options.timeout, watch=progress.heard, show_output=options.show_output)
            results.append(result)
            if result.interrupted:
                rest = [f"{left.source} was not checked" for left in chosen[len(results) :]]
                result.skipped = [*result.skipped, result.interrupted, *rest]
                break
            if not result.reports:
                _found_none(target, result)
    return results


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Turns SIGTERM into an exception meanwhile, so that a stopped run leaves no worker behind."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _found_none(target: targets.Target, result: Result) -> None:
    """Says so of a file or module in which there was nothing to check; one that was named was asked about in vain."""
    if not result.skipped:
        result.skipped = [f"{target.source} defines no Function"]
    if target.named:
        result.missing = "; ".join(result.skipped)


def _unmet(chosen: Sequence[targets.Target], results: Sequence[Result]) -> Iterator[str]:
    """What was asked for by name and has no verdict, in sentences: whatever else was checked, that is no success."""
    for target, result in zip(chosen, results, strict=False):  # an interrupted run has fewer results
        if result.missing:
            bare = target.is_file and target.whole and not result.reports
            yield f"{result.missing}{'; files without any are passed over in a folder that is named' if bare else ''}"


def _demand_something(results: Sequence[Result]) -> None:
    """A run that checked nothing must not look like one that found nothing."""
    if any(result.reports and not result.missing for result in results):
        return
    if any(not unloadable(report) for result in results for report in result.reports):
        return
    reasons = [result.missing or "; ".join(result.skipped) for result in results]
    raise UsageError(f"nothing to check: {'; '.join(reason for reason in reasons if reason)}")


def _whole(chosen: Sequence[targets.Target], results: Sequence[Result]) -> set[Path]:
    """The files that were loaded and of which every Function was checked."""
    files = set()
    for target, result in zip(chosen, results, strict=True):
        if not target.whole or any(map(unloadable, result.reports)):
            continue
        files |= {Path(report.location.rpartition(":")[0]) for report in result.reports if report.location}
        files |= {Path(target.source)} if target.is_file else set()
    return files


def _conclude(
    reports: Sequence[Report],
    skipped: tuple[str, ...],
    entries: Sequence[KnownFailure],
    absent: Sequence[tuple[KnownFailure, Path]],
    options: CheckOptions,
    *,
    update: bool,
) -> int:
    remaining, known = known_failures.apart(reports, entries)
    could_come = [entry for entry in entries if options.whole_battery and options.wants(entry.rule)]
    gone = known_failures.unexpected(reports, could_come)
    shown = [
        replace(report, findings=tuple(f for f in report.findings if options.wants(f.rule))) for report in remaining
    ]
    unexpected = [f"{entry.function} {entry.rule} was not found ({entry.reason})" for entry in gone]
    unexpected += [f"{entry.function} {entry.rule}: no such Function in {file} to check" for entry, file in absent]
    gone += [entry for entry, _ in absent]
    remarks = Remarks(
        skipped=skipped,
        known=tuple(known),
        unexpected=tuple(unexpected),
        left_out=sum(len(report.findings) for report in remaining) - sum(len(report.findings) for report in shown),
        set_aside=sum(
            checked(after) and after.ok and not before.ok for before, after in zip(reports, shown, strict=True)
        ),
        fail_on=Severity(options.fail_on),
    )
    unwritten = write_files(shown, remarks, options.output_file)
    output.write(write(shown, options.output_format, remarks=remarks, width=output.width()))
    if unwritten:
        raise UsageError("; ".join(unwritten))
    failing = [replace(one, findings=tuple(f for f in one.findings if options.fails(f.severity))) for one in shown]
    if update:
        path = Path(options.known_failures)
        nameless = known_failures.rewrite(path, entries, gone, failing)
        if nameless:
            missing = ", ".join(f"{entry.function} {entry.rule}" for entry in nameless)
            output.complain(f"{path}: write a reason for {missing}; until then it can't be used")
            return FINDINGS
        return CLEAN
    return FINDINGS if gone or any(one.findings for one in failing) else CLEAN
