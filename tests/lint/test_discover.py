"""Functions are found through aliases, through bases in other files, and wherever they are nested."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from pullback.lint.discover import Project
from pullback.lint.functions import FunctionClass
from pullback.lint.run import lint_paths, read
from pullback.lint.source import Source, parse


def project(**files: str) -> Project:
    """A project of some files, by the names of their modules."""
    sources = []
    for name, text in files.items():
        source = parse(f"{name}.py", textwrap.dedent(text).encode())
        assert isinstance(source, Source)
        sources.append(source)
    return Project(sources)


def functions(text: str) -> dict[str, FunctionClass]:
    """The Functions of one text by name."""
    return {function.name: function for function in project(ops=text).functions.values()}


@pytest.mark.parametrize(
    ("imported", "base"),
    [
        ("from torch.autograd import Function", "Function"),
        ("from torch.autograd import Function as F", "F"),
        ("from torch import autograd", "autograd.Function"),
        ("from torch import autograd as ad", "ad.Function"),
        ("import torch", "torch.autograd.Function"),
        ("import torch as t", "t.autograd.Function"),
        ("import torch.autograd", "torch.autograd.Function"),
        ("import torch.autograd as ad", "ad.Function"),
        ("import torch.autograd.function as f", "f.Function"),
        ("from torch.autograd.function import InplaceFunction", "InplaceFunction"),
        ("from torch.autograd.function import *", "Function"),
        ("import torch\nBase = torch.autograd.Function", "Base"),
        ("import torch\nfirst = torch.autograd\nsecond = first.Function", "second"),
        ("try:\n    from torch.autograd import Function\nexcept ImportError:\n    Function = None", "Function"),
        ("if True:\n    from torch.autograd import Function", "Function"),
        ("if X:\n    from torch.autograd import Function\nelse:\n    Function = object", "Function"),
        ("if X:\n    from torch.autograd import Function\nelse:\n    class Function:\n        pass", "Function"),
        ("try:\n    from torch.autograd import Function as F\nexcept E:\n    class F(object):\n        apply = 1", "F"),
    ],
)
def test_bases_are_seen_through_aliases(imported: str, base: str) -> None:
    """However PyTorch's class is called here, a class that derives from it is a Function."""
    found = functions(f"{imported}\nclass Square({base}):\n    pass\n")
    assert [*found] == ["Square"]
    assert not found["Square"].ours


@pytest.mark.parametrize(
    ("imported", "base"),
    [
        ("import pullback", "pullback.Function"),
        ("import pullback as pb", "pb.Function"),
        ("from pullback import Function", "Function"),
        ("from pullback.function import Function", "Function"),
    ],
)
def test_pullbacks_own_are_told_apart(imported: str, base: str) -> None:
    """What derives from pullback.Function is known to be ours."""
    found = functions(f"{imported}\nclass Square({base}):\n    pass\nclass Cube(Square):\n    pass\n")
    assert [function.ours for function in found.values()] == [True, True]


@pytest.mark.parametrize(
    "text",
    [
        "from sympy import Function\nclass f(Function):\n    pass\n",
        "class Function:\n    pass\nclass f(Function):\n    pass\n",
        "from torch.autograd import Function\ndef make(Function):\n    class f(Function):\n        pass\n",
        "from torch.autograd import Function\nclass f(make(Function)):\n    pass\n",
        "from torch.nn import Module\nclass f(Module):\n    pass\n",
        "class f(g):\n    pass\nclass g(f):\n    pass\n",
    ],
)
def test_other_classes_are_no_functions(text: str) -> None:
    """A class of the same name from elsewhere, a parameter of that name, and bases that nobody can know."""
    assert functions(text) == {}


