"""Calls of a Function are found under every name that it has."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from pullback.lint.run import lint_paths, read
from pullback.lint.uses import uses
from tests.lint.helper import findings, found

CLASS = """\
import torch
from torch.autograd import Function
class Scaled(Function):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.factor = factor
        return x * factor
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None
"""


def used(text: str) -> list[tuple[str, int | None]]:
    """How a text calls Functions: how, and the number of arguments."""
    project = read({"ops.py": (CLASS + textwrap.dedent(text)).encode()}, [])
    return [(use.how, use.passed) for use in uses(project, project.sources[0])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Scaled.apply(x)", [("apply", 1)]),
        ("f = Scaled.apply\nf(x, 2)", [("apply", 2)]),
        ("def g(x):\n    return Scaled.apply(*x)", [("apply", None)]),
        ("a, b = Scaled.apply(x)", [("apply", 1)]),
        ("a, *b = Scaled.apply(x)", [("apply", 1)]),
        ("Scaled(x)", [("class", 1)]),
        ("Scaled()(x)", [("instance", 1), ("class", 0)]),
        ("Scaled().apply(x)", [("apply", 1), ("class", 0)]),
        ("S = Scaled\nS.apply(x)", [("apply", 1)]),
        ("y = [Scaled.apply(x) for x in z]", [("apply", 1)]),
        ("@Scaled.apply\ndef f(): pass", []),
        ("def g(Scaled):\n    return Scaled.apply(x)", []),
        ("Scaled.apply", []),
        ("torch.nn.Module.apply(x)", []),
    ],
)
def test_calls_are_found(text: str, expected: list[tuple[str, int | None]]) -> None:
    """By name, by alias, as instance, in any expression; what shadows the name is something else."""
    assert used(text) == expected


@pytest.mark.parametrize(
    ("call", "codes"),
    [
        ("Scaled.apply(x)", []),
        ("Scaled.apply(x, 3.0)", []),
        ("Scaled.apply(*x)", []),
        ("Scaled.apply()", ["PB131"]),
        ("Scaled.apply(x, 3.0, 4.0)", ["PB131"]),
        ("Scaled.apply(x, factor=3.0)", []),  # which PyTorch takes since 2.13
        ("Scaled.apply(x, scale=3.0)", ["PB131"]),
        ("Scaled(x)", ["PB108"]),
        ("Scaled(2.0)(x)", ["PB108"]),
        ("Scaled()(x)", ["PB108"]),
        ("Scaled().apply(x)", []),
        ("Scaled()", []),
    ],
)
def test_wrong_calls_are_found(call: str, codes: list[str]) -> None:
    """A forgotten apply, and a number of arguments that forward doesn't take; each once, on the line of the call."""
    assert found(f"{CLASS}y = {call}\n") == [f"11 {code}" for code in codes]


@pytest.mark.parametrize(
    ("signature", "call", "codes"),
    [
        ("ctx, x, *rest", "Scaled.apply(x, 1, 2, 3)", []),
        ("ctx, x, *, factor", "Scaled.apply(x)", ["PB131"]),
        ("ctx, x, *, factor", "Scaled.apply(x, factor=1)", []),
        ("ctx, x, factor", "Scaled.apply(x, factor=1)", []),
        ("ctx, x, factor", "Scaled.apply(x, facto=1)", ["PB131"]),
        ("ctx, x, **more", "Scaled.apply(x, facto=1)", []),
        ("ctx, x, factor", "Scaled.apply(x, **more)", []),
    ],
)
def test_pullbacks_own_takes_keywords(signature: str, call: str, codes: list[str]) -> None:
    """Keywords count as what they are there."""
    text = f"import pullback\nclass Scaled(pullback.Function):\n    @staticmethod\n    def forward({signature}):\n"
    assert found(f"{text}        return 2 * x\ny = {call}\n") == [f"6 {code}" for code in codes]


