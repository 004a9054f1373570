"""The ledger as text, as JSON and as a picture."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pullback
from pullback.memory.ledger import FORMAT, Ledger
from pullback.memory.text import size
from tests.memory.models import made


def a_ledger(name: str = "mlp") -> Ledger:
    """Return the ledger of a step of one of the models."""
    model, inputs = made(name)
    with pullback.saved_memory() as ledger:
        loss = model(*inputs)
    assert loss.requires_grad
    return ledger


def test_the_text_says_what_is_kept_by_whom() -> None:
    """Totals first, then tables by module and operation, the largest entries, and what could be done about them."""
    x, w = torch.randn(100), torch.randn(100, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = torch.nn.Sigmoid()((w * x).exp())[:10].sin()
    lines = str(ledger).splitlines()
    assert lines[0] == "The graph keeps 800 bytes in 2 pieces."
    assert lines[1] == "Beside them it holds on to 400 B of inputs, which are alive anyway."
    assert "       400 B   50%  Sigmoid" in lines
    assert "       400 B   50%  ExpBackward0" in lines
    assert "       400 B  ExpBackward0.result  float32[100]" in lines
    assert "       400 B  SigmoidBackward0.result in Sigmoid  float32[100], also SinBackward0.self" in lines
    assert y.requires_grad


def test_long_tables_are_summed_up() -> None:
    """A table has a dozen lines at most; the last one has what is left."""
    x: Tensor = torch.randn(10, requires_grad=True)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Tanh()) for _ in range(20)])
    for number, (name, part) in enumerate([*model.named_children()]):
        delattr(model, name)
        model.add_module(f"layer{number}", part)
    with pullback.saved_memory() as ledger:
        y = model(x)
    text = str(ledger)
    assert "       360 B   45%  9 others" in text
    assert len(text.splitlines()) < 60
    assert y.requires_grad


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (7 << 40, "7.0 TiB")],
)
def test_sizes_read_well(count: int, text: str) -> None:
    """Bytes are given in the unit in which they are a small number."""
    assert size(count) == text


def test_json_has_everything() -> None:
    """JSON has a version, the sums, and of each entry all that the object has."""
    ledger = a_ledger("custom")
    data = json.loads(ledger.to_json())
    assert data["format"] == FORMAT
    assert (data["total"], data["recomputable"]) == (ledger.total, ledger.recomputable)
    assert data["by_operation"] == ledger.by_operation()
    assert [entry["operation"] for entry in data["entries"]] == [entry.operation for entry in ledger.entries]
    assert [entry["bytes"] for entry in data["parameters"]] == [entry.bytes for entry in ledger.parameters]
    assert [entry["bytes"] for entry in data["inputs"]] == [entry.bytes for entry in ledger.inputs]
    expected = {"bytes", "operation", "argument", "module", "call", "how", "shape", "dtype", "device", "pinned"}
    assert data["entries"][0].keys() == expected | {"recompute", "also"}
    also = [holder for entry in data["entries"] for holder in entry["also"]]
    assert also[0].keys() == {"operation", "argument", "module", "how", "shape", "dtype", "bytes", "call"}


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_a_plot_is_drawn(tmp_path: Path, form: str) -> None:
    """Bars are drawn in the format that the file's name says, with no window and none of pyplot's state."""
    path = tmp_path / f"ledger.{form}"
    a_ledger("llama").plot(path)
    head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[form]
    assert path.read_bytes().startswith(head)
    if form == "svg":
        assert "matplotlib.pyplot" not in sys.modules


def test_a_plot_of_nothing_is_drawn(tmp_path: Path) -> None:
    """Without a graph there are no bars."""
    with pullback.saved_memory() as ledger:
        pass
    ledger.plot(tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 0


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra: who lacks it is told in a sentence."""
    ledger = a_ledger()
    monkeypatch.delitem(sys.modules, "pullback.memory.plot", raising=False)
    monkeypatch.delattr(pullback.memory, "plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"install it, or pullback with its extra: pullback\[plot\]"):
        ledger.plot("nowhere.png")


def test_a_torch_that_shows_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the private names that it stands on behave otherwise, there is an error and no wrong ledger."""
    monkeypatch.setattr("pullback.memory.ledger.usable_in_ledger", lambda: False)
    with pytest.raises(RuntimeError, match="the nodes of the installed PyTorch don't show what they keep"):
        pullback.saved_memory()


def test_a_ledger_can_be_copied_and_pickled() -> None:
    """It is numbers and text, and goes to another process as such."""
    x = torch.randn(10, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = x.exp()
    for other in (pickle.loads(pickle.dumps(ledger)), copy.deepcopy(ledger)):
        assert str(other) == str(ledger)
        assert other.entries == ledger.entries
        with pytest.raises(RuntimeError, match="a ledger is of one block"), other:
            pass
    del y
