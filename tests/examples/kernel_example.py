"""What the tests of examples/kernel share: its modules, runs of Python in a folder of kernels, and copies of it."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "kernel"
sys.path.insert(0, str(FOLDER))  # as Python does for a script; the files import each other

kernel_build = importlib.import_module("kernel_build")
kernel_report = importlib.import_module("kernel_report")
module = importlib.import_module("softcap")

NO_COMPILER = kernel_build.missing_tool() != ""
NO_NVCC = kernel_build.find_nvcc() is None
NO_TRITON = find_spec("triton") is None or find_spec("numpy") is None
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
needs_compiler = pytest.mark.skipif(NO_COMPILER, reason="building C++ needs a compiler, ninja and setuptools")
needs_nvcc = pytest.mark.skipif(NO_NVCC, reason="compiling CUDA needs nvcc")
needs_triton = pytest.mark.skipif(NO_TRITON, reason="the twin needs Triton and numpy")


def run(*command: str, folder: Path = FOLDER, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder of kernels, with pullback's sources at hand."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def copied(folder: Path, to: Path) -> Path:
    """Copy a folder of kernels without what was made in it."""
    return Path(shutil.copytree(folder, to, ignore=shutil.ignore_patterns("__pycache__", "build")))


def broken(tmp_path: Path, file: str, old: str, new: str) -> Path:
    """Return a copy of the folder in which one file says something else."""
    folder = copied(FOLDER, tmp_path / "kernel")
    text = (folder / file).read_text("utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new), "utf-8")
    return folder
