"""Reports as workflow commands of GitHub Actions, which turn them into annotations on the lines at fault.

Every line is a command, ``::error file=ops.py,line=12,title=…::message``; plain text stands nowhere, since whatever the
checked code put into a message could be read as a command there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pullback.finding import Finding, Report
from pullback.report.characters import flat, visible
from pullback.report.places import Place, place_of, read
from pullback.report.remarks import NO_REMARKS, Remarks, column_of
from pullback.report.text import summary
from pullback.rules import RULES, Severity

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.HINT: "notice"}
_PARTS = ("where", "expected", "got", "remedy")


def commands(reports: Sequence[Report], *, remarks: Remarks = NO_REMARKS) -> str:
    """One command for each finding, one for each unexpected pass, and a notice that says how the run ended.

    Args:
        reports: What to write, worst first, since GitHub shows only the first annotations of a step.
        remarks: What the run has to say beside the reports.

    Returns:
        The commands, without a newline at the end.
    """
    found = [(finding, report) for report in reports for finding in report.findings]
    order = list(_COMMANDS)
    found.sort(key=lambda pair: order.index(pair[0].severity))  # stable: reports stay in their order
    lines = [_of_finding(finding, report) for finding, report in found]
    lines += [_of_unexpected(sentence) for sentence in remarks.unexpected]
    lines.append(_command("notice", "\n".join(_end(reports, remarks)), title="pullback"))
    return "\n".join(lines)


def _of_finding(finding: Finding, report: Report) -> str:
    message = [finding.message]
    for name in _PARTS:
        text = visible(getattr(finding, name)).strip("\n")
        if text:
            message.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    title = f"{finding.rule} {finding.function}: {RULES[finding.rule].title}"
    place, column = place_of(finding, report), column_of(finding, "")
    return _command(_COMMANDS[finding.severity], "\n".join(message), title=title, place=place, column=column)


def _of_unexpected(sentence: str) -> str:
    start = sentence.partition(": ")[0]  # `file.py:12: ignore[PB403] hides nothing` says where it stands
    place = read(start) if start.rpartition(":")[2].isdecimal() else None
    return _command("error", sentence, title="pullback: unexpected pass", place=place)


def _end(reports: Sequence[Report], remarks: Remarks) -> Iterator[str]:
    yield summary(reports, remarks=remarks)
    for finding, reason in remarks.known:
        yield f"known failure: {flat(finding.function)} {finding.rule} ({flat(reason)})"
    for sentence in remarks.skipped:
        yield f"skipped: {flat(sentence)}"


def _command(kind: str, message: str, *, title: str, place: Place | None = None, column: str = "") -> str:
    known = {"file": place.path if place else "", "line": str(place.line or "") if place else "", "col": column}
    known["title"] = flat(title)
    properties = ",".join(f"{name}={_property(value)}" for name, value in known.items() if value)
    return f"::{kind} {properties}::{_data(message)}"


def _data(text: str) -> str:
    """A message as the runner takes it: whatever would end the line, and the escape's own sign, as percent codes."""
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The same for a property, which a colon or a comma would end."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
