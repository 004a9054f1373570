"""The lines in a finding run by themselves, in the folder of the file, and show the fault."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from pullback.battery.check import check, make_subject
from pullback.battery.literals import code_for
from pullback.battery.repro import call_lines
from pullback.finding import Finding
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf

SOURCE = '''
"""Functions that are wrong in many ways."""
import torch
import pullback
from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x, by=2.0):
        ctx.save_for_backward(x)
        return x**2 + 0 * by

    @staticmethod
    def samples():
        yield (torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True),)


class WrongFactor(Square):
    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] * g, None


class Ignores(Square):
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] + 0 * g, None


class Clips(Square):
    @staticmethod
    def backward(ctx, g):
        return (2 * ctx.saved_tensors[0] * g).clamp(-1, 1), None


class Opaque(Square):
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0].detach() * g, None


class CutOff(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[1] * g


class Strides(Square):
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g.as_strided(g.shape, (1,)), None


class Raises(Square):
    @staticmethod
    def backward(ctx, g):
        raise KeyError("gone")


class Star(Function):
    @staticmethod
    def forward(ctx, *xs):
        ctx.n = len(xs)
        return sum(xs)

    @staticmethod
    def backward(ctx, g):
        return (2 * g,) * ctx.n


class Outer:
    class Inner(WrongFactor):
        pass


def make():
    class Local(WrongFactor):
        pass

    return Local


Made = make()


class Names(Function):
    @staticmethod
    def forward(ctx, output, total, step):
        return output + total + step

    @staticmethod
    def backward(ctx, g):
        return g, g, 3 * g


class Conjugate(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g

    @staticmethod
    def samples():
        yield (torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128),)


class Single(WrongFactor):
    @staticmethod
    def forward(ctx, x):
        if x.dtype is not torch.float32:
            raise TypeError("float32 only")
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2.2 * ctx.saved_tensors[0] * g

    @staticmethod
    def reference(x):
        return x * x

    @staticmethod
    def samples():
        yield (torch.tensor([0.5, 1.5]),)


class Large(WrongFactor):
    @staticmethod
    def samples():
        yield (torch.randn(40),)


class Wrapped(WrongFactor):
    @staticmethod
    def samples():
        yield (torch.ones(2, dtype=torch.float64),)
        yield pullback.Sample((torch.randn(5, 5),))


class OnlyWrapped(WrongFactor):
    @staticmethod
    def samples():
        yield pullback.Sample((torch.randn(5, 5, dtype=torch.float64, requires_grad=True),))


class ByKeyword(pullback.Function):
    @staticmethod
    def forward(ctx, x, weight):
        return x + weight

    @staticmethod
    def backward(ctx, g):
        return g, 2 * g

    @staticmethod
    def samples():
        yield pullback.Sample((torch.randn(5, 5),), {"weight": torch.randn(5, 5)})


class Rounds(pullback.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return 2 * g

    @staticmethod
    def surrogate(x):
        return x


class Expects(pullback.Function):
    nonlinear_backward = True

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-1, 1)

    @staticmethod
    def expected_backward(inputs, outputs, grad_outputs):
        return grad_outputs[0].clamp(-0.5, 0.5)
'''

SHOWS = {
    "WrongFactor": ("PB203", ("AssertionError", "got 0.75\n", "expected 0.")),
    "Ignores": ("PB211", ("AssertionError", "got tensor([", "expected tensor([")),
    "Clips": ("PB211", ("AssertionError", "expected tensor([0.5000, 1.0000]", "got tensor([0.0100, 0.0100]")),
    "Opaque": ("PB207", ("AssertionError", "got None\n", "expected 0.")),
    "CutOff": ("PB206", ("AssertionError", "got None\n", "expected ")),
    "Strides": ("PB405", ("AssertionError", "expected tensor([1., ", "got tensor([")),
    "Raises": ("PB125", ("KeyError: 'gone'",)),
    "Star": ("PB203", ("AssertionError", "got 1.0\n", "expected 0.")),
    "Outer.Inner": ("PB203", ("AssertionError", "got 0.75\n")),
    "Made": ("PB203", ("AssertionError", "got 0.75\n")),
    "Names": ("PB203", ("AssertionError", "got 1.5\n", "expected 0.")),
    "Conjugate": ("PB203", ("AssertionError", "got (", "expected (")),
    "Single": ("PB203", ("AssertionError", "got tensor(", "expected tensor(")),
    "Large": ("PB203", ("AssertionError", "got ", "expected ")),
    "Wrapped": ("PB203", ("AssertionError", "got 1.5\n", "expected 1.")),
    "OnlyWrapped": ("PB203", ("AssertionError", "got ", "expected ")),
    "ByKeyword": ("PB203", ("AssertionError", "got ", "expected ")),
    "Rounds": ("PB203", ("AssertionError", "got tensor(", "expected tensor(")),
    "Expects": ("PB203", ("AssertionError", "got tensor(", "expected tensor(")),
}
"""Class -> the rule, and what its lines end in."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of wrong Functions."""
    made = tmp_path_factory.mktemp("repro") / "many_wrongs.py"
    made.write_text(SOURCE)
    return made


@pytest.fixture(scope="module")
def module(path: Path) -> Iterator[ModuleType]:
    """That file, imported as the command line does: its folder is on the path."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("many_wrongs", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["many_wrongs"] = found
    spec.loader.exec_module(found)
    yield found
    sys.path.remove(str(path.parent))
    del sys.modules["many_wrongs"]


def finding_of(module: ModuleType, name: str) -> Finding:
    """The finding that is expected of a class."""
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part)
    return next(one for one in check(function).findings if one.rule == SHOWS[name][0])


def test_the_lines_run_in_the_folder_of_the_file_and_show_the_fault(module: ModuleType, path: Path) -> None:
    """All in one process of its own, which knows nothing of this one."""
    script = []
    for name in SHOWS:
        lines = finding_of(module, name).repro.splitlines()
        assert f"from many_wrongs import {name.partition('.')[0]}" in lines, lines
        script += [f"print('== {name}')", "try:", *(f"    {line}" for line in lines)]
        script += ["except Exception as error:", "    print(type(error).__name__ + ':', str(error) + chr(10))"]
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-c", f"import sys; sys.path.append({source!r})\n" + "\n".join(script)]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    parts = dict(part.split("\n", 1) for part in done.stdout.split("== ")[1:])
    for name, (_, texts) in SHOWS.items():
        for text in texts:
            assert text in parts[name], parts[name]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("Large", "x = list(Large.samples())[0][0].detach()"),
        ("OnlyWrapped", "x = list(OnlyWrapped.samples())[0].args[0].detach()"),
        ("ByKeyword", "weight = list(ByKeyword.samples())[0].kwargs['weight'].detach()"),
    ],
)
def test_a_large_argument_is_taken_from_the_samples(module: ModuleType, name: str, place: str) -> None:
    """From a tuple by its place; from a Sample by its args or kwargs."""
    lines = finding_of(module, name).repro.splitlines()
    assert any(line.startswith(place) for line in lines), lines


def test_a_file_that_is_no_module_is_run_by_its_path(module: ModuleType, path: Path) -> None:
    """Where nothing would find it by name, the lines say where it is."""
    sys.path.remove(str(path.parent))
    try:
        finding = finding_of(module, "Outer.Inner")
    finally:
        sys.path.insert(0, str(path.parent))
    assert f"Outer = runpy.run_path({str(path)!r})['Outer']" in finding.repro.splitlines()
    assert shows_the_fault(finding)


def test_a_class_that_is_nowhere_to_be_had_is_named() -> None:
    """A class made inside a function, and held by nothing else, can only be described."""

    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    (finding,) = check(Local).findings
    assert "# Local as it is defined in tests.battery.test_repro" in finding.repro.splitlines()
    assert shows_the_fault(finding, Local=Local)


def test_a_bound_apply_is_checked_as_its_class(module: ModuleType) -> None:
    """The lines are those for the class."""
    by_apply, by_class = check(module.WrongFactor.apply), check(module.WrongFactor)
    assert [finding.repro for finding in by_apply.findings] == [finding.repro for finding in by_class.findings]


def test_importable_functions_are_imported() -> None:
    """By their module, with every kind of argument written out."""

    def lines(function: object, *args: object) -> list[str]:
        subject = make_subject(function, args)
        return call_lines(subject, subject.all_cases[0])

    made = lines(torch.nn.functional.softplus, torch.ones(2, dtype=torch.float64), 1)
    assert made[-1].startswith("output = softplus(")
    made = lines(check_all, [leaf(1), 2], {"a": torch.zeros(20)}, 3.5)
    assert made[1:3] == ["from tests.battery.test_repro import check_all", "torch.manual_seed(0)"]
    assert made[4] == "table = {'a': torch.rand((20,), dtype=torch.float64)}"
    assert made[5:] == ["by = 3.5", "output = check_all(xs, table, by)"]


def test_what_can_not_be_written_is_left_open() -> None:
    """A module that was given has no code: the lines say what goes there, and are Python all the same."""

    def applied(x: Tensor, layer: torch.nn.Module, shape: torch.Size) -> Tensor:
        return layer(x).view(shape)

    layer = torch.nn.Linear(2, 2, dtype=torch.float64)
    subject = make_subject(applied, (leaf(2, 2), layer, torch.Size((4,))))
    lines = call_lines(subject, subject.all_cases[0])
    assert "layer = ...  # the Linear that was passed" in lines
    compile("\n".join(lines), "the lines", "exec")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (torch.tensor([1.5, float("nan"), -float("inf")]), "torch.tensor([1.5, torch.nan, -torch.inf], "),
        (torch.zeros(0, 3), "torch.zeros((0, 3), "),
        (torch.tensor([1 + 2j]), "torch.tensor([complex(1.0, 2.0)], "),
        (torch.arange(40), "torch.randint(0, 40, (40,), "),
        (torch.ones(40, dtype=torch.bool), "torch.rand((40,)) < 0.5"),
        (-torch.ones(40), "torch.randn((40,), "),
        ((torch.device("cpu"), torch.float32, slice(1, 2)), "(torch.device('cpu'), torch.float32, slice(1, 2, None),)"),
        ((), "()"),
    ],
)
def test_values_are_written_as_code(value: object, code: str) -> None:
    """What makes them again: the same numbers for small tensors, the same kind of numbers for large ones."""
    written = code_for(value, "x", ())
    assert written.startswith(code)
    assert type(eval(written, {"torch": torch})) is type(value)


def check_all(xs: list[torch.Tensor], table: dict[str, torch.Tensor], by: float) -> torch.Tensor:
    """A function with containers among its arguments."""
    return xs[0] * table["a"].sum() * by