def test_nested_ones_have_pythons_qualified_names() -> None:
    """In classes, in functions and in both."""
    text = """\
        from torch.autograd import Function
        class Outer:
            class Inner(Function):
                pass
            def make(self):
                class Local(Function):
                    class Deep(Function):
                        pass
                return Local
        def make():
            if True:
                with x:
                    for _ in y:
                        class Local(Function):
                            pass
        """
    assert [*functions(text)] == [
        "Outer.Inner", "Outer.make.<locals>.Local", "Outer.make.<locals>.Local.Deep", "make.<locals>.Local",
    ]  # fmt: skip


def test_two_of_one_name_are_two() -> None:
    """As where a class is defined under `if` and under `else`."""
    text = (
        "from torch.autograd import Function\nif x:\n    class A(Function): pass\nelse:\n    class A(Function): pass\n"
    )
    found = project(ops=text).functions.values()
    assert [(function.name, function.node.lineno) for function in found] == [("A", 3), ("A", 5)]


def test_inherited_methods_are_found() -> None:
    """Of a base in the same file, the nearest one first; a plain assignment hides a method."""
    found = functions(
        """\
        from torch.autograd import Function
        class Base(Function):
            @staticmethod
            def forward(ctx, x): pass
            @staticmethod
            def vjp(ctx, g): pass
        class Child(Base):
            @staticmethod
            def forward(ctx, x, y): pass
        class Assigned(Base):
            forward = other
        """
    )
    child = found["Child"]
    assert child.forward is not None
    assert [one.name for one in child.forward.parameters] == ["x", "y"]
    assert child.backward is found["Base"].own["vjp"]
    assert child.backward.owner is found["Base"]
    assert found["Assigned"].forward is None
    assert found["Assigned"].is_abstract


def test_mixins_are_told() -> None:
    """A base that isn't known makes a class open: what seems to be missing may be there."""
    found = functions("from torch.autograd import Function\nfrom x import Mixin\nclass A(Mixin, Function): pass\n")
    assert found["A"].foreign == ["x.Mixin"]
    assert found["A"].is_open


@pytest.mark.parametrize(
    ("method", "bound", "receiver", "ctx", "names"),
    [
        ("@staticmethod\ndef forward(ctx, x, y=1, *rest, z, **more): pass", "static", "", "ctx", ["x", "y", "z"]),
        ("@classmethod\ndef forward(cls, ctx, x): pass", "class", "cls", "ctx", ["x"]),
        ("def forward(ctx, x): pass", "plain", "", "ctx", ["x"]),
        ("def forward(self, x): pass", "plain", "", "self", ["x"]),
        ("def forward(self, ctx, x): pass", "plain", "self", "ctx", ["x"]),
        ("@staticmethod\ndef forward(self, x): pass", "static", "", "self", ["x"]),
        ("@staticmethod\ndef reference(x, y): pass", "static", "", "", ["x", "y"]),
    ],
)
def test_methods_as_they_are_written(method: str, bound: str, receiver: str, ctx: str, names: list[str]) -> None:
    """How they are bound, which parameter is ctx, and what comes after it."""
    body = textwrap.indent(method, "    ")
    found = functions(f"from torch.autograd import Function\nclass A(Function):\n{body}\n")["A"]
    (made,) = found.own.values()
    assert (made.bound, made.receiver, made.ctx) == (bound, receiver, ctx)
    assert [parameter.name for parameter in made.parameters] == names


def test_setup_context_takes_ctx_from_forward() -> None:
    """Beside it the first parameter of forward is an argument, in subclasses too."""
    found = functions(
        """\
        from torch.autograd import Function
        class A(Function):
            @staticmethod
            def forward(x, y): pass
            @staticmethod
            def setup_context(ctx, inputs, output): pass
        class B(A):
            @staticmethod
            def forward(x, y, z): pass
        """
    )
    for name, number in (("A", 2), ("B", 3)):
        forward = found[name].forward
        assert forward is not None
        assert (forward.ctx, len(forward.parameters), found[name].style) == ("", number, "setup_context")