def test_a_decorator_may_change_what_forward_takes() -> None:
    """Of a forward behind an unknown decorator no call is judged."""
    text = CLASS.replace("    @staticmethod\n    def forward", "    @staticmethod\n    @wrapped\n    def forward")
    assert found(f"{text}y = Scaled.apply()\n") == []


def test_a_class_that_can_be_called_is_left_alone() -> None:
    """One with `__call__` or `__new__` of its own."""
    text = CLASS + "    def __call__(self, x): return self.apply(x)\n"
    assert found(f"{text}y = Scaled()(x)\n") == []


@pytest.mark.parametrize(
    ("before", "codes"),
    [
        ("class Scaled(Function, metaclass=Called)", []),
        ("@made_a_callable\nclass Scaled(Function)", []),
        ("@typing.final\nclass Scaled(Function)", ["PB108"]),
    ],
)
def test_a_class_that_something_else_may_make_callable(before: str, codes: list[str]) -> None:
    """A metaclass, or a decorator that gives another thing than the class; a mark for type checkers doesn't."""
    text = CLASS.replace("class Scaled(Function)", before)
    assert [one.partition(" ")[2] for one in found(f"{text}y = Scaled(x)\n")] == codes


@pytest.mark.parametrize(
    "text", ["def Scaled(x): pass\n", "Scaled = jit(Scaled)\n", CLASS.replace("ctx, x, ", "ctx, ")]
)
def test_a_name_that_is_given_twice_isnt_judged(text: str) -> None:
    """It isn't sure which one a call means."""
    assert found(f"{CLASS}{text}def f():\n    return Scaled(1, 2, 3), Scaled.apply()\n") == []


def test_a_forward_that_is_written_twice_isnt_judged() -> None:
    """As where releases of torch differ."""
    other = "def forward(ctx, x, y, z, factor=2.0):\n            ctx.factor = factor\n            return x * factor\n"
    text = f"{CLASS}    if torch.newer:\n        @staticmethod\n        {other}"
    assert found(f"{text}Scaled.apply(1, 2)\n") == []


def test_the_texts_say_what_to_write() -> None:
    """The finding of a forgotten apply names the call, the place and the remedy."""
    (one,) = findings(f"{CLASS}def double(x):\n    return Scaled(x)\n")
    assert one.message == "Scaled(...) makes an instance and doesn't run forward in the graph."
    assert (one.where, one.expected, one.location) == ("call in double", "Scaled.apply(...)", "text.py:12")
    (one,) = findings(f"{CLASS}Scaled.apply()\n")
    assert one.message == "forward demands 1 argument, and gets 0."
    assert one.expected == "arguments for (x, factor)"


def test_calls_in_other_files_are_found_there(tmp_path: Path) -> None:
    """The finding is in the Function's report, and names the other file."""
    (tmp_path / "ops.py").write_text(CLASS)
    (tmp_path / "user.py").write_text("import ops  # autograd\nfrom ops import Scaled as S\nops.Scaled(1)\nS(1)\n")
    (report,) = lint_paths([str(tmp_path)]).reports
    assert report.function == "Scaled"
    assert [one.location for one in report.findings] == [f"{tmp_path / 'user.py'}:{line}" for line in (3, 4)]


def test_calls_by_another_name_are_found_in_other_files(tmp_path: Path) -> None:
    """A package may pass a Function on under a new name, or its apply."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "ops.py").write_text(f"{CLASS}scaled = Scaled.apply\n")
    (tmp_path / "pkg" / "__init__.py").write_text("# autograd\nfrom .ops import Scaled as S, scaled as s\n")
    (tmp_path / "user.py").write_text("import pkg  # autograd\nfrom pkg import S, s as call\npkg.S(1)\nS(1)\ncall()\n")
    (report,) = lint_paths([str(tmp_path)]).reports
    places = [(one.rule, one.location) for one in report.findings]
    assert places == [
        (rule, f"{tmp_path / 'user.py'}:{line}") for rule, line in (("PB108", 3), ("PB108", 4), ("PB131", 5))
    ]
