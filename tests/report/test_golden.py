"""What each writer writes, word for word, beside files that a person has read and found right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import pullback
from pullback.report.formats import write
from pullback.report.names import FORMATS
from tests.report.examples import REMARKS, REPORTS

GOLDEN = Path(__file__).parent / "golden"


def written(name: str, width: int = 100) -> str:
    """The examples in one format; the version of pullback is left out, since a release changes no report."""
    text = write(REPORTS, name, remarks=REMARKS, width=width)
    return text.replace(f'"version": "{pullback.__version__}"', '"version": "VERSION"')


WRITERS: dict[str, Callable[[], str]] = {
    "full.txt": lambda: written("full"),
    "narrow.txt": lambda: written("full", width=50),
    "concise.txt": lambda: written("concise"),
    "report.json": lambda: written("json"),
    "junit.xml": lambda: written("junit"),
    "github.txt": lambda: written("github"),
    "report.sarif": lambda: written("sarif"),
    "report.html": lambda: written("html"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_written_as_in_the_golden_file(name: str) -> None:
    """The text of a report changes only on purpose: then the golden file changes with it."""
    assert WRITERS[name]() + "\n" == (GOLDEN / name).read_text(encoding="utf-8")


def test_every_golden_file_is_compared() -> None:
    """No golden file is left behind."""
    assert {path.name for path in GOLDEN.iterdir()} == set(WRITERS)


def test_every_format_has_a_golden_file() -> None:
    """A format that is added is written down, too."""
    texts = {WRITERS[name]() for name in WRITERS}
    assert {written(name) for name in FORMATS} <= texts
