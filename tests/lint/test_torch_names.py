"""The list of torch's names: what it holds, and what the linter makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pullback.lint import tensors
from tests.lint.write_torch_names import MODULES, TARGET, names_of, parsed, written

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_the_installed_torch_is_there(module: str) -> None:
    """`python -m tests.lint.write_torch_names` adds those of a new release."""
    if f"torch=={torch.__version__.partition('+')[0]}\n" not in CONSTRAINTS.read_text("utf-8"):
        pytest.skip(f"the list was made for another release than {torch.__version__}")
    public = {name for name in names_of(module) if not name.startswith("_")}
    assert public - tensors.torch_names()[module] == set()


def test_names_that_are_gone_are_there() -> None:
    """Of an older 2.x, so that code for that release isn't scolded."""
    assert "is_ort" in tensors.torch_names()["torch.Tensor"]
    assert "traceable" in tensors.torch_names()["torch.autograd.function"]


def test_the_file_is_as_its_script_writes_it() -> None:
    """So that a run for a new release changes nothing but names."""
    text = TARGET.read_text("utf-8")
    assert written(parsed(text)) == text


@pytest.mark.parametrize(
    ("name", "writes"),
    [("mul_", True), ("zero_", True), ("copy_", True), ("mul", False), ("requires_grad_", False), ("made_up_", False)],
)
def test_methods_that_write(name: str, writes: bool) -> None:
    """Those of tensors with one underscore at the end, but for flags."""
    assert tensors.is_in_place(name) is writes


@pytest.mark.parametrize(
    ("dotted", "gives"),
    [
        ("torch.zeros", True),
        ("torch.mul", True),
        ("torch.nn.functional.relu", True),
        ("torch.linalg.solve", True),
        ("torch.no_grad", False),
        ("torch.device", False),
        ("torch.cuda.synchronize", False),
        ("torch.distributed.all_reduce", False),
        ("numpy.zeros", False),
    ],
)
def test_functions_that_give_tensors(dotted: str, gives: bool) -> None:
    """Those of which it is known."""
    assert tensors.gives_tensor(dotted) is gives


@pytest.mark.parametrize(
    ("name", "tells"), [("new_empty", True), ("unsqueeze", True), ("copy", False), ("items", False)]
)
def test_methods_that_tell_a_tensor(name: str, tells: bool) -> None:
    """What lists, dicts, arrays or modules have as well tells nothing."""
    assert (name in tensors.telling_methods()) is tells
