"""Reports as SARIF 2.1.0, the format in which code hosts and editors take findings.

One run has a result for each finding. Known failures are results, too, each with its reason as a suppression. What
could not be checked (an import that raises, a probe that hangs) is a result and also a notification of the tool, and
makes the run count as not successful: nobody may take its silence for a clean file. Paths in the working directory are
written from there, so that a log means the same on every machine, and each result has a fingerprint that the next run
gives again.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pullback.finding import Finding, Report, Status
from pullback.report.characters import flat, visible
from pullback.report.json import encode_evidence, indented
from pullback.report.places import Place, fingerprints, place_of
from pullback.report.remarks import NO_REMARKS, NOT_CHECKED, Remarks, column_of, is_read_only
from pullback.report.text import summary
from pullback.rules import RULES, Rule, Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
"""The name of the schema that a log keeps to."""

FINGERPRINT = "pullbackFinding/v1"
"""The key of the fingerprints; its version is raised when they are made of something else."""

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.HINT: "note"}
_PARTS = ("where", "expected", "got", "remedy")

Json = dict[str, Any]


def log(reports: Sequence[Report], *, remarks: Remarks = NO_REMARKS) -> str:
    """The log, indented, without a newline at its end.

    Args:
        reports: What to write, in this order.
        remarks: What the run has to say beside the reports.
    """
    found = [(finding, place_of(finding, report), "") for report in reports for finding in report.findings]
    found += [(finding, place_of(finding), reason) for finding, reason in remarks.known]
    codes = sorted({finding.rule for finding, _, _ in found})
    command = "lint" if reports and all(map(is_read_only, reports)) else "check"
    index = {code: number for number, code in enumerate(codes)}
    prints = fingerprints((finding, place) for finding, place, _ in found)
    results = [
        _result(finding, place, index, print_, suppression=_suppression(reason, remarks))
        for (finding, place, reason), print_ in zip(found, prints, strict=True)
    ]
    run = {
        "tool": {"driver": {"name": "pullback", **_release(), "rules": [_rule(RULES[code]) for code in codes]}},
        "automationDetails": {"id": f"pullback/{command}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(found, index, remarks)],
        "results": results,
        "properties": {
            "summary": visible(summary(reports, remarks=remarks)),
            "functions": [_coverage(report) for report in reports],
            "findingsLeftOut": remarks.left_out,
        },
    }
    return indented({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _release() -> Json:
    try:
        return {"version": importlib.metadata.version("pullback")}
    except importlib.metadata.PackageNotFoundError:  # the sources alone are on the path
        return {}


def _rule(rule: Rule) -> Json:
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.reason},
        "help": {"text": f"{rule.reason}\n\n{rule.remedy}", "markdown": f"{rule.reason}\n\n**Remedy:** {rule.remedy}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(
    finding: Finding, place: Place | None, index: Mapping[str, int], fingerprint: str, *, suppression: Json
) -> Json:
    told = {name: visible(getattr(finding, name)) for name in ("probe", "where", "expected", "got", "remedy", "repro")}
    evidence = _clean(encode_evidence(finding))
    return {
        "ruleId": finding.rule,
        "ruleIndex": index[finding.rule],
        "level": _LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [_location(finding, place)],
        "partialFingerprints": {FINGERPRINT: fingerprint},
        **suppression,
        "properties": {**{key: text for key, text in told.items() if text}, "evidence": evidence},
    }


def _message(finding: Finding) -> str:
    lines = [f"{flat(finding.function)}: {visible(finding.message)}"]
    for name in _PARTS:
        text = visible(getattr(finding, name)).strip("\n")
        if text:
            lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)


def _location(finding: Finding, place: Place | None) -> Json:
    logical = {"logicalLocations": [{"fullyQualifiedName": flat(finding.function)}]}
    column = column_of(finding, "")
    return {**_physical(place, int(column) if column else None), **logical}


def _physical(place: Place | None, column: int | None) -> Json:
    if place is None:
        return {}
    file: Json = {"uri": _uri(place)}
    if place.inside:
        file["uriBaseId"] = "%SRCROOT%"
    start = {"startLine": place.line} | ({"startColumn": column} if column else {})
    region = {"region": start} if place.line else {}
    return {"physicalLocation": {"artifactLocation": file, **region}}


def _uri(place: Place) -> str:
    if place.inside:
        return quote(place.path, errors="surrogatepass")
    path = quote(place.path, safe="/:", errors="surrogatepass")  # the colon of C:/ops.py
    if path.startswith("//"):  # //server/share/ops.py
        return f"file:{path}"
    return f"file://{path}" if path.startswith("/") else f"file:///{path}"


def _suppression(reason: str, remarks: Remarks) -> Json:
    """Why a result doesn't count; where one result of a run says so, each has to say whether it does."""
    if not remarks.known:
        return {}
    if not reason:
        return {"suppressions": []}
    return {"suppressions": [{"kind": "external", "status": "accepted", "justification": visible(reason)}]}


def _invocation(found: Iterable[tuple[Finding, Place | None, str]], index: Mapping[str, int], remarks: Remarks) -> Json:
    trouble = [entry for entry in found if entry[0].rule in NOT_CHECKED]
    told = [
        {
            "level": _LEVELS[finding.severity],
            "message": {"text": _message(finding)},
            "associatedRule": {"id": finding.rule, "index": index[finding.rule]},
            "locations": [_location(finding, place)],
        }
        for finding, place, _ in trouble
    ]
    told += [{"level": "note", "message": {"text": f"skipped: {flat(sentence)}"}} for sentence in remarks.skipped]
    stale = [
        {"level": "error", "message": {"text": f"unexpected pass: {flat(sentence)}"}} for sentence in remarks.unexpected
    ]
    return {
        "executionSuccessful": all(reason for _, _, reason in trouble),
        "toolExecutionNotifications": told,
        "toolConfigurationNotifications": stale,
    }


def _coverage(report: Report) -> Json:
    """What was tried on a Function, for whoever asks what its silence means."""
    names: dict[str, list[str]] = {str(status): [] for status in Status}
    skipped = {}
    for name, outcome in report.outcomes.items():
        names[str(outcome.status)].append(visible(name))
        if outcome.status is Status.SKIPPED:
            skipped[visible(name)] = visible(outcome.reason)
    return {
        "name": flat(report.function),
        "samples": visible(report.samples),
        "seed": report.seed,
        "passed": names["passed"],
        "failed": names["failed"],
        "skipped": skipped,
        "notTested": [visible(sentence) for sentence in report.untested],
    }


def _clean(value: Any) -> Any:
    """Encoded data without unfit characters, which many readers of a log can't take even as escapes."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_clean(entry) for entry in value]
    if isinstance(value, dict):
        return {visible(key): _clean(entry) for key, entry in value.items()}
    return value