def test_decorators_are_known_by_their_full_names() -> None:
    """As far as they are; a call counts as what is called."""
    found = functions(
        """\
        from torch.autograd import Function
        from torch.autograd.function import once_differentiable
        import torch
        class A(Function):
            @staticmethod
            @once_differentiable
            @torch.amp.custom_bwd(device_type="cuda")
            @made[0]
            def backward(ctx, g): pass
        """
    )
    backward = found["A"].own["backward"]
    assert backward.decorators == (
        "staticmethod", "torch.autograd.once_differentiable", "torch.amp.custom_bwd", "?",
    )  # fmt: skip
    assert backward.is_decorated("once_differentiable")
    assert not backward.is_decorated("custom_fwd")


def write(root: Path, **files: str) -> None:
    """Files of a package, `__` for a slash in their names and `init` for `__init__`."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/').replace('init', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def test_bases_in_other_files_are_found(tmp_path: Path) -> None:
    """By absolute and relative imports, through a package that passes them on, and several files deep."""
    write(
        tmp_path,
        pack__init="from .base import Base  # pullback",
        pack__base="from torch.autograd import Function\nclass Base(Function): pass  # autograd",
        pack__a="from .base import Base as B\nclass A(B): pass  # autograd",
        pack__b="from pack import Base\nclass B(Base): pass  # autograd",
        pack__c="import pack.base as base\nclass C(base.Base): pass  # autograd",
        pack__sub__init="",
        pack__sub__d="from ..a import A\nclass D(A): pass  # autograd",
        pack__sub__e="from . import d\nclass E(d.D): pass  # autograd",
        pack__other="class Other: pass  # autograd",
    )
    found = [report.function for report in lint_paths([str(tmp_path)]).reports]
    assert sorted(found) == ["A", "B", "Base", "C", "D", "E"]


def test_a_package_that_says_nothing_still_passes_on(tmp_path: Path) -> None:
    """Its `__init__` isn't read, and the only Function of that name below it is what is meant."""
    write(
        tmp_path,
        pack__init="from .base import Base",
        pack__base="from torch.autograd import Function\nclass Base(Function): pass",
        user="from pack import Base\nclass User(Base): pass  # autograd",
    )
    assert [report.function for report in lint_paths([str(tmp_path)]).reports] == ["User", "Base"]


def test_only_what_may_matter_is_parsed(tmp_path: Path) -> None:
    """Neither files without a Function, nor those that import none, however often they say autograd."""
    contents = {
        "ops.py": b"from torch.autograd import Function\nclass Square(Function): pass\n",
        "user.py": b"# autograd\nfrom ops import Square\nSquare.apply(1)\n",
        "module.py": b"# autograd\nimport ops as o\no.Square.apply(1)\n",
        "other.py": b"# autograd\nclass Function: pass\nSquare = 1\n",
        "grad.py": b"import torch.autograd\ntorch.autograd.grad(y, x)\n",
    }
    parsed = [source.path for source in read(contents, []).sources]
    assert sorted(parsed) == ["module.py", "ops.py", "user.py"]


def test_packages_that_import_each_other_end(tmp_path: Path) -> None:
    """Modules that take everything from each other, and from many, are followed once each."""
    names = [f"m{number}" for number in range(12)]
    everything = "\n".join(f"from pack.{name} import *" for name in names)
    write(
        tmp_path,
        pack__init=everything,
        **{f"pack__{name}": everything for name in names},
        pack__base="from torch.autograd import Function\nclass Base(Function): pass",
        user="from pack import Base\nclass User(Base): pass  # autograd",
        other="from pack import base, Base\nclass Other(base.Base): pass  # autograd",
    )
    assert [report.function for report in lint_paths([str(tmp_path)]).reports] == ["Other", "Base"]


def test_a_thousand_bases_end() -> None:
    """In either order."""
    head = "from torch.autograd import Function\nclass C0(Function): pass\n"
    lines = [f"class C{number}(C{number - 1}): pass\n" for number in range(1, 3000)]
    assert len(project(ops=head + "".join(lines)).functions) == 3000
    assert "C0" in {one.name for one in project(ops="".join(reversed(lines)), other=head).functions.values()}
