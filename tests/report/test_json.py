"""Reports as JSON, and back."""

from __future__ import annotations

import json as stdlib_json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from pullback.cli import protocol
from pullback.report import json
from pullback.report.names import FORMATS
from pullback.rules import Severity
from tests.report.examples import CLEAN, ERRORS, FAULTY, HOSTILE, HOSTILE_REMARKS, REMARKS, REPORTS, WRONG


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
    assert evidence.pop("error_map") == ERRORS.evidence
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


@pytest.mark.parametrize(
    "document", ['{"version": 2, "reports": []}', '{"version": true, "reports": []}', "[]", '{"reports": []}', "1"]
)
def test_other_versions_are_refused(document: str) -> None:
    """A document that means something else isn't read as if it didn't."""
    with pytest.raises(ValueError, match="expected a report of version 1, got version"):
        json.from_json(document)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (('"reports": [', '"report": ['), "expected a list of reports, got None"),
        (('"samples"', '"sample"'), "report 0 of the document can't be read: 'samples' is missing"),
        (("PB203", "PB999"), "report 0 of the document can't be read: there is no rule 'PB999'"),
        (('"status": "failed"', '"status": "later"'), "'later' is not a valid Status"),
        (('"severity": "error"', '"severity": "fatal"'), "'fatal' is not a valid Severity"),
        (('"message": "wrong"', '"message": 7'), "expected a text, got 7"),
        (('"seed": 7', '"seed": "7"'), "expected a number, got '7'"),
        (('"evidence": {', '"evidence": 1, "later": {'), "expected evidence by name, got 1"),
    ],
)
def test_a_document_that_isnt_as_it_was_written_is_an_error(change: tuple[str, str], fault: str) -> None:
    """It says what is wrong, where otherwise a writer of another format would fail later on."""
    report = replace(FAULTY, findings=(replace(WRONG, message="wrong"),))
    written = json.dumps([report])
    assert change[0] in written
    with pytest.raises(ValueError, match=re.escape(fault)):
        json.from_json(written.replace(*change))


def test_a_document_that_is_nested_too_deeply_is_an_error() -> None:
    """No reader has to catch what Python raises for want of stack."""
    with pytest.raises(ValueError, match="nested too deeply"):
        json.from_json("[" * 200_000)


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_that_was_read_back_is_written_as_before(name: str) -> None:
    """Nothing that any format shows is lost on the way."""
    for report in (*REPORTS, HOSTILE):
        (read,) = json.from_json(json.dumps([report]))
        assert read.render(name) == report.render(name)


def test_an_error_map_comes_back_and_goes_between_processes() -> None:
    """A worker's report has it when it arrives, and what isn't finite is null, which every parser reads."""
    line = protocol.encode("report", report=json.encode_report(FAULTY))
    message = protocol.decode(line)
    assert message is not None
    assert json.decode_report(message["report"]).findings[0].error_map == ERRORS
    evidence = strictly(json.dumps([FAULTY]))["reports"][0]["findings"][0]["evidence"]
    assert evidence["error_map"]["values"] == [[0.0, 0.0], [1.5, None]]


def test_lists_of_numbers_take_one_line_each() -> None:
    """A picture of 32 times 32 numbers takes 32 lines; texts that look like lists stay as they are."""
    text = "[\n 1,\n 2\n]"
    odd = replace(WRONG, got=text, evidence={"numbers": [1, -2.5, 1e-300, None], "texts": ["1", "2"], "none": []})
    written = json.dumps([replace(FAULTY, findings=(odd,))])
    assert '"numbers": [1, -2.5, 1e-300, null],' in written
    read = json.from_json(written)[0].findings[0]
    assert (read.got, read.evidence) == (text, odd.evidence)


def test_whatever_a_name_holds_can_be_read_back() -> None:
    """Controls and halves of surrogate pairs are escapes of JSON, so the document is plain ASCII."""
    written = json.dumps([HOSTILE], remarks=HOSTILE_REMARKS)
    assert written.isascii()
    assert json.from_json(written) == [HOSTILE]
