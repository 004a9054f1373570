"""What checkpoint and recompute keep to run again, in the words of whoever wrote the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import pullback
from pullback.memory.ledger import Ledger


class Block(nn.Module):
    """A residual block, whose norm comes first."""

    def __init__(self) -> None:
        """Make the parts."""
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        y: Tensor = x + self.linear(self.norm(x)) * scale
        return y


class Model(nn.Module):
    """Blocks that are run again, by one means or the other."""

    def __init__(self, recomputes: bool) -> None:
        """Make the parts."""
        super().__init__()
        self.recomputes = recomputes
        made = [Block(), Block()]
        self.blocks = nn.ModuleList(map(pullback.recompute, made) if recomputes else made)

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        for block in self.blocks:
            scale = torch.ones(8)
            again = block if self.recomputes else lambda *a, b=block, **k: checkpoint(b, *a, use_reentrant=False, **k)
            x = again(x, scale=scale)
        return x


def noisy(x: Tensor, *, parts: dict[str, Tensor]) -> Tensor:
    """Return something that needs its arguments again."""
    return torch.dropout(x, 0.5, True).exp() * parts["a"].exp()


def ledger_of(step: Any, *arguments: Any) -> Ledger:
    """Return the ledger of a call."""
    with pullback.saved_memory() as ledger:
        y = step(*arguments)
    assert y.requires_grad
    return ledger


@pytest.mark.parametrize("kind", ["recompute", "checkpoint"])
def test_arguments_and_random_state_are_named(kind: str) -> None:
    """Each is what was given to which block, and is charged to the block, not to the first module within."""
    x = torch.randn(4, 8, requires_grad=True)
    ledger = ledger_of(Model(kind == "recompute"), x)
    names = {str(entry.first) for entry in ledger.entries}
    for number in range(2):
        call = f"{kind}(Model.blocks.{number})"
        assert {f"argument 0 of {call}", f"argument scale of {call}"} <= names
    assert f"random state of {kind}(Model.blocks.0)" in names
    assert {entry.module for entry in ledger.entries} == {"Model.blocks.0", "Model.blocks.1"}
    assert ledger.entries[0].first.call == "Model.blocks.0"
    assert ledger.by_operation() == {kind: ledger.total}
    for hidden in ("_inputs", "leaves", "frame", "saved_args", "_conditions", "fwd_cpu_state", "rerun"):
        assert hidden not in str(ledger)


@pytest.mark.parametrize("kind", ["recompute", "checkpoint"])
def test_a_function_is_named_and_so_is_what_lies_in_its_arguments(kind: str) -> None:
    """Of a nested argument the name of the argument is told; a keyword by its name."""

    def step(x: Tensor) -> Tensor:
        parts = {"a": x * 3}
        if kind == "recompute":
            return pullback.recompute(noisy)(x * 2, parts=parts)
        return checkpoint(noisy, x * 2, parts=parts, use_reentrant=False)

    names = [str(entry.first) for entry in ledger_of(step, torch.randn(9, requires_grad=True)).entries]
    assert f"argument 0 of {kind}(noisy)" in names
    assert next(name for name in names if name.startswith("argument parts")).endswith(f" of {kind}(noisy)")
    assert len(names) == len([name for name in names if name.endswith(f" of {kind}(noisy)")])


def test_arguments_that_other_hooks_have_packed_keep_their_names() -> None:
    """Under save_on_cpu an argument is a copy, and still an argument."""
    x, block = torch.randn(4, 8, requires_grad=True), pullback.recompute(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    with pullback.saved_memory() as ledger, save_on_cpu():
        y = block(x * 2)
    assert "argument 0 of recompute(Sequential)" in [str(entry.first) for entry in ledger.entries]
    assert y.requires_grad


def test_an_entry_is_one_line() -> None:
    """Size, operation, argument, module, form, and who else keeps it."""
    model, x = nn.Sequential(nn.Sigmoid()), torch.randn(400, requires_grad=True)
    ledger = ledger_of(lambda: model(x * 2).sin())
    assert [str(entry) for entry in ledger.entries] == [
        "1.6 KiB  SigmoidBackward0.result in Sequential.0  float32[400], also SinBackward0.self"
    ]


def test_a_name_with_a_newline_stays_on_its_line() -> None:
    """Names are strings of the author's; what doesn't print is written as an escape."""
    model = nn.Module()
    model.add_module("odd\nname", nn.Tanh())
    model.forward = lambda x: getattr(model, "odd\nname")(x)
    ledger = ledger_of(model, torch.randn(4, requires_grad=True))
    assert [*ledger.by_module()] == ["Module.odd\\nname"]
