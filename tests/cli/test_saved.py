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
    """Without a graph there is no ledger: the exit code is 2, and standard error has the traceback and a sentence."""
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


OUT_OF_MEMORY = """\
import torch
from torch import nn

class Head(nn.Module):
    def forward(self, x):
        wide = x.exp()
        raise torch.OutOfMemoryError("no room")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), Head()

    def forward(self, x):
        return self.head(self.body(x))

Model()(torch.randn(4, 8)).sum().backward()
"""


def test_a_step_that_runs_out_of_memory_has_a_ledger(saved: Pullback) -> None:
    """What was kept up to there is printed, then the script's own traceback, from its first line on."""
    ran = saved("oom.py", oom=OUT_OF_MEMORY)
    assert ran.code == 2
    assert ran.out.startswith("Stopped by OutOfMemoryError in Model.head; this is what was kept up to there.\n")
    assert "ExpBackward0.result in Model.head" in ran.out
    lines = ran.err.splitlines()
    assert lines[:2] == ["Traceback (most recent call last):", '  File "oom.py", line 17, in <module>']
    assert lines[-2:] == [
        "torch.OutOfMemoryError: no room",
        "pullback: the script failed before it called backward",
    ]
    assert json.loads(saved("--json", "oom.py").out)["stopped"] == "OutOfMemoryError in Model.head"


FUNCTIONAL = """\
import torch
from torch.func import functional_call, grad
model = torch.nn.Linear(4, 4)
grad(lambda p, x: functional_call(model, p, (x,)).pow(2).sum())(dict(model.named_parameters()), torch.randn(5, 4))
print("not reached")
"""


def test_a_step_of_torch_func_is_a_step(saved: Pullback) -> None:
    """torch.func.grad asks for a gradient as well; what it has kept by then is the ledger."""
    ran = saved("step.py", step=FUNCTIONAL)
    assert (ran.code, ran.err) == (0, "")
    assert "PowBackward0.self" in ran.out
    assert "inside torch.func" in ran.out


def test_a_script_without_backward_is_not_blamed(saved: Pullback) -> None:
    """It has not failed: a sentence says what the ledger is of."""
    ran = saved("script.py", script="import torch\ny = torch.ones(5, requires_grad=True).exp()\n")
    assert (ran.code, ran.out.partition(" in")[0]) == (0, "The graph keeps 20 bytes")
    assert ran.err == "pullback: the script never called backward; this is what its variables kept at its end\n"


def test_what_is_wrong_with_the_ledger_is_not_the_scripts_fault(saved: Pullback) -> None:
    """Where no ledger can be written, that is what is said."""
    source = """\
import torch, pullback.memory.ledger
def walk(*_): raise TypeError("not that way")
pullback.memory.ledger.walk = walk
torch.ones(5, requires_grad=True).exp().sum().backward()
"""
    ran = saved("script.py", script=source)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("pullback: No ledger could be written: TypeError: not that way.\n")
    assert "the script failed" not in ran.err


def test_a_module_is_run_as_python_does(saved: Pullback, folder: Path) -> None:
    """With -m relative imports work; the module's arguments are its own."""
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "other.py").write_text("COUNT = 6\n")
    (folder / "package" / "train.py").write_text(
        "import sys, torch\nfrom .other import COUNT\n"
        "if __name__ == '__main__':\n    print(sys.argv[1:])\n"
        "    torch.ones(COUNT, requires_grad=True).exp().sum().backward()\n"
    )
    ran = saved("-m", "package.train", "--json")
    assert (ran.code, ran.err) == (0, "['--json']\n")
    assert ran.out.startswith("The graph keeps 24 bytes")
    ran = saved("package/train.py")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("a script in a package is run as a module: pullback saved -m package.module\n")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.inside", "json"])
def test_a_module_that_is_not_there_is_named(saved: Pullback, name: str) -> None:
    """Nothing was run, so nothing is said of a script; a package without a __main__ can't be run either."""
    ran = saved("-m", name)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"pullback: {name} is no module that python -m could run from here\n"


def test_a_folder_is_no_script(saved: Pullback, folder: Path) -> None:
    """The error says how to name a module."""
    (folder / "package").mkdir()
    ran = saved("package")
    assert (ran.code, ran.err) == (
        2,
        "pullback: package is a folder; name a script, or a module: pullback saved -m package.module\n",
    )


@pytest.mark.parametrize("content", [b"x = '\xff\xfe'\n", b"\x00\x01\x02", b"\x7fELF\x02\x01\x01\x00"])
def test_a_file_that_is_no_source_is_an_error(saved: Pullback, folder: Path, content: bytes) -> None:
    """It is Python's own, and no traceback of pullback's."""
    (folder / "script.py").write_bytes(content)
    ran = saved("script.py")
    assert (ran.code, ran.out) == (2, "")
    assert "SyntaxError" in ran.err
    assert "memory/script.py" not in ran.err


def test_a_depth_sums_modules_up(saved: Pullback) -> None:
    """The table by module has the first names of the paths."""
    ran = saved("--depth", "1", "train.py", train=TRAIN)
    assert "       256 B   94%  Sequential\n" in ran.out
    with pytest.raises(SystemExit):
        saved("--depth", "0", "train.py")


def test_help_says_whose_options_are_whose(capsys: pytest.CaptureFixture[str]) -> None:
    """All that follows the script goes to the script."""
    with pytest.raises(SystemExit):
        main(("saved", "--help"))
    text = " ".join(capsys.readouterr().out.split())
    assert "Options of this command stand before SCRIPT; those after it go to the script." in text
    assert "SCRIPT is a module, as in python -m" in text


ODD = {
    "exits with a text": ("import sys\nsys.exit('no data')\n", 2, "no data\npullback: the script ended before"),
    "ends its process": ("import os\nos._exit(0)\n", 2, "the script ended its process before it called backward"),
    "leaves a thread behind": (
        "import threading, torch\nthreading.Thread(target=threading.Event().wait).start()\n"
        "torch.ones(5, requires_grad=True).exp().sum().backward()\n",
        0,
        "",
    ),
    "closes its output": (
        "import sys, torch\nsys.stdout.close()\ntorch.ones(5, requires_grad=True).exp().sum().backward()\n",
        0,
        "",
    ),
    "catches everything": (
        "import torch\ntry:\n    torch.ones(5, requires_grad=True).exp().sum().backward()\nexcept:\n    pass\n"
        "torch.ones(50, requires_grad=True).exp().sum().backward()\n",
        0,
        "",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_scripts_end_all_the_same(saved: Pullback, kind: str) -> None:
    """The ledger is of the first step, whatever else a script does."""
    source, code, said = ODD[kind]
    ran = saved("script.py", script=source)
    assert ran.code == code
    assert said in ran.err
    assert ran.out.startswith("The graph keeps 20 bytes" if code == 0 else "")


def test_a_plot_lies_where_the_command_was_given(saved: Pullback, folder: Path) -> None:
    """Even if the script goes to another folder."""
    (folder / "elsewhere").mkdir()
    source = "import os, torch\nos.chdir('elsewhere')\ntorch.ones(5, requires_grad=True).exp().sum().backward()\n"
    assert saved("--plot", "bars.svg", "script.py", script=source).code == 0
    assert (folder / "bars.svg").is_file()
