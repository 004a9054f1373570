"""Reports as plain text: in full for people, or one line a finding for editors and logs.

Nothing here knows of colours or terminals: the text is the same in a pipe, a file and an exception. What could move a
cursor, ring a bell or turn a line around comes out as an escape, since messages quote code that nobody here wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pullback.finding import Finding, Report, Status
from pullback.report.characters import flat, visible
from pullback.report.remarks import (
    NO_REMARKS,
    Counts,
    Remarks,
    checked,
    column_of,
    count,
    has_hints_alone,
    is_read_only,
    skipped_by_reason,
    unloadable,
)
from pullback.rules import RULES

WIDTH = 100
"""The width of text that isn't written to a terminal."""

_NARROWEST = 40
_LABEL = 10  # the longest label, "expected:", and a space


def full(reports: Sequence[Report], *, remarks: Remarks = NO_REMARKS, width: int = WIDTH) -> str:
    """What is known about each Function, and one summary line at the end.

    A Function without any finding takes a line, beside its samples and what was left out, and none if it was only read;
    what was tested for none of several Functions is said once, below them.

    Args:
        reports: What to write, in this order.
        remarks: What the run has to say beside the reports.
        width: Where prose is wrapped; code and tables of numbers are never wrapped.

    Returns:
        The text, without a newline at its end.
    """
    width = max(width, _NARROWEST)
    common = _common(reports)
    shown = [report for report in reports if report.findings or not is_read_only(report)]
    blocks = ["\n".join(_report(report, width, common)) for report in shown]
    blocks += ["\n".join(end) for end in [list(_at_the_end(common, width))] if end]
    beside = list(_remarks(remarks, width))
    if beside:
        blocks.append("\n".join(beside))
    blocks.append("\n".join(_wrapped(summary(reports, remarks=remarks), width)))
    return "\n\n".join(blocks)


def concise(reports: Sequence[Report], *, remarks: Remarks = NO_REMARKS) -> str:
    """One line for each finding, ``file.py:12: PB203 error Class: message (where)``, and one summary line.

    Where the column is known, as to the linter, it follows the line: ``file.py:12:5``.

    Args:
        reports: What to write, in this order.
        remarks: What the run has to say beside the reports.

    Returns:
        The text, without a newline at its end.
    """
    lines = [_one_line(finding, report) for report in reports for finding in report.findings]
    lines += [f"unexpected pass: {flat(sentence)}" for sentence in remarks.unexpected]
    lines.append(summary(reports, remarks=remarks))
    return "\n".join(lines)


def summary(reports: Sequence[Report], *, remarks: Remarks = NO_REMARKS) -> str:
    """The one line that says how the whole run ended."""
    counts = count(reports, remarks=remarks)
    parts = [_functions(counts), _findings(counts)]
    if counts.unloadable:
        what = _plural(counts.unloadable, "target", "targets")
        parts.insert(1, f"{what} that can't be loaded")
    if remarks.known:
        parts.append(_plural(len(remarks.known), "known failure"))
    if remarks.unexpected:
        parts.append(_plural(len(remarks.unexpected), "unexpected pass", "unexpected passes"))
    if remarks.skipped:
        parts.append(f"{len(remarks.skipped)} skipped")
    if remarks.left_out:
        parts.append(f"{_plural(remarks.left_out, 'finding')} left out by the selection of rules")
    return "; ".join(parts) + "."


def _functions(counts: Counts) -> str:
    text = f"{_plural(counts.functions, 'Function')}: {counts.clean} clean, {counts.faulty} with findings"
    text += f", {counts.set_aside} set aside" if counts.set_aside else ""
    return text + (f", {counts.unchecked} not checked" if counts.unchecked else "")


def _findings(counts: Counts) -> str:
    named = ((counts.errors, "error"), (counts.warnings, "warning"), (counts.hints, "hint"))
    found = [_plural(number, name) for number, name in named if number]
    return ", ".join(found) if found else "no findings"


class _Common(NamedTuple):
    """What the reports of several Functions have in common, which is said once, below them.

    Attributes:
        untested: What none of them tested.
        seed: The seed of them all, None where they differ.
    """

    untested: tuple[str, ...] = ()
    seed: int | None = None


def _common(reports: Sequence[Report]) -> _Common:
    ran = [report for report in reports if checked(report) and not is_read_only(report)]
    if len(ran) < 2:
        return _Common()
    seeds = {report.seed for report in ran}
    untested = tuple(sentence for sentence in ran[0].untested if all(sentence in other.untested for other in ran))
    return _Common(untested=untested, seed=seeds.pop() if len(seeds) == 1 else None)


def _at_the_end(common: _Common, width: int) -> Iterator[str]:
    if common.untested:
        yield "not tested, for any of these Functions:"
        for sentence in common.untested:
            yield from _bullet(sentence, 2, width)
    if common.seed is not None:
        yield f"run it again with seed {common.seed}"


