"""Reports in every format from one run, on standard output and in files."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pullback.report.json import from_json
from pullback.report.names import FORMATS, SUFFIXES
from tests.cli.conftest import BAD, GOOD, Pullback
from tests.cli.test_known_failures import listed

HANGS = "import time\nclass Hangs:\n    probes = {'third': lambda: time.sleep(60)}\n"
EVERYTHING = (
    GOOD,
    BAD,
    HANGS,
    "class Base:\n    probes = None\n",
    "class Warns:\n    probes = {'first': lambda: ['PB304']}\n",
)


def ends(document: str) -> dict[tuple[str, str], str]:
    """(class, case) -> how it ended in a document of JUnit."""
    cases = ElementTree.fromstring(document.encode()).iter("testcase")
    return {
        (str(case.get("classname")), str(case.get("name"))): next(
            (child.tag for child in case if child.tag != "system-out"), "passed"
        )
        for case in cases
    }


def test_a_run_of_everything_comes_out_in_every_format(pullback: Pullback, folder: Path) -> None:
    """Clean and faulty Functions, a hang, an import that raises, an abstract class and a known failure."""
    listed(folder)
    files = ["out.txt", "out.json", "deep/er/out.xml", "out.sarif", "out.html"]
    asked = [part for file in files for part in ("--output-file", file)]
    options = ("--known-failures", "known.toml", "--timeout", "1", "--output-format", "github", *asked)
    ran = pullback("check", "ops.py", "broken.py", *options, ops="".join(EVERYTHING), broken="raise ValueError\n")
    assert ran.code == 1
    assert ran.err == ""
    kinds = [line.partition(" ")[0] for line in ran.out.splitlines()]
    assert kinds == ["::error", "::error", "::warning", "::notice"]
    assert "known failure: Bad PB203 (waits for the new kernel)" in ran.out

    cases = ends((folder / "deep/er/out.xml").read_text("utf-8"))
    assert cases["ops.Good", "first"] == "passed"
    assert cases["ops.Bad", "second"] == "skipped"
    assert cases["ops.Hangs", "third"] == "error"
    assert cases["ops.Warns", "first"] == "failure"
    assert cases["broken.py", "import"] == "error"
    assert cases["pullback", "Base has no forward"] == "skipped"

    (run,) = json.loads((folder / "out.sarif").read_text("utf-8"))["runs"]
    assert sorted(result["ruleId"] for result in run["results"]) == ["PB120", "PB124", "PB203", "PB304"]
    assert [r["ruleId"] for r in run["results"] if r["suppressions"]] == ["PB203"]
    told = run["invocations"][0]["toolExecutionNotifications"]
    assert [note["level"] for note in told] == ["error", "error", "note"]
    assert run["invocations"][0]["executionSuccessful"] is False

    assert [report.function for report in from_json((folder / "out.json").read_text("utf-8"))] == [
        "Good",
        "Bad",
        "Hangs",
        "Warns",
        "broken.py",
    ]
    page = (folder / "out.html").read_text("utf-8")
    summary = "4 Functions: 1 clean, 2 with findings, 1 set aside; 1 target that can't be loaded; "
    assert summary.replace("'", "&#x27;") in page
    assert summary in " ".join((folder / "out.txt").read_text("utf-8").split())


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_goes_to_standard_output(name: str, pullback: Pullback) -> None:
    """And the exit code is that of the findings."""
    ran = pullback("check", "ops.py", "--output-format", name, ops=GOOD + BAD)
    assert ran.code == 1
    assert "PB203" in ran.out
    assert pullback("check", "ops.py:Good", "--output-format", name).code == 0


def test_a_file_leaves_standard_output_as_it_is(pullback: Pullback, folder: Path) -> None:
    """People read the log, machines the file."""
    plain = pullback("check", "ops.py", ops=BAD)
    ran = pullback("check", "ops.py", "--output-file", "out.sarif")
    assert (ran.code, ran.out, ran.err) == (plain.code, plain.out, plain.err)
    assert (folder / "out.sarif").read_text("utf-8").endswith("}\n")


def test_configured_files_lie_beside_the_configuration(pullback: Pullback, folder: Path) -> None:
    """Wherever the run is started; a file given on the command line replaces them."""
    (folder / "pyproject.toml").write_text('[tool.pullback.check]\noutput-file = ["out.xml"]\n')
    (folder / "inner").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "inner")
        assert pullback("check", "../ops.py", ops=GOOD).code == 0
    assert ends((folder / "out.xml").read_text("utf-8"))["ops.Good", "first"] == "passed"
    (folder / "out.xml").unlink()
    assert pullback("check", "ops.py", "--output-file", "other.json").code == 0
    assert not (folder / "out.xml").exists()
    assert (folder / "other.json").exists()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("report", "output-file: the name of report doesn't say its format; it has to end in one of .txt (full)"),
        ("report.pdf", "the name of report.pdf doesn't say its format"),
        ("folder.json", "output-file: folder.json is a folder"),
        ("", "--output-file is empty"),
    ],
)
def test_a_file_that_cant_be_meant_ends_the_run_before_it_begins(
    file: str, message: str, pullback: Pullback, folder: Path
) -> None:
    """Nobody waits for a check whose report then can't be written."""
    (folder / "folder.json").mkdir()
    ran = pullback("check", "ops.py", "--output-file", file, ops="raise SystemExit('was imported')\n")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize("through", ["known.json", "./inner/../known.json", "link.json"])
