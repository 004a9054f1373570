"""The rulebook: codes are permanent and complete, and each of them is spoken of somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pullback
from pullback.rules import RULES, Severity, calls, gradients, saved, speed, surroundings, writes

SNAPSHOT = Path(__file__).parent / "rules.snapshot"
SOURCE = Path(pullback.__file__).parent

PARTS = {"PB1": calls, "PB2": gradients, "PB3": saved, "PB4": writes, "PB5": surroundings, "PB6": speed}

# Rules whose probe is still to come. A code leaves this set when something raises or finds it.
UNSPOKEN: frozenset[str] = frozenset()


def spoken(root: Path) -> set[str]:
    """Return the codes that code outside the rulebook speaks of, but for docstrings and comments."""
    found: set[str] = set()
    for path in root.rglob("*.py"):
        if root / "rules" not in path.parents:
            found |= set(re.findall(r"""["'](PB\d{3})["']""", path.read_text("utf-8")))
    return found


def snapshot() -> str:
    """Return the rulebook as the file beside this test has it: a code and its title a line."""
    return "".join(f"{code} {rule.title}\n" for code, rule in sorted(RULES.items()))


def test_the_rules_are_those_of_the_snapshot() -> None:
    """A code that goes, changes its meaning or comes in is seen in the snapshot's diff, where a reader judges it."""
    assert snapshot() == SNAPSHOT.read_text("utf-8")


def test_codes_are_unique_and_in_order() -> None:
    """No two rules share a code, and each part of the book is in the order of its codes."""
    codes = [rule.code for part in PARTS.values() for rule in part.RULES]
    assert codes == sorted({*codes}) == list(RULES)


@pytest.mark.parametrize("hundred", PARTS)
def test_a_code_says_its_theme(hundred: str) -> None:
    """The hundreds are themes: each part of the book holds one."""
    assert {rule.code[:3] for rule in PARTS[hundred].RULES} == {hundred}


@pytest.mark.parametrize("code", RULES)
def test_a_rule_is_whole(code: str) -> None:
    """Each rule has a code of the one form, a one-line title, a severity, a reason and a remedy, in whole sentences."""
    rule = RULES[code]
    assert re.fullmatch(r"PB[1-6]\d\d", rule.code)
    assert isinstance(rule.severity, Severity)
    assert rule.title
    assert "\n" not in rule.title
    assert not rule.title.endswith(".")
    for text in (rule.reason, rule.remedy):
        assert text == text.strip()
        assert text.endswith(".")
        assert "  " not in text


def test_titles_tell_rules_apart() -> None:
    """No two rules have one title."""
    assert len({rule.title for rule in RULES.values()}) == len(RULES)


def test_the_book_is_read_only() -> None:
    """Nothing can change a rule at run time."""
    with pytest.raises(TypeError, match="item assignment"):
        RULES["PB101"] = RULES["PB102"]
    with pytest.raises(AttributeError, match="can't set attribute"):
        RULES["PB101"].title = "Something else"


def test_every_rule_is_raised_or_found() -> None:
    """Each code is used outside the rulebook, or listed here as a probe to come, and no unknown code is used."""
    used = spoken(SOURCE)
    assert {*RULES} - used == UNSPOKEN
    assert used - {*RULES} == set()


def test_unspoken_rules_are_seen(tmp_path: Path) -> None:
    """Mentions in the rulebook itself, in comments and in docstrings don't count as uses."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "calls.py").write_text('Rule("PB101")')
    (tmp_path / "other.py").write_text('"""Raises PB102."""\n# PB103\nraise Fault("PB104")\n')
    assert spoken(tmp_path) == {"PB104"}
