"""``pullback env``: what pullback runs on."""

from __future__ import annotations

import sys

import pytest
import torch

import pullback.torch_private
from pullback import __version__
from tests.cli.conftest import Pullback


def test_versions_and_machine_are_named(pullback: Pullback) -> None:
    """The versions, processor, threads and compiler are printed, one a line, and the exit code is 0."""
    ran = pullback("env")
    facts = dict(line.split(":", 1) for line in ran.out.splitlines())
    assert ran.code == 0
    assert facts["pullback"].strip() == __version__
    assert facts["torch"].strip() == torch.__version__
    assert facts["Python"].split()[0] == sys.version.split()[0]
    assert facts["threads"].split()[0] == str(torch.get_num_threads())
    assert {"CPU", "C++ compiler", "CUDA", "private names"} <= facts.keys()


def test_private_names_that_behave_otherwise_are_listed(pullback: Pullback, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each private name that isn't as expected is named with what is wrong."""
    seen = (("torch.one", True, "as expected"), ("torch.two", False, "missing"))
    monkeypatch.setattr(pullback_private(), "status", lambda: seen)
    out = pullback("env").out
    assert "1 of 2 as expected" in out
    assert "torch.two: missing" in out
    assert "torch.one" not in out


def test_without_torch_the_rest_is_printed(pullback: Pullback, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without torch still gets its facts, and how to get torch."""
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = pullback("env")
    assert ran.code == 0
    assert "install your own build, or pullback[torch]" in ran.out
    assert "CPU" in ran.out


def test_a_compiler_that_is_not_there_is_said_to_be_missing(
    pullback: Pullback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CXX names is looked for, and nothing else."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "not found (CXX=no-such-compiler)" in pullback("env").out


def pullback_private() -> object:
    """The module of private names; the fixture of the same name hides the package."""
    return sys.modules["pullback.torch_private"]


assert pullback.torch_private  # imported, so that it can be replaced
