"""Reports as plain text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pullback.finding import Outcome, Report, Status
from pullback.report import text
from pullback.report.remarks import Remarks
from tests.report.examples import CLEAN, FAULTY, HINT, HOSTILE, HOSTILE_REMARKS, REMARKS, REPORTS, UNLOADABLE, WRONG


def test_a_report_prints_itself() -> None:
    """``print(report)`` is the full text of that one report."""
    assert str(FAULTY) == text.full([FAULTY])


def test_everything_of_a_finding_is_there() -> None:
    """Code, severity, title, place, message, both values, remedy and code are all in the text."""
    written = text.full([FAULTY])
    flat = " ".join(written.split())
    assert "PB203 error: The gradient isn't forward's derivative" in flat
    for part in (WRONG.where, WRONG.message, WRONG.remedy):
        assert part in flat
    for line in (*WRONG.expected.splitlines(), *WRONG.got.splitlines(), *filter(None, WRONG.repro.splitlines())):
        assert f"  {line}\n" in written


@pytest.mark.parametrize("width", [1, 40, 50, 100])
def test_prose_keeps_to_the_width(width: int) -> None:
    """Prose is wrapped, down to 40 columns; code and matrices keep their lines, since a cut would change them."""
    code = {*WRONG.expected.splitlines(), *WRONG.got.splitlines(), *WRONG.repro.splitlines()}
    for line in text.full(REPORTS, remarks=REMARKS, width=width).splitlines():
        assert len(line) <= max(width, 40) or line.strip() in {part.strip() for part in code}


def test_an_empty_run_has_a_summary() -> None:
    """Without any report there is still one line that says so."""
    assert text.full([]) == "0 Functions: 0 clean, 0 with findings; no findings."


def test_hints_leave_a_function_clean() -> None:
    """A Function with hints alone counts as clean, and the hints are counted apart."""
    report = replace(FAULTY, findings=(HINT,))
    assert text.summary([report]) == "1 Function: 1 clean, 0 with findings; 1 hint."


def test_what_was_not_run_never_counts_as_clean() -> None:
    """A report whose probes were all skipped, or that has none, is not checked."""
    skipped = Report(function="F", outcomes={"values": Outcome(status=Status.SKIPPED, reason="no samples")})
    expected = "2 Functions: 0 clean, 0 with findings, 2 not checked; no findings."
    assert text.summary([skipped, Report(function="G")]) == expected
    assert "probes: none ran" in text.full([Report(function="G")])


def test_a_clean_function_takes_one_line() -> None:
    """Beside it stand its samples, what was refused and what could not be tried; not each probe that had no object."""
    assert text.full([CLEAN]).splitlines() == [
        "Square  ops.py:40: clean (probes: 2 passed, 2 skipped; 0.1 s)",
        "  samples:  1 inferred from the signature",
        "  notes:",
        "    - shapes: refused: an empty x (ValueError)",
        "  not tested:",
        "    - values: no reference is known",
        "    - third order",
        "  run it again with seed 7",
        "",
        "1 Function: 1 clean, 0 with findings; no findings.",
    ]


def test_what_is_untested_for_all_is_said_once() -> None:
    """For several Functions the common part stands at the end, and with each only what differs."""
    other = replace(CLEAN, function="Cube", untested=("third order",))
    written = text.full([CLEAN, other])
    assert written.count("third order") == written.count("seed 7") == 1
    first, second, end, _ = written.split("\n\n")
    assert first.endswith("  not tested:\n    - values: no reference is known")
    assert "not tested" not in second
    assert end == "not tested, for any of these Functions:\n  - third order\nrun it again with seed 7"


def test_different_seeds_stay_with_their_functions() -> None:
    """Where the seeds differ each Function has its own, and nothing common is claimed."""
    written = text.full([CLEAN, replace(CLEAN, seed=8, untested=())])
    assert "  run it again with seed 7\n" in written
    assert "  run it again with seed 8\n" in written
    assert "for any of these" not in written


def test_findings_set_aside_leave_no_function_clean() -> None:
    """A Function whose findings are known, or left out by a selection, is neither clean nor said to be."""
    report = replace(FAULTY, findings=())
    written = text.full([report], remarks=Remarks(left_out=2, set_aside=1))
    assert "clean (" not in written
    assert "probes: 1 passed, 2 failed (first_order, subsets), 3 skipped; 1.0 s" in written
    assert written.endswith(
        "\n\n1 Function: 0 clean, 0 with findings, 1 set aside; no findings; 2 findings left out by the selection\n"
        "of rules."
    )


def test_a_file_that_cant_be_loaded_is_no_function() -> None:
    """It is counted apart, since nobody knows what Functions it has."""
    assert text.summary([UNLOADABLE]) == (
        "0 Functions: 0 clean, 0 with findings; 1 target that can't be loaded; 1 error."
    )
    assert "probes: none ran" not in text.full([UNLOADABLE])


def test_concise_has_one_line_a_finding() -> None:
    """Line breaks in a message don't break the line."""
    report = replace(CLEAN, findings=(replace(WRONG, message="one\n  two", location=""),))
    first, _ = text.concise([report]).splitlines()
    assert first == "ops.py:40: PB203 error Scale: one two (argument x, sample 0)"


def test_concise_without_a_location() -> None:
    """A callable whose source is unknown is still named."""
    report = Report(function="f", findings=(replace(HINT, function="f", location="", where=""),))
    assert text.concise([report]).splitlines()[0] == "PB601 hint f: backward ran 3 operators for it"


def test_control_characters_of_a_message_are_seen_and_not_obeyed() -> None:
    """Whatever the checked code is called and says, a terminal gets text; and concise keeps a line a finding."""
    full = text.full([HOSTILE], remarks=HOSTILE_REMARKS)
    concise = text.concise([HOSTILE], remarks=HOSTILE_REMARKS)
    for written in (full, concise):
        assert not set(written) & set("\x00\x1b\r\ud800\u202e")
        assert "\\x00\\x1b[31m" in written
    assert len(concise.splitlines()) == 3  # a finding, an unexpected pass and the summary
    assert full.count("::error::%25") > 10


def test_code_with_control_characters_stays_code() -> None:
    """In the lines that show a fault an escape means the same in a string as the character does."""
    report = replace(FAULTY, findings=(replace(WRONG, repro='bell = "\x07"\nassert ord(bell) == 7'),))
    lines = text.full([report]).splitlines()
    place = lines.index("    to see it:")
    code = "\n".join(line.strip() for line in lines[place + 1 : place + 3])
    assert code == 'bell = "\\x07"\nassert ord(bell) == 7'
    exec(code)
