"""Comments that set findings aside: where they hold, and what becomes of those that hide nothing."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from pullback.lint.run import Linted, lint_text

CLASS = """\
from torch.autograd import Function
class Tripled(Function):{on_class}
    @staticmethod
    def forward(ctx, x):
        return 3 * x
    @staticmethod
    def backward({on_signature}
        ctx, grad):
        return grad.mul_(3){on_line}
    # {stray}
"""


def linted(on_line: str = "", on_class: str = "", on_signature: str = "", stray: str = "") -> Linted:
    """The class whose backward writes into grad, with comments in it."""
    marks = {"on_line": on_line, "on_class": on_class, "on_signature": on_signature, "stray": stray}
    return lint_text(CLASS.format(**{name: f"  # {text}" if text else "" for name, text in marks.items()}))


def left(result: Linted) -> list[str]:
    """The codes that are still found."""
    return [finding.rule for report in result.reports for finding in report.findings]


def test_the_comments_that_docs_show_hide_something() -> None:
    """Whoever copies one from the page gets a run that passes."""
    page = (Path(__file__).parents[2] / "docs" / "lint.md").read_text("utf-8")
    shown = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "pullback: ignore" in one]
    assert [(len(result.ignored), result.stale, left(result)) for result in map(lint_text, shown)] == [(1, (), [])]


def test_without_a_comment_it_is_found() -> None:
    """So that the tests below hide something."""
    assert left(linted()) == ["PB403"]


@pytest.mark.parametrize("place", ["on_line", "on_class", "on_signature"])
@pytest.mark.parametrize(
    "text",
    [
        "pullback: ignore[PB403] the engine owns it",
        "pullback:ignore[PB403] the engine owns it",
        "pullback: ignore[PB301, PB403]: the engine owns it",
        "pullback: ignore[PB4] - the engine owns it",
        "noqa: E501  # pullback: ignore[PB403] the engine owns it",
    ],
)
def test_a_comment_sets_it_aside(place: str, text: str) -> None:
    """On its line, on the class, or on a line of the method's signature; the reason comes along."""
    result = linted(**{place: text})
    assert left(result) == []
    assert [(finding.rule, reason) for finding, reason in result.ignored] == [("PB403", "the engine owns it")]
    assert result.stale == ()
    assert result.notes == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return grad.mul_(3)", "return grad.mul_(\n            3\n        )  # pullback: ignore[PB403] why"),
        ("@staticmethod\n    def backward", "@staticmethod  # pullback: ignore[PB403] why\n    def backward"),
    ],
)
def test_a_comment_behind_the_last_bracket_or_on_a_decorator_counts(old: str, new: str) -> None:
    """A formatter moves it behind the bracket that it breaks a line for; a decorator belongs to its method."""
    result = lint_text(CLASS.format(on_class="", on_signature="", on_line="", stray="").replace(old, new))
    assert left(result) == []
    assert result.stale == ()


def test_a_comment_within_a_statement_is_for_its_line_alone() -> None:
    """Only the last line stands for the whole statement."""
    text = CLASS.format(on_class="", on_signature="", on_line="", stray="")
    within = text.replace("mul_(3)", "mul_(\n            3  # pullback: ignore[PB403] why\n        )")
    assert left(lint_text(within)) == ["PB403"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("pullback: ignore[PB403]", "line 9: ignore[PB403] hides nothing: it gives no reason"),
        ("pullback: ignore[PB403] ...", "line 9: ignore[PB403] hides nothing: it gives no reason"),
        ("pullback: ignore", "line 9: an ignore hides nothing: it names no code, such as ignore[PB203]"),
        ("pullback: ignore[] why", "line 9: an ignore hides nothing: it names no code, such as ignore[PB203]"),
        ("pullback: ignore[E501] why", "line 9: an ignore hides nothing: there is no rule 'E501'"),
        ("pullback: ignore[PB999] why", "line 9: an ignore hides nothing: there is no rule 'PB999'"),
    ],
)
def test_a_comment_that_cant_count_is_told(text: str, note: str) -> None:
    """Without a reason, without a code, or with a code that no rule has: the finding stays, and a note says why."""
    result = linted(on_line=text)
    assert left(result) == ["PB403"]
    assert [one.sentence for one in result.notes] == [note]


def test_a_comment_that_hides_nothing_is_stale() -> None:
    """Of another rule, or on another line."""
    result = linted(on_line="pullback: ignore[PB203] why", stray="pullback: ignore[PB403] why")
    assert left(result) == ["PB403"]
    assert [str(one) for one in result.stale] == ["text.py:9: ignore[PB203]", "text.py:10: ignore[PB403]"]


def test_a_file_without_a_function_has_stale_comments_too() -> None:
    """It isn't parsed for Functions, and the comment is told all the same."""
    result = lint_text("x = 1  # pullback: ignore[PB403] why\n")
    assert [str(one) for one in result.stale] == ["text.py:1: ignore[PB403]"]


def test_text_in_a_string_is_no_comment() -> None:
    """Only comments count."""
    text = textwrap.dedent('x = "# pullback: ignore[PB403] why"\n')
    assert lint_text(text).stale == ()


def test_a_file_that_cant_be_read_has_no_stale_comments() -> None:
    """What is in it nobody knows."""
    head = "from torch.autograd import Function\nclass A(Function):\n"
    result = lint_text(f"{head}  x = (  # pullback: ignore[PB403] why\n")
    assert result.stale == ()
    assert len(result.notes) == 1