def _report(report: Report, width: int, common: _Common) -> Iterator[str]:
    statuses = [outcome.status for outcome in report.outcomes.values()]
    clean = checked(report) and not report.findings and Status.FAILED not in statuses
    title = f"{flat(report.function)}  {flat(report.location)}".rstrip()
    said = numbers(report)
    verdict = "" if not clean else f"clean ({said})" if said else "clean"
    line = f"{title}: {verdict}"
    if clean and len(line) <= width:
        yield line
    else:
        yield title
        yield from _wrapped(verdict, width, "  ", "    ")
    if report.samples:
        yield from _labelled("samples", report.samples, 2, width)
    for finding in report.findings:
        yield ""
        yield from finding_lines(finding, width)
    if report.findings and not unloadable(report) and not is_read_only(report):
        yield ""
    if clean:
        yield from _notes(report, width)
    elif not unloadable(report):
        yield from _outcomes(report, width)
    # Of a faulty one each skipped probe has been named with its reason; what is left is what no probe looks at.
    skipped = [name for name, outcome in report.outcomes.items() if outcome.status is Status.SKIPPED]
    named = () if clean else tuple(f"{name}:" for name in skipped)
    untested = [sentence for sentence in report.untested if not sentence.startswith(named)]
    untested = [sentence for sentence in untested if sentence not in common.untested]
    if untested:
        yield "  not tested:"
        for sentence in untested:
            yield from _bullet(sentence, 4, width)
    if report.outcomes and common.seed is None and not is_read_only(report):
        yield f"  run it again with seed {report.seed}"


def finding_lines(finding: Finding, width: int) -> Iterator[str]:
    """All that a finding says, indented by two."""
    yield from _wrapped(f"{finding.rule} {finding.severity}: {RULES[finding.rule].title}", width, "  ", "    ")
    column = column_of(finding, ":")
    parts = (
        ("where", finding.where),
        ("at", f"{finding.location}{column}" if column else ""),
        ("what", finding.message),
        ("expected", finding.expected),
        ("got", finding.got),
        ("remedy", finding.remedy),
    )
    for label, text in parts:
        if text:
            yield from _labelled(label, text, 4, width)
    if finding.repro:
        yield "    to see it:"
        yield from _indented(visible(finding.repro), 8)


def _outcomes(report: Report, width: int) -> Iterator[str]:
    if not report.outcomes:
        yield "  probes: none ran"
        return
    yield from _wrapped(numbers(report), width, "  ", "    ")
    for reason, skipped in skipped_by_reason(report).items():
        yield from _bullet(f"{', '.join(skipped)} skipped: {reason}", 4, width)
    yield from _notes(report, width)


def numbers(report: Report) -> str:
    """How many probes ended in which way, and how long they took; nothing of what was read and not run."""
    outcomes = report.outcomes
    if is_read_only(report):
        return ""
    names = {status: [name for name, outcome in outcomes.items() if outcome.status is status] for status in Status}
    hinted = [name for name in names[Status.FAILED] if has_hints_alone(report, name)]
    failed = [name for name in names[Status.FAILED] if name not in hinted]
    text = f"probes: {len(names[Status.PASSED])} passed"
    text += f", {len(failed)} failed ({', '.join(failed)})" if failed else ""
    text += f", {len(hinted)} with hints alone ({', '.join(hinted)})" if hinted else ""
    seconds = sum(outcome.seconds for outcome in outcomes.values())
    return text + f", {len(names[Status.SKIPPED])} skipped; {seconds:.1f} s"


def _notes(report: Report, width: int) -> Iterator[str]:
    """What probes left out or were refused, under a line of its own: it is no part of what stands above."""
    notes = [f"{name}: {note}" for name, outcome in report.outcomes.items() for note in outcome.notes]
    if notes:
        yield "  notes:"
    for note in notes:
        yield from _bullet(note, 4, width)


def _remarks(remarks: Remarks, width: int) -> Iterator[str]:
    for sentence in remarks.unexpected:
        yield from _wrapped(f"unexpected pass: {sentence}", width, "", "  ")
    for finding, reason in remarks.known:
        yield from _wrapped(f"known failure: {finding.function} {finding.rule} ({reason})", width, "", "  ")
    for sentence in remarks.skipped:
        yield from _wrapped(f"skipped: {sentence}", width, "", "  ")


def _labelled(label: str, text: str, indent: int, width: int) -> Iterator[str]:
    head = " " * indent + f"{label}:".ljust(_LABEL)
    text = visible(text)
    if "\n" in text.strip():  # a matrix, or lines of code: its line breaks mean something
        yield head.rstrip()
        yield from _indented(text, indent + _LABEL)
    else:
        yield from _wrapped(text, width, head, " " * len(head))


def _indented(text: str, by: int) -> Iterator[str]:
    for line in text.strip("\n").splitlines():
        yield " " * by + line if line.strip() else line


def _bullet(text: str, indent: int, width: int) -> Iterator[str]:
    yield from _wrapped(flat(text), width, " " * indent + "- ", " " * (indent + 2))


def _wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    import textwrap  # here, since the linter's lines, one a finding, are never wrapped

    return textwrap.wrap(
        flat(text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,  # a path or a name that is cut in two can't be copied
        break_on_hyphens=False,
    )


def _one_line(finding: Finding, report: Report) -> str:
    location = finding.location or report.location
    place = f"{location}{column_of(finding, ':')}: " if location else ""
    where = f" ({finding.where})" if finding.where else ""
    return flat(f"{place}{finding.rule} {finding.severity} {finding.function}: {finding.message}{where}")


def _plural(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
