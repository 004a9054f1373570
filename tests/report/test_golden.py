"""What each writer writes, word for word, beside files that a person has read and found right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pullback.report import json, text
from tests.report.examples import REMARKS, REPORTS

GOLDEN = Path(__file__).parent / "golden"
WRITERS: dict[str, Callable[[], str]] = {
    "full.txt": lambda: text.full(REPORTS, remarks=REMARKS),
    "narrow.txt": lambda: text.full(REPORTS, remarks=REMARKS, width=50),
    "concise.txt": lambda: text.concise(REPORTS, remarks=REMARKS),
    "report.json": lambda: json.dumps(REPORTS, remarks=REMARKS),
}


@pytest.mark.parametrize("name", WRITERS)
def test_written_as_in_the_golden_file(name: str) -> None:
    """The text of a report changes only on purpose: then the golden file changes with it."""
    assert WRITERS[name]() + "\n" == (GOLDEN / name).read_text(encoding="utf-8")


def test_every_golden_file_is_compared() -> None:
    """No golden file is left behind."""
    assert {path.name for path in GOLDEN.iterdir()} == set(WRITERS)
