"""Finding Functions: importing files and modules, and listing what they define."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from pullback.battery.raised import one_line
from pullback.battery.targets import UnloadableError, find, load
from pullback.rules import RULES

OPS = """
import torch
from pullback import Function as Base

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

class Outer:
    class Inner(Double):
        pass

class Abstract(torch.autograd.Function):
    pass

class Unfinished(Base):
    pass

Another = Double

def make():
    class Local(Double):
        pass
    return Local

Made = make()
number = 3

def twice(x):
    return 2 * x
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory whose modules are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, name: str, source: str) -> str:
    """Writes a file and returns its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(source), encoding="utf-8")
    return name


def test_what_a_file_defines(folder: Path) -> None:
    """Every Function that can be applied is found once, nested and made ones too; imported ones aren't."""
    write(folder, "imports_ops.py", "from defined_ops import Double, Outer\nclass Mine(Double): ...\n")
    source = write(folder, "defined_ops.py", OPS)
    members = find(load(source, is_file=True), source)
    found, skipped = members.found, members.skipped
    assert [entry.name for entry in found] == ["Double", "Outer.Inner", "Made"]
    assert found[0].location == "defined_ops.py:5"
    assert [sentence.split()[0] for sentence in skipped] == ["Abstract", "Unfinished"]
    assert "has no forward" in skipped[0]
    again = "imports_ops.py"
    assert [entry.name for entry in find(load(again, is_file=True), again).found] == ["Mine"]


def test_named_members_may_come_from_elsewhere(folder: Path) -> None:
    """What is named is checked, whether it was defined there or not, and plain callables too."""
    source = write(folder, "named_ops.py", OPS)
    module = load(source, is_file=True)
    found = find(module, source, ["Outer.Inner", "Another", "twice"]).found
    assert [entry.name for entry in found] == ["Outer.Inner", "Another", "twice"]
    assert found[2].function(2) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nope", "bad_ops.py has no Nope; it defines Double, Outer.Inner"),
        ("Double.Nope", "bad_ops.py has no Double.Nope"),
        ("number", "number in bad_ops.py is of type int: neither class nor callable"),
    ],
)
def test_names_that_cannot_be_checked(folder: Path, name: str, message: str) -> None:
    """A name that isn't there, or isn't callable, is said to be so, with what there is; another name is found still."""
    source = write(folder, "bad_ops.py", OPS)
    members = find(load(source, is_file=True), source, [name, "Double"])
    (error,) = members.lacking
    assert error.finding.message.startswith(message)
    assert error.finding.function == f"bad_ops.py:{name}"
    assert error.missing
    assert [entry.name for entry in members.found] == ["Double"]


def test_names_beside_the_whole(folder: Path) -> None:
    """All that is defined comes with what is named, each once; an abstract class that was named is told apart."""
    source = write(folder, "whole_ops.py", OPS)
    members = find(load(source, is_file=True), source, ["Double", "twice", "Abstract"], whole=True)
    assert [entry.name for entry in members.found] == ["Double", "Outer.Inner", "Made", "twice"]
    assert [sentence.split()[0] for sentence in members.skipped] == ["Abstract", "Unfinished"]
    assert members.unmet == members.skipped[:1]


BASES = """
import torch

class Elementwise(torch.autograd.Function):
    @staticmethod
    def f(x):
        \"\"\"What it computes.\"\"\"
        raise NotImplementedError

    @classmethod
    def forward(cls, ctx, x):
        ctx.save_for_backward(x)
        return cls.f(x)

    @staticmethod
    def backward(ctx, g):
        return g

class Same(Elementwise):
    @staticmethod
    def f(x):
        return x.clone()

class Forgotten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise NotImplementedError

class Whole(Same):
    @staticmethod
    def jvp(ctx, t):
        raise NotImplementedError("no forward mode")

class WithForwardMode(Whole):
    @staticmethod
    def jvp(ctx, t):
        return t
"""


def test_a_method_that_is_left_to_subclasses_makes_a_class_abstract(folder: Path) -> None:
    """It isn't checked; but a class whose backward nobody wrote is, and one that only lacks a jvp."""
    source = write(folder, "bases_ops.py", BASES)
    members = find(load(source, is_file=True), source)
    assert [entry.name for entry in members.found] == ["Same", "Forgotten", "Whole", "WithForwardMode"]
    (sentence,) = members.skipped
    assert sentence.startswith("Elementwise (bases_ops.py:4) leaves f to its subclasses: it is abstract")


def test_a_file_finds_its_neighbours(folder: Path) -> None:
    """A file may import what lies beside it, as under ``python FILE``."""
    write(folder, "a/beside_it.py", "value = 5\n")
    assert load(write(folder, "a/lonely.py", "from beside_it import value\n"), is_file=True).value == 5


