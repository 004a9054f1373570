"""``pullback lint``: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Pullback

RIGHT = """\
from torch.autograd import Function


class Tripled(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad
"""
WRONG = RIGHT.replace("3 * grad", "grad.mul_(3)")
HINT = """\
from torch.autograd import Function


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        e, n = x.exp(), (-x).exp()
        ctx.save_for_backward(e, n)
        return e - n

    @staticmethod
    def backward(ctx, grad):
        e, n = ctx.saved_tensors
        return grad * (e + n)
"""
CALL = "from right import Tripled  # autograd\n\nTripled.apply(1, 2)\n"
LINE = "wrong.py:11:16: PB403 error Tripled: "


def test_right_code_is_clean(pullback: Pullback) -> None:
    """Nothing is printed but the summary."""
    ran = pullback("lint", "right.py", right=RIGHT)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "1 Function: 1 clean, 0 with findings; no findings.\n"


def test_a_finding_is_a_line(pullback: Pullback) -> None:
    """With file, line and column in front, as editors take them; the folder is linted where no path is given."""
    ran = pullback("lint", wrong=WRONG, right=RIGHT)
    first, last = ran.out.splitlines()
    assert ran.code == 1
    assert first.startswith(LINE)
    assert last == "2 Functions: 1 clean, 1 with findings; 1 error."


def test_a_process_of_its_own_says_the_same(folder: Path) -> None:
    """All that is printed gets through the pipe before the process ends, and the exit code is that of the command."""
    for number in range(200):
        (folder / f"wrong{number}.py").write_text(WRONG)
    command = [sys.executable, "-m", "pullback", "lint"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert len(ran.stdout.splitlines()) == 201
    assert ran.stdout.splitlines()[-1] == "200 Functions: 0 clean, 200 with findings; 200 errors."
    gone = subprocess.run([*command, "gone.py"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert gone.stderr == "pullback: gone.py: no such file or folder\n"


def test_full_text_shows_what_is_wrong(pullback: Pullback) -> None:
    """The class, the place and the remedy; nothing of probes, seeds, and Functions that are clean."""
    ran = pullback("lint", "--output-format", "full", wrong=WRONG, right=RIGHT)
    assert ran.out.startswith("Tripled  wrong.py:4\n\n  PB403 error: backward writes into grad_output\n")
    assert "    at:       wrong.py:11:16\n" in ran.out
    assert "right.py" not in ran.out
    for word in ("probe", "seed", "samples"):
        assert word not in ran.out


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("github", "::error file=wrong.py,line=11,col=16,title=PB403 Tripled"),
        ("html", "wrong.py:11:16"),
        ("junit", '<failure message="PB403'),
    ],
)
def test_other_formats_show_the_place(pullback: Pullback, name: str, shown: str) -> None:
    """Line and column where the format has a place for them."""
    assert shown in pullback("lint", "--output-format", name, wrong=WRONG).out


def test_sarif_has_the_column_and_its_own_category(pullback: Pullback) -> None:
    """So that the results of lint don't replace those of check."""
    (run,) = json.loads(pullback("lint", "--output-format", "sarif", wrong=WRONG).out)["runs"]
    assert run["automationDetails"] == {"id": "pullback/lint/"}
    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 11, "startColumn": 16}


def test_json_has_the_confidence(pullback: Pullback) -> None:
    """As evidence of the finding."""
    document = json.loads(pullback("lint", "--output-format", "json", wrong=WRONG).out)
    (finding,) = document["reports"][0]["findings"]
    assert finding["evidence"] == {"confidence": "certain", "column": 16}
    assert finding["location"] == "wrong.py:11"


def test_reports_go_to_files_too(pullback: Pullback, folder: Path) -> None:
    """In the format that the name says."""
    ran = pullback("lint", "--output-file", "out/report.json", wrong=WRONG)
    assert ran.out.startswith(LINE)
    assert json.loads((folder / "out" / "report.json").read_text())["summary"]["errors"] == 1


def test_hints_are_shown_where_they_are_asked_for(pullback: Pullback) -> None:
    """They never fail a run."""
    assert "PB206" not in pullback("lint", hint=HINT).out
    for option in (["--hints"], ["--confidence", "possible"]):
        ran = pullback("lint", *option, hint=HINT)
        assert ran.code == 0
        assert "PB206 hint Exp" in ran.out


