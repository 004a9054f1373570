"""Reports as one page for people: a table of probes, each finding in full, and pictures of where gradients are wrong.

The page is a single file. It has no script, asks for nothing over the network, follows the reader's choice of light or
dark, and can be printed. Whatever came out of the checked code is escaped; the page's own policy forbids the rest.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from pullback.finding import Finding, Report, Status
from pullback.report.characters import visible
from pullback.report.picture import picture
from pullback.report.remarks import (
    NO_REMARKS,
    Remarks,
    checked,
    column_of,
    count,
    has_hints_alone,
    is_read_only,
    skipped_by_reason,
    unloadable,
)
from pullback.report.style import STYLE
from pullback.report.text import numbers, summary
from pullback.rules import RULES

_PARTS = ("where", "what", "expected", "got", "remedy", "to see it")
_MARKS = {"passed": "✓", "failed": "✗", "hints": "!", "aside": "○", "skipped": "-"}
_MEANINGS = {
    "passed": "passed",
    "failed": "failed",
    "hints": "found hints alone",
    "aside": "failed, and what it found is known or was left out",
    "skipped": "skipped, for the reason below",
}
_COLOURS = {"hints": "hint"}
_PLURALS = {name: f"{name}s" for name in ("Function", "error", "warning", "hint", "known failure")}
_PLURALS["unexpected pass"] = "unexpected passes"


def page(reports: Sequence[Report], *, remarks: Remarks = NO_REMARKS) -> str:
    """The page, without a newline at its end.

    Args:
        reports: What to write, in this order.
        remarks: What the run has to say beside the reports.
    """
    read = bool(reports) and all(map(is_read_only, reports))
    title = f"pullback {'lint' if read else 'check'}"
    # What was read and is clean has nothing to show: of a hundred Functions the page has those with findings.
    shown = [report for report in reports if report.findings] if read else reports
    body = [
        f"<h1>{title}</h1>",
        f"<p>{_text(summary(reports, remarks=remarks))}</p>",
        *_counts(reports, remarks),
        *(() if read else _probes(reports)),
        *(part for number, report in enumerate(shown) for part in _section(number, report)),
        *_remarks(remarks),
    ]
    head = [
        '<meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>\n{STYLE}</style>",
    ]
    lines = ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *body, "</body>", "</html>"]
    return "\n".join(lines)


def _counts(reports: Sequence[Report], remarks: Remarks) -> Iterator[str]:
    counts = count(reports, remarks=remarks)
    always = ((counts.functions, "Function"), (counts.clean, "clean"), (counts.faulty, "with findings"))
    others = (
        (counts.set_aside, "set aside"),
        (counts.unchecked, "not checked"),
        (counts.unloadable, "can't be loaded"),
        (counts.errors, "error"),
        (counts.warnings, "warning"),
        (counts.hints, "hint"),
        (len(remarks.known), "known failure"),
        (len(remarks.unexpected), "unexpected pass"),
    )
    shown = [*always, *(pair for pair in others if pair[0])]
    items = (f"<li><b>{number}</b> {name if number == 1 else _PLURALS.get(name, name)}</li>" for number, name in shown)
    yield f'<ul class="numbers">{"".join(items)}</ul>'


def _probes(reports: Sequence[Report]) -> Iterator[str]:
    """The table: a row for each Function, a column for each probe."""
    names = list(dict.fromkeys(name for report in reports for name in report.outcomes))
    if not names:
        return
    used = set()
    yield '<div class="wide"><table class="probes">'
    yield "<thead><tr><th>probes</th>" + "".join(f"<th><span>{_text(name)}</span></th>" for name in names)
    yield "</tr></thead><tbody>"
    for number, report in enumerate(reports):
        if not report.outcomes:
            continue
        yield f'<tr><th><a href="#f{number}">{_text(report.function)}</a></th>'
        for name in names:
            kind = _kind(report, name)
            used.add(kind)
            yield _cell(number, report, name, kind)
        yield "</tr>"
    yield "</tbody></table></div>"
    meanings = [f"{_MARKS[kind]} {meaning}" for kind, meaning in _MEANINGS.items() if kind in used]
    meanings += ["blank: not chosen"] if "" in used else []
    yield f'<p class="soft">{"; ".join(meanings)}.</p>'


def _kind(report: Report, probe: str) -> str:
    if probe not in report.outcomes:
        return ""
    status = report.outcomes[probe].status
    if status is not Status.FAILED:
        return str(status)
    if has_hints_alone(report, probe):
        return "hints"
    return "aside" if report.ok else "failed"


def _cell(number: int, report: Report, probe: str, kind: str) -> str:
    if not kind:
        return "<td></td>"
    reason = report.outcomes[probe].reason or _MEANINGS[kind]
    mark = _MARKS[kind]
    first = next((index for index, finding in enumerate(report.findings) if finding.probe == probe), None)
    if first is not None:
        mark = f'<a href="#f{number}-{first}">{mark}</a>'
    title = _text(f"{report.function}, {probe}: {reason}")
    return f'<td class="{_COLOURS.get(kind, kind)}" title="{title}">{mark}</td>'


def _section(number: int, report: Report) -> Iterator[str]:
    yield f'<section><h2 id="f{number}">{_text(report.function)}</h2>'
    about = [f"<code>{_text(report.location)}</code>"] if report.location else []
    about += [f"samples: {_text(report.samples)}"] if report.samples else []
    about += [f"seed {report.seed}"] if report.outcomes and not is_read_only(report) else []
    yield f'<p class="soft">{"; ".join(about)}</p>'
    if not unloadable(report) and not is_read_only(report):
        yield f"<p>{_text(_verdict(report))}</p>"
    for index, finding in enumerate(report.findings):
        yield from _finding(finding, f"f{number}-{index}")
    yield from _list("Skipped", [f"{', '.join(names)}: {why}" for why, names in skipped_by_reason(report).items()])
    yield from _list("Noted", [f"{name}: {note}" for name, o in report.outcomes.items() for note in o.notes])
    skipped = tuple(f"{name}:" for name, o in report.outcomes.items() if o.status is Status.SKIPPED)
    yield from _list("Not tested", [sentence for sentence in report.untested if not sentence.startswith(skipped)])
    yield "</section>"


def _verdict(report: Report) -> str:
    if not report.outcomes:
        return "No probe ran."
    failed = any(outcome.status is Status.FAILED for outcome in report.outcomes.values())
    clean = "Clean; " if checked(report) and not report.findings and not failed else ""
    return f"{clean}{numbers(report)}."


def _finding(finding: Finding, anchor: str, reason: str = "") -> Iterator[str]:
    rule = RULES[finding.rule]
    yield f'<article class="finding {finding.severity}" id="{anchor}">'
    yield f"<h3>{finding.rule} {finding.severity}: {_text(rule.title)}</h3><dl>"
    column = column_of(finding, ":")
    where = f"{finding.where} ({finding.location}{column})" if column else finding.where
    texts = (where, finding.message, finding.expected, finding.got, finding.remedy, finding.repro)
    known = [("Function", finding.function), ("known", reason)] if reason else []
    for label, text in (*known, *zip(_PARTS, texts, strict=True)):
        if text:
            yield f"<dt>{label}</dt><dd>{_prose(text, code=label == 'to see it')}</dd>"
    yield f'<dt>why</dt><dd class="soft">{_text(rule.reason)}</dd>'
    if finding.probe and not column:
        yield f'<dt>probe</dt><dd class="soft">{_text(finding.probe)}</dd>'
    yield "</dl>"
    if finding.error_map is not None:
        yield picture(finding.error_map)
    yield "</article>"


def _remarks(remarks: Remarks) -> Iterator[str]:
    if remarks.unexpected:
        yield "<section><h2>Unexpected passes</h2>"
        yield from _list("", remarks.unexpected)
        yield "</section>"
    if remarks.known:
        yield "<section><h2>Known failures</h2>"
        for index, (finding, reason) in enumerate(remarks.known):
            yield from _finding(finding, f"known-{index}", reason)
        yield "</section>"
    if remarks.skipped:
        yield "<section><h2>Left unchecked on purpose</h2>"
        yield from _list("", remarks.skipped)
        yield "</section>"


def _list(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield f"<p>{title}:</p>" if title else ""
        yield "<ul>" + "".join(f"<li>{_text(sentence)}</li>" for sentence in sentences) + "</ul>"


def _prose(text: str, *, code: bool) -> str:
    """Prose as it is; code, matrices and whatever else has lines of its own with them."""
    lined = text.strip("\n")
    return f"<pre>{_text(lined)}</pre>" if code or "\n" in lined else _text(lined)


def _text(text: str) -> str:
    return html.escape(visible(text))
