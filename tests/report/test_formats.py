"""The formats by name, what a file's name asks for, and what comes out of checked code in each of them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from pullback.report import formats, names
from pullback.report.characters import flat, visible
from tests.report.examples import FAULTY, HOSTILE, HOSTILE_REMARKS, NASTY, REPORTS


@pytest.mark.parametrize("name", names.FORMATS)
def test_a_report_renders_itself_in_every_format(name: str) -> None:
    """``report.render("html")`` is what the command line writes for that one report."""
    assert FAULTY.render(name) == formats.write([FAULTY], name)


def test_a_report_renders_itself_in_full_by_default() -> None:
    """``str(report)`` is ``report.render()``."""
    assert str(FAULTY) == FAULTY.render() == FAULTY.render("full")


def test_an_unknown_format_is_an_error_that_names_the_others() -> None:
    """A misspelt format says what there is."""
    for name in ("xml", "FULL", "", None, ["full"]):
        expected = (
            f"there is no report format {name!r}; the formats are full, concise, json, junit, github, sarif, html"
        )
        with pytest.raises(ValueError, match=re.escape(expected)):
            FAULTY.render(name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("out.txt", "full"),
        ("out.json", "json"),
        ("out.xml", "junit"),
        ("out.sarif", "sarif"),
        ("out.sarif.json", "sarif"),
        ("OUT.HTML", "html"),
    ],
)
def test_a_files_name_says_its_format(path: str, name: str) -> None:
    """By its end, in either case of letters."""
    assert names.format_of(path) == name


@pytest.mark.parametrize("path", ["report", "html", "report.pdf", "report.html.gz"])
def test_a_name_that_says_no_format_is_an_error(path: str) -> None:
    """And it says which ends are known."""
    with pytest.raises(ValueError, match=r"doesn't say its format; it has to end in one of \.txt \(full\), \.sarif"):
        names.format_of(path)


def test_writing_reports_needs_no_torch() -> None:
    """A service that only renders reports doesn't load it."""
    code = (
        "import sys; from pullback.finding import Report; from pullback.report.names import FORMATS\n"
        "texts = [Report(function='f').render(name) for name in FORMATS]\n"
        "assert all(texts) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", ["full", "concise", "junit", "github", "sarif", "html"])
def test_what_no_encoding_has_is_written_as_an_escape(name: str) -> None:
    """Halves of surrogate pairs, NUL, colours and marks of direction are seen as escapes."""
    text = formats.write([HOSTILE], name, remarks=HOSTILE_REMARKS)
    text.encode("utf-8")
    assert not set(text) & set("\x00\x1b\r\ud800\u202e")
    doubled = "\\" if name == "sarif" else ""  # JSON escapes the backslash once more
    for escape in ("\\x00", "\\x1b", "\\ud800", "\\u202e"):
        assert doubled + escape in text


def test_the_largest_run_is_written_in_one_pass() -> None:
    """No writer changes what it writes: twice gives the same."""
    for name in names.FORMATS:
        assert formats.write(REPORTS, name) == formats.write(REPORTS, name)


def test_visible_text_keeps_its_lines() -> None:
    """Ends of lines of each kind are line feeds; a lone carriage return, which overwrites a line, is an escape."""
    assert visible("a\r\nb\n\tc\rd") == "a\nb\n\tc\\x0dd"
    assert visible("ünïcode 🙂 中") == "ünïcode 🙂 中"
    assert flat(NASTY) == (
        "<script>alert('a')</script>]]>\\x00\\x1b[31m ::error::%25,\\ud800\\u202e&\"--><!-- ##[error]"
    )
