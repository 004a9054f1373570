"""Reports as SARIF 2.1.0."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from jsonschema import Draft4Validator

from pullback.finding import Finding, Report
from pullback.report.remarks import NO_REMARKS, Remarks
from pullback.report.sarif import FINGERPRINT, log
from pullback.rules import RULES, Severity
from tests.report.examples import CLEAN, FAULTY, HOSTILE, HOSTILE_REMARKS, NASTY, REMARKS, REPORTS, UNLOADABLE, WRONG

SCHEMA = json.loads((Path(__file__).parent / "sarif-2.1.0-rtm.5.json").read_text("utf-8"))
VALIDATOR = Draft4Validator(SCHEMA)


def run_of(reports: Sequence[Report], remarks: Remarks = NO_REMARKS) -> dict[str, Any]:
    """The one run of a log, which keeps to the schema."""
    document = json.loads(log(reports, remarks=remarks))
    faults = [f"{list(fault.absolute_path)}: {fault.message}" for fault in VALIDATOR.iter_errors(document)]
    assert faults == []
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    return run


def test_the_schema_is_one_and_can_fail() -> None:
    """The file of the schema is a schema itself, and refuses what isn't SARIF."""
    Draft4Validator.check_schema(SCHEMA)
    assert not VALIDATOR.is_valid({"version": "2.1.0", "runs": [{"tool": {"driver": {}}}]})
    assert not VALIDATOR.is_valid({"version": "2.2.0", "runs": []})


@pytest.mark.parametrize(
    ("reports", "remarks"),
    [
        ((), NO_REMARKS),
        ((CLEAN,), NO_REMARKS),
        ((FAULTY,), NO_REMARKS),
        ((UNLOADABLE,), NO_REMARKS),
        ((Report(function="F"),), NO_REMARKS),
        (REPORTS, REMARKS),
        ((HOSTILE,), HOSTILE_REMARKS),
    ],
)
def test_every_log_keeps_to_the_schema(reports: Sequence[Report], remarks: Remarks) -> None:
    """Clean or not, empty or hostile: what is written is valid SARIF 2.1.0."""
    run_of(reports, remarks)


@pytest.mark.parametrize("code", RULES)
def test_every_rule_can_be_described(code: str) -> None:
    """Title, reason and remedy of the rulebook are in the log, with the level of the rule's severity."""
    finding = Finding(rule=code, function="F", where="", message="wrong")
    (rule,) = run_of([Report(function="F", findings=(finding,))])["tool"]["driver"]["rules"]
    book = RULES[code]
    assert (rule["id"], rule["shortDescription"]["text"]) == (code, book.title)
    assert rule["fullDescription"]["text"] == book.reason
    assert book.reason in rule["help"]["text"]
    assert book.remedy in rule["help"]["text"]
    levels = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.HINT: "note"}
    assert rule["defaultConfiguration"]["level"] == levels[book.severity]
    assert "http" not in json.dumps(rule)


def test_a_finding_is_a_result_on_its_line() -> None:
    """Rule, level, message with both values and the remedy, file from the root, line, and the Function's name."""
    run = run_of([FAULTY])
    first, second = run["results"]
    assert (first["ruleId"], first["level"], second["level"]) == ("PB203", "error", "note")
    rules = run["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == ["PB203", "PB601"]
    (location,) = first["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "ops.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 12},
    }
    assert location["logicalLocations"] == [{"fullyQualifiedName": "Scale"}]
    for text in (WRONG.message, WRONG.where, WRONG.expected, WRONG.got, WRONG.remedy):
        assert text in first["message"]["text"]
    assert first["properties"]["repro"] == WRONG.repro
    assert first["properties"]["evidence"]["error_map"]["values"] == [[0.0, 0.0], [1.5, None]]


def test_a_file_elsewhere_has_a_whole_uri(tmp_path: Path) -> None:
    """With percent codes for what a URI can't hold, so that it leads back to the file."""
    odd = tmp_path / "with space" / "ünïcode#?.py"
    report = replace(FAULTY, findings=(replace(WRONG, location=f"{odd}:7"),))
    (result,) = run_of([report])["results"]
    (location,) = result["locations"]
    file = location["physicalLocation"]["artifactLocation"]
    assert "uriBaseId" not in file
    assert file["uri"].isascii()
    parts = urlsplit(file["uri"])
    assert (parts.scheme, parts.query, parts.fragment) == ("file", "", "")
    assert Path(unquote(parts.path)) == odd.resolve()


