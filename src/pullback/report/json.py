"""Reports as JSON, and back.

The document of a run is one object::

    {
      "version": 1,                  # raised when a key changes its meaning; new keys don't raise it
      "ok": false,                   # no error and no warning in any report, and no unexpected pass
      "summary": {"functions": 2, "clean": 1, "faulty": 1, "set_aside": 0, "unchecked": 0, "unloadable": 0,
                  "errors": 1, "warnings": 0, "hints": 0},
      "reports": [{
        "function": "Square", "location": "ops.py:12", "ok": false, "samples": "2 declared", "seed": 0,
        "findings": [{
          "rule": "PB203", "severity": "error", "function": "Square", "where": "argument x, sample 0",
          "message": "...", "expected": "...", "got": "...", "remedy": "...", "repro": "...",
          "probe": "first_order", "evidence": {"max_error": 0.5, "error_map": {...}}, "location": "ops.py:12"
        }],
        "outcomes": [{"probe": "first_order", "status": "failed", "reason": "", "seconds": 0.1, "notes": []}],
        "untested": ["..."]
      }],
      "skipped": ["..."],            # what was left unchecked on purpose, in sentences
      "known": [{"finding": {...}, "reason": "..."}],
      "unexpected": ["..."],         # known failures that did not fail
      "left_out": 0                  # findings left out by a selection of rules
    }

``error_map`` is there where each element was compared; `pullback.finding.ErrorMap` says what its ``shape``, ``block``
and ``values`` are.

JSON has no NaN and no infinities: such a number is written as ``{"float": "nan"}``, ``{"float": "inf"}`` or
``{"float": "-inf"}``, so that every parser can read the document. Evidence that isn't JSON is written as its text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from pullback.finding import Finding, Outcome, Report, Status
from pullback.report.remarks import NO_REMARKS, Remarks, count
from pullback.rules import RULES, Severity

VERSION = 1
"""The version of the document that `dumps` writes and `from_json` reads."""

_NON_FINITE = ("nan", "inf", "-inf")

# A list of numbers over several lines; no text is hit, since a text in JSON has no end of a line.
_NUMBERS = re.compile(r"\[\n\s*((?:-?\d[\d.e+-]*|null)(?:,\n\s*(?:-?\d[\d.e+-]*|null))*)\n\s*\]")


def dumps(reports: Sequence[Report], *, remarks: Remarks = NO_REMARKS) -> str:
    """Writes reports as one JSON document.

    Args:
        reports: What to write, in this order.
        remarks: What the run has to say beside the reports.

    Returns:
        The document, indented, without a newline at its end.
    """
    document = {
        "version": VERSION,
        "ok": all(report.ok for report in reports) and not remarks.unexpected,
        "summary": count(reports, remarks=remarks)._asdict(),
        "reports": [encode_report(report) for report in reports],
        "skipped": list(remarks.skipped),
        "known": [{"finding": encode_finding(finding), "reason": reason} for finding, reason in remarks.known],
        "unexpected": list(remarks.unexpected),
        "left_out": remarks.left_out,
    }
    return indented(document)


def indented(document: object) -> str:
    """A document as JSON, indented, lists of numbers on one line each."""
    text = json.dumps(document, indent=2, allow_nan=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)


def from_json(text: str) -> list[Report]:
    """Reads the reports of a document that `dumps` wrote.

    Args:
        text: The document.

    Returns:
        Its reports, equal to those written if their evidence was JSON.

    Raises:
        ValueError: The text isn't JSON, is a document of another version, or isn't as `dumps` writes it.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("expected a report, got JSON that is nested too deeply to be one") from None
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is not int or version != VERSION:
        raise ValueError(f"expected a report of version {VERSION}, got version {version}")
    entries = document.get("reports")
    if not isinstance(entries, list):
        raise ValueError(f"expected a list of reports, got {entries!r}")
    return [_read(entry, number) for number, entry in enumerate(entries)]


def _read(entry: Any, number: int) -> Report:
    """One report of a document that anybody may have written."""
    try:
        report = decode_report(entry)
        _demand_types(report)
    except KeyError as error:
        fault = f"{error.args[0]!r} is missing"
    except (TypeError, AttributeError, ValueError) as error:
        fault = str(error)
    else:
        return report
    raise ValueError(f"report {number} of the document can't be read: {fault}")


def _demand_types(report: Report) -> None:
    texts = [report.function, report.location, report.samples, *report.untested, *report.outcomes]
    for finding in report.findings:
        texts += [getattr(finding, item.name) for item in fields(finding) if item.name not in ("severity", "evidence")]
        if not isinstance(finding.evidence, Mapping):
            raise TypeError(f"expected evidence by name, got {finding.evidence!r}")
    for outcome in report.outcomes.values():
        texts += [outcome.reason, *outcome.notes]
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"expected a text, got {text!r}")
    for number in (report.seed, *(outcome.seconds for outcome in report.outcomes.values())):
        if not isinstance(number, (int, float)):
            raise TypeError(f"expected a number, got {number!r}")


def encode_report(report: Report) -> dict[str, Any]:
    """One report as JSON-ready data."""
    return {
        "function": report.function,
        "location": report.location,
        "ok": report.ok,
        "samples": report.samples,
        "seed": report.seed,
        "findings": [encode_finding(finding) for finding in report.findings],
        "outcomes": [{"probe": name, **_encode_outcome(outcome)} for name, outcome in report.outcomes.items()],
        "untested": list(report.untested),
    }


def decode_report(data: Mapping[str, Any]) -> Report:
    """The report that `encode_report` wrote."""
    return Report(
        function=data["function"],
        location=data["location"],
        samples=data["samples"],
        seed=data["seed"],
        findings=tuple(decode_finding(entry) for entry in data["findings"]),
        outcomes={entry["probe"]: _decode_outcome(entry) for entry in data["outcomes"]},
        untested=tuple(data["untested"]),
    )


def encode_finding(finding: Finding) -> dict[str, Any]:
    """One finding as JSON-ready data."""
    return {item.name: _encode(getattr(finding, item.name)) for item in fields(finding)}


def encode_evidence(finding: Finding) -> Any:
    """What is behind a finding as JSON-ready data."""
    return _encode(finding.evidence)


def decode_finding(data: Mapping[str, Any]) -> Finding:
    """The finding that `encode_finding` wrote; keys of a later writer are passed over."""
    if data["rule"] not in RULES:
        raise ValueError(f"there is no rule {data['rule']!r}")
    known = {item.name: _decode(data[item.name]) for item in fields(Finding) if item.name in data}
    return Finding(**{**known, "severity": Severity(data["severity"])})


def _encode_outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "status": str(outcome.status),
        "reason": outcome.reason,
        "seconds": _encode(outcome.seconds),
        "notes": list(outcome.notes),
    }


def _decode_outcome(data: Mapping[str, Any]) -> Outcome:
    return Outcome(
        status=Status(data["status"]),
        reason=data["reason"],
        seconds=_decode(data["seconds"]),
        notes=tuple(data["notes"]),
    )


def _encode(value: object) -> Any:
    if isinstance(value, (Severity, Status)):
        return str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, Mapping):
        return {str(key): _encode(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(entry) for entry in value]
    return str(value)


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"} and value["float"] in _NON_FINITE:
            return float(value["float"])
        return {key: _decode(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_decode(entry) for entry in value]
    return value
