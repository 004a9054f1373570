"""Reports as JUnit's XML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from pullback.finding import Finding, Outcome, Report, Status
from pullback.report.junit import document
from pullback.report.remarks import NO_REMARKS, Remarks
from pullback.rules import Severity
from tests.report.examples import CLEAN, FAULTY, HOSTILE, HOSTILE_REMARKS, REMARKS, REPORTS, UNLOADABLE, WRONG


def parsed(reports: Sequence[Report], remarks: Remarks = NO_REMARKS) -> ElementTree.Element:
    """The document as any reader of XML gets it."""
    return ElementTree.fromstring(document(reports, remarks=remarks).encode("utf-8"))


def cases(reports: Sequence[Report], remarks: Remarks = NO_REMARKS) -> dict[str, tuple[str, str]]:
    """Name of a case -> how it ended, and why."""
    found = {}
    for case in parsed(reports, remarks).iter("testcase"):
        ends = [child for child in case if child.tag != "system-out"]
        assert len(ends) <= 1
        found[str(case.get("name"))] = (ends[0].tag, str(ends[0].get("message"))) if ends else ("passed", "")
    return found


def test_each_probe_of_each_function_is_a_case() -> None:
    """A suite a Function; a case a probe, with its file, so that a service can tell Functions of one name apart."""
    suites = list(parsed([FAULTY, CLEAN]))
    assert [suite.get("name") for suite in suites] == ["Scale", "Square"]
    names = [case.get("name") for case in suites[0].iter("testcase")]
    assert names == list(FAULTY.outcomes)
    case = next(suites[0].iter("testcase"))
    assert (case.get("classname"), case.get("file")) == ("ops.Scale", "ops.py")
    moved = next(parsed([replace(FAULTY, location="package/sub/ops.py:3")]).iter("testcase"))
    assert moved.get("classname") == "package.sub.ops.Scale"
    away = next(parsed([replace(FAULTY, location="/nowhere/at/all/ops.py:3")]).iter("testcase"))
    assert away.get("classname") == "ops.Scale"


def test_how_each_case_ended() -> None:
    """Failed, passed, skipped with its reason; a hint leaves a case passed."""
    found = cases([FAULTY])
    assert found["first_order"][0] == "failure"
    assert found["first_order"][1].startswith("PB203 backward's gradient for x differs")
    assert found["values"] == ("skipped", "no reference")
    assert found["layouts"] == found["subsets"] == ("passed", "")


def test_a_failure_has_all_of_the_finding() -> None:
    """Rule, place, both values, remedy and the lines that show it, as the full text has them."""
    (failure,) = parsed([FAULTY]).iter("failure")
    assert failure.get("type") == "PB203"
    text = str(failure.text)
    for line in (*WRONG.expected.splitlines(), *WRONG.got.splitlines(), *WRONG.repro.splitlines()):
        assert line in text
    assert WRONG.where in text


def test_the_numbers_add_up() -> None:
    """The counts of the root are those of the suites, which are those of their cases."""
    root = parsed(REPORTS, REMARKS)
    for element in (root, *root.findall("testsuite")):
        assert int(element.get("tests", "")) == len(list(element.iter("testcase")))
        for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.get(key, "")) == len(list(element.iter(tag)))
        total = sum(float(case.get("time", "")) for case in element.iter("testcase"))
        assert float(element.get("time", "")) == pytest.approx(total)


def test_what_cant_be_loaded_is_an_error() -> None:
    """Not a failure: nobody knows what is in the file."""
    assert cases([UNLOADABLE])["import"][0] == "error"


@pytest.mark.parametrize("rule", ["PB121", "PB123", "PB124"])
def test_what_could_not_be_checked_is_an_error(rule: str) -> None:
    """A probe that hangs or crashes, and samples that can't be used, before any probe too."""
    hung = Finding(rule=rule, function="F", where="", message="did not end", probe="leaks")
    report = Report(function="F", findings=(hung,), outcomes={"leaks": Outcome(status=Status.FAILED)})
    assert cases([report]) == {"leaks": ("error", f"{rule} did not end")}
    early = Report(function="F", findings=(replace(hung, probe="samples"),))
    assert cases([early]) == {"samples": ("error", f"{rule} did not end")}
    assert cases([replace(early, findings=(replace(hung, probe=""),))]) == {"check": ("error", f"{rule} did not end")}


def test_a_known_failure_is_skipped_with_its_reason() -> None:
    """It doesn't fail the run, so its case doesn't fail; and it doesn't pass."""
    report = replace(FAULTY, findings=())
    remarks = Remarks(known=((WRONG, "waits for the kernel"),), set_aside=1)
    found = cases([report], remarks)
    assert found["first_order"] == ("skipped", "known failure PB203: waits for the kernel")
    assert found["subsets"][0] == "skipped"
    assert "left out by a selection of rules" in found["subsets"][1]
    loaded = cases([replace(UNLOADABLE, findings=())], Remarks(known=((UNLOADABLE.findings[0], "to be written"),)))
    assert loaded == {"check": ("skipped", "no probe ran; to be written")}


def test_a_probe_whose_finding_has_another_cause_fails_with_it() -> None:
    """One cause gives one finding; the other probes that saw it say which one it was."""
    outcomes = {**FAULTY.outcomes, "layouts": Outcome(status=Status.FAILED)}
    kind, message = cases([replace(FAULTY, outcomes=outcomes)])["layouts"]
    assert kind == "failure"
    assert "follows from PB203 (first_order), PB601 (subsets)" in message


def test_warnings_fail_a_case_unless_only_errors_fail_the_run() -> None:
    """The document agrees with the exit code."""
    mild = replace(FAULTY, findings=(replace(WRONG, severity=Severity.WARNING),))
    assert cases([mild])["first_order"][0] == "failure"
    assert cases([mild], Remarks(fail_on=Severity.ERROR))["first_order"][0] == "passed"
    assert cases([FAULTY], Remarks(fail_on=Severity.ERROR))["first_order"][0] == "failure"


def test_unexpected_passes_fail_and_what_was_left_out_is_skipped() -> None:
    """Both have cases of their own, since they belong to no probe."""
    found = cases([CLEAN], REMARKS)
    assert found[REMARKS.unexpected[0]][0] == "failure"
    assert found[REMARKS.skipped[0]] == ("skipped", REMARKS.skipped[0])


def test_nothing_that_did_not_run_passes() -> None:
    """A report without a probe has one case, which is skipped."""
    assert cases([Report(function="F")]) == {"check": ("skipped", "no probe ran")}


def test_any_name_gives_xml_that_can_be_read() -> None:
    """Controls, which XML can't hold even as references, are escapes; markup in names stays text."""
    root = parsed([HOSTILE], HOSTILE_REMARKS)
    suite = root[0]
    assert str(suite.get("name")).startswith("<script>alert('a')</script>]]>\\x00\\x1b[31m ::error::")
    (failure,) = suite.iter("failure")
    assert "\\ud800" in str(failure.text)
    known = {"testsuites", "testsuite", "properties", "property", "testcase", "failure", "skipped", "system-out"}
    assert {element.tag for element in root.iter()} == known


def test_a_location_without_a_files_name_leaves_the_function() -> None:
    """A report of another writer may name a folder, or nothing."""
    for location in (".:1", "", "<stdin>:3"):
        case = next(parsed([replace(CLEAN, location=location)]).iter("testcase"))
        assert case.get("classname") == "Square"