def test_without_a_file_the_function_is_the_place() -> None:
    """A callable whose source is unknown has its name alone."""
    report = Report(function="f", findings=(replace(WRONG, function="f", location=""),))
    assert run_of([report])["results"][0]["locations"] == [{"logicalLocations": [{"fullyQualifiedName": "f"}]}]


def test_fingerprints_are_there_and_differ() -> None:
    """Each result has one, and the next run gives it again wherever the class has moved."""
    prints = [result["partialFingerprints"][FINGERPRINT] for result in run_of(REPORTS, REMARKS)["results"]]
    assert len({*prints}) == len(prints) == 4
    moved = replace(FAULTY, seed=9, findings=tuple(replace(f, location="ops.py:77") for f in FAULTY.findings))
    again = [result["partialFingerprints"][FINGERPRINT] for result in run_of([moved])["results"]]
    assert again == prints[:2]


def test_a_known_failure_is_suppressed_with_its_reason() -> None:
    """And every other result says that it isn't, as the standard asks for then."""
    results = run_of(REPORTS, REMARKS)["results"]
    *others, known = (result["suppressions"] for result in results)
    assert known == [{"kind": "external", "status": "accepted", "justification": "waits for the second kernel"}]
    assert others == [[]] * 3
    assert all("suppressions" not in result for result in run_of([FAULTY])["results"])


def test_what_could_not_be_checked_is_a_notification_too() -> None:
    """The run isn't successful then; where it is a known failure, it is."""
    run = run_of([UNLOADABLE])
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (told,) = invocation["toolExecutionNotifications"]
    assert (told["level"], told["associatedRule"]["id"]) == ("error", "PB120")
    assert told["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}
    assert [result["ruleId"] for result in run["results"]] == ["PB120"]
    known = Remarks(known=((UNLOADABLE.findings[0], "to be written"),))
    assert run_of([replace(UNLOADABLE, findings=())], known)["invocations"][0]["executionSuccessful"] is True
    assert run_of([FAULTY])["invocations"][0]["executionSuccessful"] is True


def test_what_the_run_has_to_say_is_told() -> None:
    """What was left unchecked on purpose is a note; a known failure that didn't fail is a fault of configuration."""
    (invocation,) = run_of([CLEAN], REMARKS)["invocations"]
    skipped = invocation["toolExecutionNotifications"][-1]
    assert (skipped["level"], skipped["message"]["text"]) == ("note", f"skipped: {REMARKS.skipped[0]}")
    (stale,) = invocation["toolConfigurationNotifications"]
    assert (stale["level"], stale["message"]["text"]) == ("error", f"unexpected pass: {REMARKS.unexpected[0]}")


def test_the_log_says_what_its_silence_means() -> None:
    """Each Function's probes, with reasons for those that were skipped, its samples and its seed."""
    (function,) = run_of([CLEAN])["properties"]["functions"]
    assert function == {
        "name": "Square",
        "samples": "1 inferred from the signature",
        "seed": 7,
        "passed": ["first_order", "shapes"],
        "failed": [],
        "skipped": {"values": "no reference is known", "outputs": "there is only one output"},
        "notTested": ["values: no reference is known", "third order"],
    }


def test_no_unfit_character_is_left_anywhere() -> None:
    """Not even as an escape of JSON, which a reader would turn back into the character."""
    document = log([HOSTILE], remarks=HOSTILE_REMARKS)
    assert not re.search(r"\\u(00[01]|d8|202e)", document.replace(r"\\u", ""))
    result = run_of([HOSTILE], HOSTILE_REMARKS)["results"][0]
    assert "\\x1b[31m\n::error::" in result["message"]["text"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri.isascii()
    assert unquote(uri, errors="surrogatepass") == f"ops/{NASTY}.py"


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("C:\\a b\\ops.py:12", "file:///C:/a%20b/ops.py"),
        ("\\\\server\\share\\ops.py:12", "file://server/share/ops.py"),
        ("a:b.py:12", "a%3Ab.py"),
    ],
)
def test_drives_and_servers_are_addresses_of_files(location: str, uri: str) -> None:
    """A drive keeps its colon, which a name in the working directory must not have: it would read as a scheme."""
    (result,) = run_of([replace(FAULTY, findings=(replace(WRONG, location=location),))])["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri
