"""The lines in a finding run by themselves and show the fault."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pullback.battery.check import check, make_subject
from pullback.battery.repro import call_lines
from tests.battery.running import leaf

SOURCE = '''
"""Functions that are wrong in many ways."""
import torch
from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x, by=2.0):
        ctx.save_for_backward(x)
        return x**by

    @staticmethod
    def samples():
        yield (torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True),)


class WrongFactor(Square):
    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] * g, None


class Clips(Square):
    @staticmethod
    def backward(ctx, g):
        return (2 * ctx.saved_tensors[0] * g).clamp(-1, 1), None


class Opaque(Square):
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0].detach() * g, None


class Strides(Square):
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g.as_strided(g.shape, (1,)), None


class Raises(Square):
    @staticmethod
    def backward(ctx, g):
        raise KeyError("gone")
'''


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of wrong Functions."""
    made = tmp_path_factory.mktemp("repro") / "many_wrongs.py"
    made.write_text(SOURCE)
    return made


def test_each_repro_runs_and_shows_what_it_should(path: Path) -> None:
    """All in one process: imported by path, since the file is no installed module."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("many_wrongs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["many_wrongs"] = module
    spec.loader.exec_module(module)
    shows = {
        "WrongFactor": ("PB203", "backward: tensor(1.5000, dtype=torch.float64)\ndifferences: "),
        "Clips": ("PB211", "tensor([1., 1.], dtype=torch.float64)\ntensor([0.0100, 0.0100], dtype=torch.float64)"),
        "Opaque": ("PB207", "AssertionError: the gradient has no graph behind it"),
        "Strides": ("PB405", "(tensor([1., 6.], dtype=torch.float64),)"),
        "Raises": ("PB125", "KeyError: 'gone'"),
    }
    script = []
    for name, (rule, _) in shows.items():
        finding = next(one for one in check(getattr(module, name)).findings if one.rule == rule)
        lines = finding.repro.splitlines()
        assert len(lines) <= 15, finding.repro
        assert f'{name} = runpy.run_path("{path}")["{name}"]' in lines
        script += [f"print('== {name}')", "try:", *(f"    {line}" for line in lines)]
        script += ["except Exception as error:", "    print(type(error).__name__ + ':', error)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(script)], capture_output=True, text=True, check=True)
    parts = dict(part.split("\n", 1) for part in done.stdout.split("== ")[1:])
    for name, (_, text) in shows.items():
        assert text in parts[name], parts[name]


def test_importable_functions_are_imported() -> None:
    """By their module, with every kind of argument written out."""

    def lines(function: object, *args: object) -> list[str]:
        subject = make_subject(function, args)
        return call_lines(subject, subject.all_cases[0])

    made = lines(torch.nn.functional.softplus, torch.ones(2, dtype=torch.float64), 1)
    assert made[-1].startswith("output = softplus(")
    made = lines(check_all, [leaf(1), 2], {"a": torch.zeros(20)}, 3.5)
    assert made[1] == "from tests.battery.test_repro import check_all"
    assert made[3] == "table = {'a': torch.rand((20,), dtype=torch.float64)}"
    assert made[4:] == ["by = 3.5", "output = check_all(xs, table, by)"]


def check_all(xs: list[torch.Tensor], table: dict[str, torch.Tensor], by: float) -> torch.Tensor:
    """A function with containers among its arguments."""
    return xs[0] * table["a"].sum() * by