def test_statistics_count_each_rule(pullback: Pullback) -> None:
    """Most frequent first, in place of the findings."""
    other = WRONG.replace("return 3 * x", "x.mul_(3)\n        return x")
    ran = pullback("lint", "--statistics", wrong=WRONG, other=other)
    assert ran.out.splitlines() == [
        "2  PB403 error: backward writes into grad_output",
        "1  PB401 error: forward changes an argument without mark_dirty",
        "2 Functions: 0 clean, 2 with findings; 3 errors.",
    ]
    assert ran.code == 1


@pytest.mark.parametrize("arguments", [["--select", "PB2"], ["--ignore", "PB403"], ["--ignore", "PB2,PB4"]])
def test_rules_are_selected(pullback: Pullback, arguments: list[str]) -> None:
    """What is left out is counted, and doesn't fail the run."""
    ran = pullback("lint", *arguments, wrong=WRONG)
    assert ran.code == 0
    assert "1 set aside" in ran.out
    assert "1 finding left out by the selection of rules" in ran.out


def test_files_are_excluded(pullback: Pullback) -> None:
    """By pattern."""
    ran = pullback("lint", "--exclude", "wr*.py", wrong=WRONG, right=RIGHT)
    assert ran.out == "1 Function: 1 clean, 0 with findings; no findings.\n"


def test_a_comment_sets_a_finding_aside(pullback: Pullback) -> None:
    """It counts as a known failure, with its reason."""
    text = WRONG.replace("mul_(3)", "mul_(3)  # pullback: ignore[PB403] nobody else sees it")
    ran = pullback("lint", "--output-format", "full", wrong=text)
    assert ran.code == 0
    assert "known failure: Tripled PB403 (nobody else sees it)" in ran.out
    assert ran.out.endswith("1 Function: 0 clean, 0 with findings, 1 set aside; no findings; 1 known failure.\n")


def test_a_comment_that_hides_nothing_fails(pullback: Pullback) -> None:
    """Unless its rule is left out."""
    text = RIGHT.replace("3 * grad", "3 * grad  # pullback: ignore[PB403] once it was wrong")
    ran = pullback("lint", right=text)
    assert ran.code == 1
    assert "unexpected pass: right.py:11: ignore[PB403] hides nothing" in ran.out
    assert pullback("lint", "--select", "PB2").code == 0


def test_what_cant_be_read_is_told(pullback: Pullback) -> None:
    """The run goes on, and its report says which file was left out, and why."""
    broken = "from torch.autograd import Function\nclass A(Function):\n    def\n"
    ran = pullback("lint", "--output-format", "full", broken=broken, wrong=WRONG)
    assert "skipped: broken.py: line 3 can't be parsed" in ran.out
    assert "PB403" in ran.out
    assert "1 skipped" in ran.out
    ran = pullback("lint")
    assert ran.err.startswith("pullback: broken.py: line 3 can't be parsed")
    assert ran.out.startswith(LINE)


def test_a_comment_may_hide_nothing_where_only_some_files_are_named(pullback: Pullback) -> None:
    """The call is wrong beside the class that it calls, which the file by itself doesn't have."""
    called = CALL.replace("1, 2)", "1, 2)  # pullback: ignore[PB131] to see what it says")
    ran = pullback("lint", "other.py", "right.py", right=RIGHT, other=called)
    assert (ran.code, "1 known failure" in ran.out) == (0, True), ran.out
    assert pullback("lint", "other.py").code == 0
    assert pullback("lint", ".", right="x = 1\n").code == 1


DERIVED = """\
from right import Tripled  # autograd


class Scaled(Tripled):
    @staticmethod
    def forward(ctx, x, y):
        return 3 * x
"""


@pytest.mark.parametrize(
    ("other", "name", "mended"),
    [(CALL, "right.py:Tripled", "1, 2"), (DERIVED, "other.py:Scaled", "x, y")],
    ids=["a call", "an inherited method"],
)
def test_a_known_failure_is_one_of_its_function_wherever_it_stands(
    pullback: Pullback, folder: Path, other: str, name: str, mended: str
) -> None:
    """The entry names the file of the class; the finding stands in another, and is known until it is gone."""
    known = ("--known-failures", "known.toml")
    assert pullback("lint", *known, "--update-known-failures", right=RIGHT, other=other).code == 1
    file = folder / "known.toml"
    assert f'function = "{name}"' in file.read_text()
    file.write_text(file.read_text().replace('reason = ""', 'reason = "later"'))
    ran = pullback("lint", *known)
    assert (ran.code, "1 known failure" in ran.out) == (0, True), ran.out
    assert pullback("lint", *known, other=other.replace(mended, mended[0])).code == 1
    assert f"unexpected pass: {name}" in pullback("lint", *known).out


