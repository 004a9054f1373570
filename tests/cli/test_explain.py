"""``pullback explain``: the rulebook on the terminal and as pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from pullback.cli.explain import THEMES, pages
from pullback.rules import RULES
from tests.cli.conftest import ROOT, Pullback

PAGES = ROOT / "docs" / "rules"
EXAMPLES = Path(__file__).parents[1] / "lint" / "examples"


def flat(text: str) -> str:
    """Text without its line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize("code", RULES)
def test_every_rule_is_explained(pullback: Pullback, code: str) -> None:
    """Title, reason and remedy are printed, in full."""
    ran = pullback("explain", code.lower())
    rule = RULES[code]
    assert ran.code == 0
    assert all(part in flat(ran.out) for part in (code, rule.title, rule.reason, rule.remedy))


def test_several_rules_at_once(pullback: Pullback) -> None:
    """Each code that is named is explained, in that order."""
    out = pullback("explain", "PB206", "PB203").out
    assert 0 <= out.index("PB206") < out.index("PB203")


@pytest.mark.parametrize("prefix", ["PB2", "pb2", "PB2xx"])
def test_a_group_is_listed(pullback: Pullback, prefix: str) -> None:
    """The beginning of codes, as --select takes it, lists the rules of that group under its theme."""
    ran = pullback("explain", prefix)
    assert ran.code == 0
    theme, *lines = ran.out.splitlines()
    assert theme == THEMES["PB2"]
    assert [line.split()[0] for line in lines] == [code for code in RULES if code.startswith("PB2")]


def test_part_of_a_group_is_listed(pullback: Pullback) -> None:
    """Two digits list ten codes at most; a group and a rule can be asked for at once."""
    out = pullback("explain", "PB12", "PB203").out
    assert out.startswith("PB120 error    The target can't be loaded\n")
    assert "\n\nPB203 error: " in out


def test_list_has_every_rule(pullback: Pullback) -> None:
    """``--list`` prints one line a rule."""
    lines = pullback("explain", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(RULES)


def test_an_unknown_rule_exits_2(pullback: Pullback) -> None:
    """A code that doesn't exist is a usage error with the nearest one that does."""
    ran = pullback("explain", "PB2003")
    assert ran.code == 2
    assert "there is no rule PB2003; did you mean PB203?" in ran.err
    assert "see explain --list" in pullback("explain", "xyz").err


def test_nothing_to_explain_exits_2(pullback: Pullback) -> None:
    """Without a code or an option there is nothing to print."""
    assert pullback("explain").code == 2


def test_pages_are_written_and_old_ones_removed(pullback: Pullback, folder: Path) -> None:
    """``--markdown`` writes one page a rule and an index; pages of dropped rules go, other files stay."""
    target = folder / "new" / "rules"
    target.mkdir(parents=True)
    (target / "PB999.md").write_text("old")
    (target / "notes.md").write_text("mine")
    assert pullback("explain", "--markdown", str(target)).code == 0
    assert {path.name for path in target.iterdir()} == {*pages(), "notes.md"}


def test_pages_that_cannot_be_written_exit_2(pullback: Pullback, folder: Path) -> None:
    """A file in the place of the folder is a usage error."""
    (folder / "taken").write_text("")
    ran = pullback("explain", "--markdown", "taken")
    assert ran.code == 2
    assert "can't write to taken" in ran.err


def test_the_pages_in_the_docs_are_up_to_date() -> None:
    """docs/rules is what ``pullback explain --markdown docs/rules`` writes, no more and no less."""
    written = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    assert written == pages(EXAMPLES)


def test_every_rule_belongs_to_a_theme() -> None:
    """The index lists each rule once, under its hundred."""
    assert {code[:3] for code in RULES} <= set(THEMES)
    index = pages()["README.md"]
    assert all(index.count(f"[{code}]({code}.md)") == 1 for code in RULES)


def test_code_in_pages_is_marked_as_code() -> None:
    """What Markdown would read as a mark stands inside code, or is escaped."""
    found = pages()
    assert "`ctx.save_for_backward(x, constants=(mask,))`" in found["PB206.md"]
    assert "`pullback.Function`" in found["PB501.md"]
    assert "# PB103: `double_backward` without backward" in found["PB103.md"]
