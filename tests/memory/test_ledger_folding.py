"""Rows that differ in a number alone are one row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pullback
from pullback.memory.folding import Row, folded, starred
from pullback.memory.ledger import Ledger


class Block(nn.Module):
    """A part with parts."""

    def __init__(self) -> None:
        """Make the parts."""
        super().__init__()
        self.first, self.second = nn.Tanh(), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x).exp())
        return y


class Model(nn.Module):
    """Blocks alike, and something beside them."""

    def __init__(self) -> None:
        """Make the parts."""
        super().__init__()
        self.blocks, self.last = nn.ModuleList([Block() for _ in range(20)]), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.last(x)
        return y


@pytest.fixture
def ledger() -> Ledger:
    """Return the ledger of a step of the model."""
    with pullback.saved_memory() as ledger:
        y = Model()(torch.randn(100, requires_grad=True))
    assert y.requires_grad
    return ledger


def test_numbered_siblings_of_a_kind_are_one_row(ledger: Ledger) -> None:
    """The row has the sum, and says of how many."""
    text = str(ledger)
    assert "     7.8 KiB   33%  Model.blocks.*.first (20)\n" in text
    assert "       400 B    2%  Model.last\n" in text
    assert len(ledger.by_module()) == 61  # in a program, each by itself


def test_equal_entries_are_one_row(ledger: Ledger) -> None:
    """What is the same in twenty blocks is said once, with the number of times."""
    assert "       400 B × 20  TanhBackward0.result in Model.blocks.*.first  float32[100], also Exp" not in str(ledger)
    assert "       400 B × 20  TanhBackward0.result in Model.blocks.*.first  float32[100]\n" in str(ledger)


def test_a_depth_sums_modules_up(ledger: Ledger) -> None:
    """As by_module(depth) does, and in the text."""
    assert ledger.by_module(depth=1) == {"Model": ledger.total}
    assert "Model.blocks (" not in ledger.report()
    assert "    23.4 KiB   98%  Model.blocks\n" in ledger.report(depth=2)


def test_siblings_of_several_kinds_stay_apart() -> None:
    """The first block of a model often has more; layers of a sequence do different things."""
    sums = {"M.l.0": 5, "M.l.0.a": 1, "M.l.1": 5, "M.l.1.a": 2, "M.l.2": 7, "M.l.3": 7, "M.l.4": 9, "M": 3}
    assert folded(sums) == [
        Row("M.l.[2,3]", 14, 2),
        Row("M.l.[0,1]", 10, 2),
        Row("M.l.4", 9, 1),
        Row("M.l.[0,1].a", 3, 2),
        Row("M", 3, 1),
    ]


def test_numbers_within_numbers_are_folded() -> None:
    """From the outside in."""
    sums = {f"M.{outer}.experts.{inner}": 4 for outer in range(3) for inner in range(5)}
    assert folded(sums) == [Row("M.*.experts.*", 60, 15)]


def test_a_gap_between_numbers_shows() -> None:
    """A star would claim siblings that keep nothing."""
    assert folded({"S.1": 4, "S.3": 4, "S.5": 4, "S.7": 4}) == [Row("S.[1,3,5,…]", 16, 4)]
    assert folded({}) == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [("Model.blocks.12.norm", "Model.blocks.*.norm"), ("3", "3"), ("A.1.2", "A.*.*"), ("A.b1.c", "A.b1.c"), ("", "")],
)
def test_numbers_in_a_path_become_stars(path: str, expected: str) -> None:
    """Whole names alone, and not the first."""
    assert starred(path) == expected