def test_no_report_replaces_the_known_failures(through: str, pullback: Pullback, folder: Path) -> None:
    """By whatever path it would: the reasons in them were written by people."""
    listed(folder)
    kept = (folder / "known.toml").rename(folder / "known.json").read_text()
    (folder / "inner").mkdir()
    (folder / "link.json").symlink_to("known.json")
    ran = pullback("check", "ops.py", "--output-file", through, "--known-failures", "known.json", ops=BAD)
    assert (ran.code, ran.out) == (2, "")
    assert f"output-file: {through} is the file of known failures, which a report would replace" in ran.err
    assert (folder / "known.json").read_text() == kept


def test_one_file_may_be_given_twice(pullback: Pullback, folder: Path) -> None:
    """It is written with what it would have had once, whatever was in it."""
    (folder / "out.json").write_text("what an earlier run left" * 10_000)
    ran = pullback("check", "ops.py", "--output-file", "out.json", "--output-file", "./out.json", ops=GOOD)
    assert ran.code == 0
    assert [report.function for report in from_json((folder / "out.json").read_text("utf-8"))] == ["Good"]


def test_what_the_checked_code_says_reaches_no_terminal_as_it_is(pullback: Pullback) -> None:
    """Neither in the report nor in what is said of a run that can't be."""
    source = "raise ValueError('\\x1b[31m\\x07\\x00')\n"
    for output_format in ("full", "concise"):
        ran = pullback("check", "ops.py", "--output-format", output_format, ops=source)
        assert "ValueError: \\x1b[31m\\x07\\x00" in ran.out
        assert not set(ran.out) & set("\x1b\x07\x00")
    ran = pullback("check", "\x1b[31m.py")
    assert (ran.code, ran.err) == (2, "pullback: \\x1b[31m.py: no such file\n")


def test_a_file_that_cant_be_written_is_said_before_anything_runs(pullback: Pullback, folder: Path) -> None:
    """A check may take minutes, and its report would be lost; no file is left behind."""
    (folder / "taken").write_text("a file, and no folder")
    files = ("--output-file", "taken/out.json", "--output-file", "out.json")
    ran = pullback("check", "ops.py", *files, ops=f"open('ran', 'w')\n{GOOD}")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("pullback: can't write taken/out.json: ")
    assert not (folder / "ran").exists()
    assert not (folder / "out.json").exists()


def test_a_file_that_cant_be_written_any_more_costs_no_report(pullback: Pullback, folder: Path) -> None:
    """Its folder is gone when it is due: the other files are written, the text is shown, and the exit code is 2."""
    gone = "import os\nos.rmdir('made')\nopen('made', 'w')\n"
    files = ("--output-file", "made/out.json", "--output-file", "out.json")
    ran = pullback("check", "ops.py", *files, ops=f"{gone}{GOOD}")
    assert ran.code == 2
    assert "1 Function: 1 clean" in ran.out
    assert "pullback: can't write made/out.json: " in ran.err
    assert (folder / "out.json").exists()


def test_the_document_agrees_with_the_exit_code(pullback: Pullback) -> None:
    """With ``--fail-on error`` a warning fails neither."""
    source = "class Warns:\n    probes = {'first': lambda: ['PB304']}\n"
    assert (
        ends(pullback("check", "ops.py", "--output-format", "junit", ops=source).out)["ops.Warns", "first"] == "failure"
    )
    ran = pullback("check", "ops.py", "--output-format", "junit", "--fail-on", "error")
    assert ran.code == 0
    assert ends(ran.out)["ops.Warns", "first"] == "passed"


def test_text_that_no_encoding_has_can_be_written(pullback: Pullback, folder: Path) -> None:
    """The message of an import that raises may hold anything; each file is UTF-8."""
    source = "raise ValueError('\\ud800 \\x00 \\x1b[31m <b>')\n"
    files = [part for end in ("txt", "json", "xml", "sarif", "html") for part in ("--output-file", f"out.{end}")]
    ran = pullback("check", "ops.py", *files, ops=source)
    assert ran.code == 1
    for path in folder.glob("out.*"):
        assert "ValueError" in path.read_text("utf-8")


def test_the_help_names_every_format_and_end(pullback: Pullback) -> None:
    """What can be asked for is found without the documentation."""
    text = " ".join(pullback("check", "--help").out.split())
    for name in (*FORMATS, *SUFFIXES):
        assert name.removesuffix(".sarif.json") in text
