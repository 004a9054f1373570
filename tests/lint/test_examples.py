"""Each rule that the linter knows has an example of what is wrong, and one of what is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pullback
from pullback.lint.run import lint_text
from tests.lint.helper import expected, found

HERE = Path(__file__).parent / "examples"
CODES = sorted(path.name for path in HERE.iterdir() if path.is_dir())
LINT = Path(pullback.__file__).parent / "lint"


def example(code: str, name: str) -> str:
    """The text of an example."""
    return (HERE / code / f"{name}.py").read_text("utf-8")


def test_every_rule_of_the_linter_has_examples() -> None:
    """The codes that the linter's sources speak of are those that have a folder of examples."""
    sources = [path.read_text("utf-8") for path in LINT.rglob("*.py")]
    assert sorted({code for text in sources for code in re.findall(r'"(PB\d{3})"', text)}) == CODES


@pytest.mark.parametrize("code", CODES)
def test_the_wrong_one_is_found_on_its_line(code: str) -> None:
    """Its rule is found on the line that is marked, and nothing else is; hints where the rule is one."""
    text = example(code, "wrong")
    assert {mark.split()[1] for mark in expected(text)} == {code}
    assert {*found(text, hints=not found(text))} == {*expected(text)}


@pytest.mark.parametrize("code", CODES)
def test_the_right_one_is_clean(code: str) -> None:
    """Not even a hint, of one Function at least."""
    text = example(code, "right")
    assert found(text, hints=True) == []
    assert lint_text(text).reports
