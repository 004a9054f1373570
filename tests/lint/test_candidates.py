"""Which files are parsed, told from their bytes: none that has a Function may be missed."""

from __future__ import annotations

import pytest

from pullback.lint.candidates import Known, defines, imports


@pytest.mark.parametrize(
    "text",
    [
        "class A(Function): pass",
        "class A(torch.autograd.Function): pass",
        "class A(Mixin, Function, metaclass=M): pass",
        "class A(\n    Function,\n): pass",
        "class A ( Function ): pass",
        "class A(InplaceFunction): pass",
        "class A(pullback.Function): pass",
        "class A(Function[T]): pass",
        "from torch.autograd import Function as F\nclass A(F): pass",
        "from torch.autograd import (\n    Function as F,\n)\nclass A(F): pass",
        "F = torch.autograd.Function\nclass A(F): pass",
        "F = InplaceFunction\nclass A(F): pass",
        "if x:\n    class A(Function): pass",
        "class Été(Function): pass",
        "from torch.autograd import Function as Été\nclass A(Été): pass",
        "class A[T](Function): pass",
        "class A[T: list[int], *U](Function): pass",
        "class A(mixed(Module), Function): pass",
        "class A(Function:",
        "\ufeffclass A(Function): pass",
        "x = 1\rclass A(Function): pass",
        "if x:\n\tclass A(Function): pass",
        "\x0cclass A(Function): pass",
        "class A(sympy.Basic, Function): pass",
        "from torch.autograd import Function          as F\nclass A(F): pass",
    ],
)
def test_files_that_may_have_a_function(text: str) -> None:
    """However the base is written."""
    assert defines(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "class A: pass",
        "class A(Module): pass",
        "class A(UserFunctionVariable): pass",
        "Function = 1\nclass A(Module): pass",
        "# Function\n",
        "# class A(Function): pass",
        "x = 'class A(Function): pass'",
        "class A(sympy.Function): pass",
        "class A(sympy . Function, Basic): pass",
    ],
)
def test_files_that_have_none(text: str) -> None:
    """A word that only ends like it, classes of other bases, comments, and a Function of formulas."""
    assert not defines(text.encode())


KNOWN = Known()
KNOWN.add(b"Square", "pack.sub.ops")


@pytest.mark.parametrize(
    "text",
    [
        "from pack.sub.ops import Square",
        "from pack.sub.ops import Square as S",
        "from pack.sub.ops import (\n    Cube,\n    Square,\n)",
        "from pack.sub.ops import Cube, \\\n    Square",
        "from .ops import Square",
        "from . import Square",
        "from pack import Square",
        "def f():\n    from pack.sub.ops import Square",
        "if x: from pack.sub.ops import Square",
        "import pack.sub.ops\npack.sub.ops.Square(x)",
        "import pack.sub.ops as o\no.Square(x)",
        "from pack.sub import ops\nops.Square(x)",
        "from pack.sub import ops as o\no.Square(x)",
        "from pack.sub.ops import *\nSquare(x)",
        "import pack\npack.sub.ops.Square.apply(x)",
        "from pack.sub.ops import Square\r\n",
    ],
)
def test_files_that_may_call_one(text: str) -> None:
    """However it, or the module that has it, is imported."""
    assert KNOWN.concern(text.encode(), imports(text.encode()))


@pytest.mark.parametrize(
    "text",
    [
        "from pack.sub.ops import Cube",
        "from elsewhere import Square",
        "import pack.sub.ops\npack.sub.ops.Cube(x)",
        "Square(x)",
        "from pack.sub.ops import *\nCube(x)",
        "# import Square",
    ],
)
def test_files_that_call_none(text: str) -> None:
    """The name alone, or the module alone, is not enough."""
    assert not KNOWN.concern(text.encode(), imports(text.encode()))


def test_names_beyond_ascii_are_followed() -> None:
    """Of a Function, and of a file whose name is no text at all."""
    known = Known()
    assert known.add("Été".encode(), "pack.sub\udcff")
    for text in ("from pack import Été", "Été.apply(x)"):
        assert known.concern(text.encode(), imports(text.encode()))


def test_modules_that_pass_it_on_count_from_then_on() -> None:
    """What a third module imports and others import from there."""
    known = Known()
    assert known.add(b"Square", "pack.ops")
    assert not known.add(b"Square", "pack.ops")
    text = b"from elsewhere import Square"
    assert not known.concern(text, imports(text))
    assert known.add(b"Square", "elsewhere")
    assert known.concern(text, imports(text))


def test_who_asks_again_is_told_of_what_is_new() -> None:
    """A file that was searched for the Functions known so far is searched for the others later."""
    known, text = Known(), b"import ops\nops.Cube(x)"
    found = imports(text)
    known.add(b"Square", "pack.ops")
    assert not known.concern(text, found)
    assert not known.concern(text, found)
    known.add(b"Cube", "pack.ops")
    assert known.concern(text, found)
