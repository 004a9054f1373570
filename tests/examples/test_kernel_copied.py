"""The recipe of docs/kernels.md: a copy of the folder becomes another operation's, without a number, CUDA or a twin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.kernel_example import FOLDER as EXAMPLE
from tests.examples.kernel_example import ROOT, copied, needs_compiler, run

pytestmark = [needs_compiler, pytest.mark.timeout(300)]

HEADER = """\
#pragma once
#include <cmath>
template <typename T>
inline T value(T x) {
  return x * std::tanh(std::log1p(std::exp(x)));
}
template <typename T>
inline T derivative(T x) {
  const T t = std::tanh(std::log1p(std::exp(x)));
  return t + x * (T(1) - t * t) / (T(1) + std::exp(-x));
}
"""
MODULE = """\
import sys
from pathlib import Path

import kernel_build
import torch
from elementwise import batched, wide
from torch import library

import pullback

FOLDER = Path(__file__).resolve().parent
library.define("pullback_kernel::mish", "(Tensor x) -> Tensor")
library.define("pullback_kernel::mish_backward", "(Tensor grad_output, Tensor x) -> Tensor")
library.register_fake("pullback_kernel::mish", lambda x: x.new_empty(x.shape))
library.register_fake("pullback_kernel::mish_backward", lambda g, x: x.new_empty(x.shape))
operators = torch.ops.pullback_kernel
library.register_vmap("pullback_kernel::mish", batched(operators.mish))
library.register_vmap("pullback_kernel::mish_backward", batched(operators.mish_backward))


def load():
    kernel_build.load_cpp(FOLDER / "mish.cpp")


def at_first(x):
    load()
    return operators.mish(x)


def backward_at_first(g, x):
    load()
    return operators.mish_backward(g, x)


library.impl("pullback_kernel::mish", "default", at_first)
library.impl("pullback_kernel::mish_backward", "default", backward_at_first)


class Mish(pullback.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return operators.mish(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            return operators.mish_backward(g, x)

    @staticmethod
    def reference(x):
        return torch.nn.functional.mish(x.to(wide(x))).to(x.dtype)

    @staticmethod
    def samples():
        load()
        yield (torch.randn(4, 5, dtype=torch.float64, requires_grad=True),)


if __name__ == "__main__":
    from kernel_report import main

    sys.exit(main(Mish))
"""


def renamed(text: str) -> str:
    """Return softcap's loops as Mish's: its name, and no number."""
    for old, new in ((", double cap", ""), (", static_cast<W>(cap)", ""), (", cap", ""), ("softcap", "mish")):
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example under a path with spaces, turned into Mish, without CUDA and without a twin."""
    made = tmp_path_factory.mktemp("another place") / "mish of my own"
    made.mkdir()
    for name in ("elementwise.h", "elementwise.py", "kernel_build.py", "kernel_report.py"):
        shutil.copy(EXAMPLE / name, made / name)
    (made / "mish.h").write_text(HEADER, "utf-8")
    (made / "mish.py").write_text(MODULE, "utf-8")
    (made / "mish.cpp").write_text(renamed((EXAMPLE / "softcap.cpp").read_text("utf-8")), "utf-8")
    return made


def test_the_report_says_what_there_is(folder: Path) -> None:
    """The C++ is proved; of CUDA and Triton the lines say that the example has none. No other file was changed."""
    result = run("mish.py", folder=folder)
    assert result.stdout.splitlines() == [
        "cpp: passed",
        "cuda: not run (no CUDA source)",
        "triton: not run (no Triton twin)",
    ], result.stdout + result.stderr
    assert result.returncode == 0


def test_files_that_are_named_and_were_dropped_are_missed_by_name(folder: Path) -> None:
    """Where the call still names the sources that the copy lacks, the lines say which."""
    call = "import kernel_report, pathlib; path = pathlib.Path.cwd()"
    call += "; print(kernel_report.cuda_part(None, (), path / 'mish.cu'), kernel_report.triton_part(path / 'twin.py'))"
    result = run("-c", call, folder=folder)
    assert result.stdout == "cuda: not run (no mish.cu) triton: not run (no twin.py)\n", result.stderr


def test_it_writes_into_its_own_folder(folder: Path) -> None:
    """What is compiled lies in the copy's folder, nothing half-built with it, and nothing lies in the folder above."""
    run("-c", "import mish; mish.load()", folder=folder)
    assert [path.name[:9] for path in (folder / "build").iterdir()] == ["mish_cpp_"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_both_examples_run_in_one_process(folder: Path) -> None:
    """Another operation's sources are found though the first one's neighbours of the same names were imported."""
    call = f"import sys, torch; sys.path.append({str(folder)!r}); import softcap, mish"
    call += "; x = torch.ones(3); print(softcap.softcap(x).shape, mish.Mish.apply(x).shape)"
    result = run("-c", call)
    assert result.stdout == "torch.Size([3]) torch.Size([3])\n", result.stderr


def test_the_check_shows_the_compilers_first_error(folder: Path, tmp_path: Path) -> None:
    """PB121 has the line of the compiler that says what is wrong, and a remedy that fits."""
    wrong = copied(folder, tmp_path / "wrong")
    (wrong / "mish.h").write_text(HEADER.replace("std::log1p(", "std::log2p("), "utf-8")
    result = run("-m", "pullback", "check", "mish.py", folder=wrong)
    said = " ".join(result.stdout.split())
    assert result.returncode == 1
    assert "PB121" in said
    assert "samples() raised BuildError: mish.cpp does not compile: " in said
    assert "mish.h:5:" in said.partition(" | ")[0]
    assert "log2p" in said
    assert "Make samples() run by itself: mend what raised" in said
    assert "must yield tuples" not in said


def test_several_processes_build_at_once(folder: Path, tmp_path: Path) -> None:
    """Each finds a whole library, and one is left."""
    copy = copied(folder, tmp_path / "copy")
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", "import torch, mish; print(mish.Mish.apply(torch.zeros(1)).tolist())"]
    running = [
        subprocess.Popen(command, cwd=copy, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [process.communicate() for process in running]
    assert [out for out, _ in results] == ["[0.0]\n", "[0.0]\n"], results
    assert len(list((copy / "build").iterdir())) == 1


def test_a_header_that_changed_is_compiled_anew(folder: Path, tmp_path: Path) -> None:
    """Nobody has to list headers: the next process sees the change in any that lies beside the source."""
    copy = copied(folder, tmp_path / "copy")
    (copy / "scale.h").write_text("#define SCALE 2\n", "utf-8")
    (copy / "mish.h").write_text('#include "scale.h"\n' + HEADER.replace("return x *", "return SCALE * x *"), "utf-8")
    command = ("-c", "import torch, mish; print(mish.Mish.apply(torch.ones(1, dtype=torch.float64)).item())")
    twice = float(run(*command, folder=copy).stdout)
    (copy / "scale.h").write_text("#define SCALE 4\n", "utf-8")
    assert float(run(*command, folder=copy).stdout) == pytest.approx(2 * twice)
