"""`pullback saved`: the ledger of a script's first step, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pullback.cli import main
from tests.cli.conftest import Pullback, Ran

TRAIN = """\
import sys
import torch
from torch import nn

print("training", sys.argv[1:])
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
for step in range(1000):
    x, target = torch.randn(4, 8), torch.randn(4, 1)
    loss = (model(x) - target).pow(2).mean()
    loss.backward()
    print("step", step)
"""

GRADIENT = """\
import torch
x = torch.randn(10, requires_grad=True)
(g,) = torch.autograd.grad(x.exp().sum(), x)
"""


@pytest.fixture
def saved(folder: Path, capfd: pytest.CaptureFixture[str]) -> Pullback:
    """Run ``pullback saved ARGUMENTS``, and catch what its process prints too; `sources` are files to write first."""

    def run(*arguments: str, **sources: str) -> Ran:
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(source, encoding="utf-8")
        code = main(("saved", *arguments))
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def test_the_ledger_of_the_first_step_is_printed(saved: Pullback) -> None:
    """The script runs up to its first backward; the ledger goes to standard output, without what the script prints."""
    ran = saved("train.py", "--rate", "0.1", train=TRAIN)
    assert ran.code == 0
    assert ran.out.startswith("The graph keeps 272 bytes in 2 pieces.\n")
    assert "64 B of parameters and 128 B of inputs" in ran.out
    assert "TanhBackward0.result in Sequential.1" in ran.out
    assert "training" not in ran.out


def test_what_the_script_prints_goes_to_standard_error(saved: Pullback) -> None:
    """Its arguments are its own, and it ends where it would call backward."""
    assert saved("train.py", "--rate", "0.1", train=TRAIN).err == "training ['--rate', '0.1']\n"


def test_json_is_whole(saved: Pullback) -> None:
    """With --json, standard output is the ledger as JSON; autograd.grad ends a step as backward does."""
    ran = saved("--json", "gradient.py", gradient=GRADIENT)
    assert ran.code == 0
    assert json.loads(ran.out)["by_operation"] == {"ExpBackward0": 40}


def test_a_plot_is_written(saved: Pullback, folder: Path) -> None:
    """With --plot the bars are drawn, too."""
    assert saved("--plot", "bars.svg", "gradient.py", gradient=GRADIENT).code == 0
    assert "<svg" in (folder / "bars.svg").read_text("utf-8")


def test_a_script_without_backward_is_measured_at_its_end(saved: Pullback) -> None:
    """What its variables hold then is the graph; a script that ends by sys.exit(0) has ended well."""
    source = "import torch\nx = torch.randn(10, requires_grad=True)\ny = x.exp()\n"
    assert saved("script.py", script=source).out.startswith("The graph keeps 40 bytes")
    ran = saved("script.py", script="import sys\nsys.exit(0)\n")
    assert (ran.code, ran.out.partition(" in")[0]) == (0, "The graph keeps 0 bytes")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('mine')\n", "ValueError: mine\npullback: the script failed before it called backward\n"),
        ("import sys\nsys.exit(3)\n", "pullback: the script ended with code 3 before it called backward\n"),
        ("syntax error\n", "pullback: the script failed before it called backward\n"),
    ],
)
def test_a_script_that_fails_says_so(saved: Pullback, source: str, said: str) -> None:
    """There is no ledger then: the exit code is 2, and standard error has the script's traceback and a sentence."""
    ran = saved("script.py", script=source)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(said)


def test_a_script_that_crashes_says_so(saved: Pullback) -> None:
    """Its process takes nothing along."""
    ran = saved("script.py", script="import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "pullback: the script ended its process with SIGSEGV\n"


def test_a_file_that_is_not_there_is_named(saved: Pullback) -> None:
    """The error is a sentence."""
    ran = saved("nowhere.py")
    assert (ran.code, ran.err) == (2, "pullback: nowhere.py is no file; name a script: pullback saved train.py\n")


def test_without_torch_the_error_says_what_to_install(
    saved: Pullback, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch is missing it is said so, and no traceback shown."""
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    ran = saved("script.py", script="")
    assert (ran.code, ran.err) == (2, "pullback: measuring needs torch: install your own build, or pullback[torch]\n")


def test_modules_beside_the_script_are_found(saved: Pullback) -> None:
    """As with `python script.py`, its folder is the first place for imports."""
    source = "import torch, other\ny = torch.ones(other.COUNT, requires_grad=True).exp()\n"
    ran = saved("script.py", script=source, other="COUNT = 5\n")
    assert ran.out.startswith("The graph keeps 20 bytes")