def test_a_file_of_a_package_is_a_part_of_it(folder: Path) -> None:
    """Relative imports work, and the class belongs to the package's module, not to a copy of it."""
    write(folder, "src/some_package/__init__.py", "")
    write(folder, "src/some_package/sub/__init__.py", "from .ops import value\n")
    write(folder, "src/some_package/sub/ops.py", "from .. import sub\nvalue = 6\n")
    module = load("src/some_package/sub/ops.py", is_file=True)
    assert module.__name__ == "some_package.sub.ops"
    assert load("src/some_package/sub/__init__.py", is_file=True).__name__ == "some_package.sub"
    assert load("some_package.sub.ops", is_file=False) is module


def test_a_file_is_imported_once(folder: Path) -> None:
    """Loading it again, as for samples that it holds itself, gives the same classes."""
    source = write(folder, "once_only.py", OPS)
    assert load(source, is_file=True) is load(str(folder / source), is_file=True)


def test_a_file_called_like_a_module_takes_nobody_s_place(folder: Path) -> None:
    """A file ``random.py`` is checked without becoming everybody's ``random``."""
    import random

    module = load(write(folder, "random.py", "value = 7\n"), is_file=True)
    assert module.value == 7
    assert sys.modules["random"] is random


@pytest.mark.parametrize(
    ("source", "message", "where"),
    [
        (
            "x = 1\nimport no_such_module\n",
            "ModuleNotFoundError: No module named 'no_such_module'",
            ":2: import no_such",
        ),
        ("def f(:\n    pass\n", "SyntaxError: ", r":1: def f\(:"),
        ("def f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError: division by zero", ":2: return 1 / 0"),
        ("import torch\ntorch.ones(2).view(3)\n", "RuntimeError: shape", r":2: torch.ones\(2\).view\(3\)"),
        ("raise SystemExit(2)\n", "SystemExit: 2", ":1: raise SystemExit"),
        ("assert False\n", "AssertionError", ":1: assert False"),
    ],
)
def test_an_import_that_raises_names_the_line(folder: Path, source: str, message: str, where: str) -> None:
    """The finding has the exception and the line of the file, not this package's own frames."""
    name = write(folder, "raising_file.py", source)
    with pytest.raises(UnloadableError, match=message) as caught:
        load(name, is_file=True)
    finding = caught.value.finding
    assert finding.rule == "PB120"
    assert finding.message.startswith("importing raising_file.py raised ")
    assert pytest.RaisesExc(ValueError, match=f"^raising_file.py{where}").matches(ValueError(finding.where))
    assert not caught.value.missing
    assert "raising_file" not in sys.modules


def test_a_module_that_is_not_there_is_missing(folder: Path) -> None:
    """A module that can't be found is told apart from one that is there and lacks another."""
    with pytest.raises(UnloadableError, match="No module named") as caught:
        load("no_such_package.ops", is_file=False)
    assert caught.value.missing
    write(folder, "lacks_another.py", "import no_such_module\n")
    sys.path.insert(0, str(folder))
    with pytest.raises(UnloadableError, match="No module named") as caught:
        load("lacks_another", is_file=False)
    assert not caught.value.missing


def test_an_exception_without_a_usable_text_is_described() -> None:
    """An exception whose text can't be made is named by its type; of a longer text the first line stays."""

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert one_line(Silent()) == "Silent: (its text raised ValueError)"
    assert one_line(KeyError()) == "KeyError"
    assert one_line(RuntimeError("one\n two")) == "RuntimeError: one"


REPORTING = """
import torch, pullback

class Off(pullback.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 3

pullback.assert_correct(Off, (torch.ones(3, dtype=torch.float64),))
"""


def test_a_report_that_an_import_ends_in_is_not_poured_into_one_line(folder: Path) -> None:
    """Of an error of many lines, such as assert_correct's, the message has the first."""
    write(folder, "reporting.py", REPORTING)
    with pytest.raises(UnloadableError) as caught:
        load("reporting.py", is_file=True)
    message = caught.value.finding.message
    assert message.startswith("importing reporting.py raised CheckFailedError: PB")
    assert "samples" not in message
    assert "\n" not in message
    assert len(message) < 200


def test_an_error_of_pullbacks_own_keeps_its_remedy(folder: Path) -> None:
    """A class that can't be defined ends the import, and what to do about it is said."""
    lines = """
        import pullback

        class Bare(pullback.Function):
            @staticmethod
            def forward(ctx, x):
                return x
            @staticmethod
            def double_backward(ctx, gg):
                return gg
        """
    write(folder, "bare.py", lines)
    with pytest.raises(UnloadableError) as caught:
        load("bare.py", is_file=True)
    finding = caught.value.finding
    assert finding.rule == "PB120"
    assert finding.message.startswith("importing bare.py raised DefinitionError: PB")
    assert finding.remedy != RULES["PB120"].remedy
    assert finding.got
