"""Reports as workflow commands of GitHub Actions."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pullback.finding import Report
from pullback.report.github import commands
from pullback.report.remarks import Remarks
from pullback.rules import Severity
from tests.report.examples import CLEAN, FAULTY, HINT, HOSTILE, HOSTILE_REMARKS, NASTY, REMARKS, WRONG


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """A command as the runner reads it: kind, properties, message."""
    match = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line)
    assert match is not None, line
    properties = dict(part.split("=", 1) for part in match[2].split(","))
    codes = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}

    def decode(text: str) -> str:
        return re.sub("%(0D|0A|3A|2C|25)", lambda found: codes[found[0]], text)

    return match[1], {name: decode(value) for name, value in properties.items()}, decode(match[3])


def test_a_finding_is_an_annotation_on_its_line() -> None:
    """The class's file and line, the rule and its title, and all that a person needs to act on."""
    kind, properties, message = parsed(commands([FAULTY]).splitlines()[0])
    assert kind == "error"
    title = "PB203 Scale: The gradient isn't forward's derivative"
    assert properties == {"file": "ops.py", "line": "12", "title": title}
    for text in (WRONG.message, WRONG.where, WRONG.expected, WRONG.got, WRONG.remedy):
        assert text in message


def test_a_comment_that_hides_nothing_is_annotated_where_it_stands() -> None:
    """It says its file and line itself; what says none has none."""
    remarks = Remarks(unexpected=("ops.py:12: ignore[PB403] hides nothing", "ops.py:Cube PB304 was not found (later)"))
    first, second = (parsed(line) for line in commands([CLEAN], remarks=remarks).splitlines()[:2])
    assert first[1] == {"file": "ops.py", "line": "12", "title": "pullback: unexpected pass"}
    assert second[1] == {"title": "pullback: unexpected pass"}


@pytest.mark.parametrize(
    ("severity", "kind"), [(Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.HINT, "notice")]
)
def test_the_severity_is_the_kind_of_annotation(severity: Severity, kind: str) -> None:
    """Error, warning, and notice for a hint."""
    report = replace(FAULTY, findings=(replace(WRONG, severity=severity),))
    assert parsed(commands([report]).splitlines()[0])[0] == kind


def test_the_worst_come_first() -> None:
    """GitHub shows only the first annotations of a step."""
    hinted = replace(CLEAN, findings=(HINT,))
    kinds = [parsed(line)[0] for line in commands([hinted, FAULTY]).splitlines()]
    assert kinds == ["error", "notice", "notice", "notice"]


def test_the_end_says_how_the_run_went() -> None:
    """A notice with the summary, the known failures and what was skipped; an unexpected pass is an error."""
    *_, unexpected, end = (parsed(line) for line in commands([CLEAN], remarks=REMARKS).splitlines())
    assert unexpected[0] == "error"
    assert unexpected[2] == "Cube PB304 was not found (kept for a later release)"
    assert end[0] == "notice"
    summary, *rest = end[2].splitlines()
    assert "1 known failure; 1 unexpected pass" in summary
    assert rest == [
        "known failure: Cube PB205 (waits for the second kernel)",
        "skipped: Base (ops.py:3) has no forward: it is abstract, and was not checked",
    ]


def test_without_a_file_no_line_is_claimed() -> None:
    """A callable whose source is unknown is annotated without a place."""
    report = Report(function="f", findings=(replace(HINT, location=""),))
    assert "file" not in parsed(commands([report]).splitlines()[0])[1]
    report = Report(function="f", findings=(replace(HINT, location="<string>:3"),))
    assert "file" not in parsed(commands([report]).splitlines()[0])[1]


def test_a_probe_that_died_is_annotated_where_it_died() -> None:
    """The frame of the checked file that a broken process was in counts, rather than the class's first line."""
    died = replace(
        WRONG, rule="PB124", where="ops.py:33 in backward, called from ops.py:12 in f", location="/x/ops.py:9"
    )
    kind, properties, _ = parsed(commands([replace(FAULTY, findings=(died,))]).splitlines()[0])
    assert (kind, properties["file"], properties["line"]) == ("error", "/x/ops.py", "33")


def test_nothing_from_the_checked_code_is_a_command_of_its_own() -> None:
    """Each line is one of our commands, whatever names and messages hold; percent signs come back as they were."""
    lines = commands([HOSTILE], remarks=HOSTILE_REMARKS).splitlines()
    assert len(lines) == 3
    kinds = [parsed(line)[0] for line in lines]
    assert kinds == ["error", "error", "notice"]
    _, properties, message = parsed(lines[0])
    assert set(properties) == {"file", "line", "title"}
    assert properties["line"] == "12"
    assert "::error::%25,\\ud800" in message
    assert NASTY.splitlines()[0].startswith("<script>")