def test_known_failures_dont_fail(pullback: Pullback, folder: Path) -> None:
    """They are written, given a reason, and expected from then on; one that is gone fails."""
    known = ("--known-failures", "known.toml")
    ran = pullback("lint", *known, "--update-known-failures", wrong=WRONG)
    assert ran.code == 1
    assert "write a reason for wrong.py:Tripled PB403" in ran.err
    file = folder / "known.toml"
    file.write_text(file.read_text().replace('reason = ""', 'reason = "for now"'))
    assert pullback("lint", *known).code == 0
    ran = pullback("lint", *known, wrong=RIGHT)
    assert ran.code == 1
    assert "unexpected pass: wrong.py:Tripled PB403 was not found (for now)" in ran.out
    (folder / "wrong.py").write_text("x = 1\n")
    assert "no such Function in wrong.py" in pullback("lint", *known).out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["gone.py"], "gone.py: no such file or folder"),
        (["empty"], "nothing to lint: no Python file in empty"),
        (["--select", "E501"], "--select: there is no rule 'E501'; pullback explain --list shows them all"),
        (["--update-known-failures"], "--update-known-failures needs --known-failures FILE"),
        (["--statistics", "--output-format", "json"], "--statistics is text, and can't be written as json"),
        (["--output-file", "x.doc"], "the name of x.doc doesn't say its format"),
        (["--exclude", ""], "--exclude is empty: ''"),
    ],
)
def test_what_cant_be_carried_out_exits_2(pullback: Pullback, folder: Path, arguments: list[str], text: str) -> None:
    """The error names the option or the path."""
    (folder / "empty").mkdir()
    ran = pullback("lint", *arguments)
    assert ran.code == 2
    assert text in ran.err
    assert ran.out == ""


TABLE = """\
[tool.pullback.lint]
paths = ["sub"]
output-format = "full"
exclude = ["left"]
ignore = ["PB3"]
confidence = "possible"
fail-on = "error"

[tool.pullback.lint.per-file-ignores]
"sub/old*" = ["PB403"]
"""


def test_pyproject_configures(pullback: Pullback, folder: Path) -> None:
    """Paths, formats, patterns, rules, confidence and what each file is forgiven."""
    (folder / "pyproject.toml").write_text(TABLE)
    for name, text in {"old.py": WRONG, "left.py": WRONG, "hint.py": HINT, "left/x.py": WRONG}.items():
        (folder / "sub" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "sub" / name).write_text(text)
    ran = pullback("lint", wrong=WRONG)
    assert ran.code == 1, ran.err
    assert "left.py:11:16" in ran.out  # `left` is the folder's name, not the file's
    for name in ("old.py", "wrong.py", "x.py"):
        assert f"{name}:11" not in ran.out
    assert "PB206 hint" in ran.out
    assert pullback("lint", "wrong.py", "--output-format", "concise").out.startswith(LINE)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("selct = []", "unknown key 'selct' in [tool.pullback.lint]; did you mean 'select'?"),
        ("select = 'PB2'", "select in [tool.pullback.lint] must be a list of strings, got 'PB2'"),
        ("select = ['PB9']", "[tool.pullback.lint]: --select: there is no rule 'PB9'"),
        ("fail-on = 'hint'", "fail-on must be one of error, warning; got 'hint'"),
        ("confidence = 1", "confidence in [tool.pullback.lint] must be of type str, got 1"),
        ("per-file-ignores = ['a']", "per-file-ignores in [tool.pullback.lint] must be a table"),
        ("per-file-ignores = {a = 'PB2'}", "must give a pattern a list of codes, got 'a' = 'PB2'"),
        ("per-file-ignores = {a = ['PB9']}", "per-file-ignores of 'a': there is no rule 'PB9'"),
        ("folder = 'x'", "unknown key 'folder'"),
    ],
)
def test_a_wrong_table_exits_2(pullback: Pullback, folder: Path, table: str, text: str) -> None:
    """The error names the file and the key."""
    (folder / "pyproject.toml").write_text(f"[tool.pullback.lint]\n{table}\n")
    ran = pullback("lint", wrong=WRONG)
    assert ran.code == 2
    assert text in ran.err
    assert "pyproject.toml" in ran.err
