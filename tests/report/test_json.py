"""Reports as JSON, and back."""

from __future__ import annotations

import json as stdlib_json
import math
from dataclasses import replace
from typing import Any

import pytest

from pullback.report import json
from pullback.rules import Severity
from tests.report.examples import CLEAN, FAULTY, REMARKS, REPORTS, WRONG


def strictly(text: str) -> Any:
    """Parses JSON as every parser must, so NaN and Infinity are errors."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return stdlib_json.loads(text, parse_constant=refuse)


def test_a_report_comes_back_as_it_was() -> None:
    """What is read equals what was written, non-finite numbers included."""
    read = json.from_json(json.dumps(REPORTS, remarks=REMARKS))
    evidence = dict(read[0].findings[0].evidence)
    assert math.isnan(evidence.pop("noise"))
    assert evidence == {"max_error": 1.5, "index": [1, 0], "worst": math.inf, "ratio": -math.inf}
    plain = [replace(report, findings=tuple(replace(f, evidence={}) for f in report.findings)) for report in REPORTS]
    assert [replace(r, findings=tuple(replace(f, evidence={}) for f in r.findings)) for r in read] == plain


def test_severity_comes_back_as_given() -> None:
    """A finding that was milder than its rule stays so."""
    mild = replace(CLEAN, findings=(replace(WRONG, severity=Severity.WARNING, evidence={}),))
    assert json.from_json(json.dumps([mild])) == [mild]


def test_the_document_is_valid_json_with_its_version() -> None:
    """Strict parsers take it, and the version says how to read it."""
    document = strictly(json.dumps(REPORTS, remarks=REMARKS))
    assert document["version"] == json.VERSION
    assert document["reports"][0]["findings"][0]["evidence"]["noise"] == {"float": "nan"}


def test_ok_and_summary_say_how_it_ended() -> None:
    """A machine needs no more than ``ok`` and the counts."""
    document = strictly(json.dumps(REPORTS))
    assert document["ok"] is False
    assert document["summary"] == {
        "functions": 3,
        "clean": 2,
        "faulty": 1,
        "set_aside": 0,
        "unchecked": 0,
        "unloadable": 1,
        "errors": 2,
        "warnings": 0,
        "hints": 1,
    }
    assert strictly(json.dumps([CLEAN]))["ok"] is True
    assert strictly(json.dumps([CLEAN], remarks=REMARKS))["ok"] is False


def test_evidence_that_is_not_json_is_written_as_text() -> None:
    """Whatever a probe put there, the document can be written."""
    odd = replace(WRONG, evidence={"pair": (1, 2), "type": complex(1, 2), "float": {"float": "1.5"}})
    document = strictly(json.dumps([replace(FAULTY, findings=(odd,))]))
    expected = {"pair": [1, 2], "type": "(1+2j)", "float": {"float": "1.5"}}
    assert document["reports"][0]["findings"][0]["evidence"] == expected
    assert json.from_json(stdlib_json.dumps(document))[0].findings[0].evidence == expected


def test_keys_of_a_later_writer_are_passed_over() -> None:
    """A document with more keys than this version knows can still be read."""
    document = strictly(json.dumps([FAULTY]))
    document["reports"][0]["findings"][0]["later"] = 1
    document["later"] = 1
    assert json.from_json(stdlib_json.dumps(document))[0].findings[0].rule == "PB203"


@pytest.mark.parametrize("document", ['{"version": 2, "reports": []}', "[]", '{"reports": []}', "1"])
def test_other_versions_are_refused(document: str) -> None:
    """A document that means something else isn't read as if it didn't."""
    with pytest.raises(ValueError, match="expected a report of version 1, got version"):
        json.from_json(document)
