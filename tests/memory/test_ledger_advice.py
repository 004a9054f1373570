"""What would free memory: each line names bytes that are gone once what it says is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pullback
from pullback import ops
from pullback.memory.advice import RECOMPUTE, TABLE, Advice
from pullback.memory.ledger import Ledger

Step = Callable[[Tensor, Tensor], Tensor]

ROWS, WIDTH, CLASSES = 64, 64, 96
LEFT, RIGHT, DOWN, VOCABULARY = (
    torch.randn(WIDTH, columns, requires_grad=True) for columns in (WIDTH, WIDTH, WIDTH, CLASSES)
)
SCALE, BIAS = torch.ones(WIDTH, requires_grad=True), torch.zeros(CLASSES, requires_grad=True)
TARGET = torch.randint(CLASSES, (ROWS,))


def rms_norm(x: Tensor) -> Tensor:
    """Return the norm as models spell it out."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * SCALE


def with_logits(loss: Callable[[Tensor], Tensor]) -> Step:
    """Return a step whose logits are kept by something else as well."""

    def step(a: Tensor, b: Tensor) -> Tensor:
        logits = a @ VOCABULARY
        return loss(logits) + logits.pow(2).mean()

    return step


PAIRS: dict[tuple[str, ...], tuple[Step, Step]] = {
    ("Silu", "Mul"): (lambda a, b: (F.silu(a) * b) @ DOWN, lambda a, b: ops.swiglu(a, b) @ DOWN),
    ("Gelu", "Mul"): (
        lambda a, b: (b * F.gelu(a, approximate="tanh")) @ DOWN,
        lambda a, b: ops.geglu(a, b) @ DOWN,
    ),
    ("Pow", "Mean", "Rsqrt", "Mul"): (
        lambda a, b: rms_norm(a) @ DOWN + b,
        lambda a, b: ops.rms_norm(a, (WIDTH,), SCALE, 1e-6) @ DOWN + b,
    ),
    ("Mul", "Add"): (lambda a, b: F.dropout(a, 0.3) + b, lambda a, b: ops.dropout_add(a, b, 0.3)),
    ("NativeDropout", "Add"): (
        lambda a, b: torch.native_dropout(a, 0.3, True)[0] + b,
        lambda a, b: ops.dropout_add(a, b, 0.3),
    ),
    ("Relu",): (lambda a, b: F.relu(a) + b, lambda a, b: ops.clipped_relu(a, float("inf")) + b),
    ("Hardtanh",): (lambda a, b: F.relu6(a) + b, lambda a, b: ops.clipped_relu(a, 6) + b),
    ("Clamp",): (lambda a, b: a.clamp(0, 2) + b, lambda a, b: ops.clipped_relu(a, 2) + b),
    ("Mm", "LogSoftmax", "NllLoss"): (
        lambda a, b: F.cross_entropy((a + b) @ VOCABULARY, TARGET),
        lambda a, b: ops.linear_cross_entropy(a + b, VOCABULARY.t(), TARGET, form="recompute"),
    ),
    ("Addmm", "LogSoftmax", "NllLoss"): (
        lambda a, b: F.cross_entropy(F.linear(a + b, VOCABULARY.t(), BIAS), TARGET),
        lambda a, b: ops.linear_cross_entropy(a + b, VOCABULARY.t(), TARGET, linear_bias=BIAS, form="recompute"),
    ),
    ("LogSoftmax", "NllLoss"): (
        with_logits(lambda logits: F.cross_entropy(logits, TARGET)),
        with_logits(lambda logits: ops.cross_entropy(logits, TARGET)),
    ),
}
"""For each row of the table a step as PyTorch has it, and what the row says instead."""


def measured(step: Step) -> Ledger:
    """Return the ledger of a step on two products."""
    x = torch.randn(ROWS, WIDTH)
    with pullback.saved_memory() as ledger:
        y = step(x @ LEFT, x @ RIGHT)
    assert y.requires_grad
    return ledger


@pytest.mark.parametrize("row", TABLE, ids=", ".join)
def test_the_bytes_of_a_line_are_freed(row: tuple[str, ...]) -> None:
    """What stands in the table frees what the line says, to the byte or more."""
    before, after = PAIRS[row]
    plain = measured(before)
    (line,) = [advice for advice in plain.advice if advice.instead_of == row]
    assert line.use == TABLE[row]
    assert 0 < line.bytes <= plain.total - measured(after).total
    assert f"{line.use} for {', '.join(row)} in the code outside of modules" in str(plain)


@pytest.mark.parametrize("row", TABLE, ids=", ".join)
def test_what_has_been_done_is_not_advised(row: tuple[str, ...]) -> None:
    """With the operation in its place, the line is gone."""
    assert row not in [advice.instead_of for advice in measured(PAIRS[row][1]).advice]


SILENT: dict[str, Step] = {
    "silu(a) read twice": lambda a, b: (lambda s: (s * b) @ DOWN + s.exp())(F.silu(a)),
    "relu that the next product keeps": lambda a, b: F.relu(a) @ DOWN,
    "clamp that begins elsewhere": lambda a, b: a.clamp(-1, 2) + b,
    "clamp of what is kept anyway": lambda a, b: a.clamp(0, 2) + a.exp() * a.sin(),
    "dropout without a sum": lambda a, b: F.dropout(a.exp(), 0.3).sin(),
    "cross entropy of logits that nothing keeps": lambda a, b: F.cross_entropy((a @ VOCABULARY) + 0.0, TARGET),
    "log_softmax with another reader": lambda a, b: (lambda p: F.nll_loss(p, TARGET) + p.exp().sum())(
        F.log_softmax(a @ VOCABULARY, -1)
    ),
    "a norm without a weight": lambda a, b: a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6) + b,
    "a norm of something else": lambda a, b: b * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6) * SCALE,
}


@pytest.mark.parametrize("name", SILENT)
def test_what_is_not_sure_has_no_line(name: str) -> None:
    """Where a pattern isn't there in full, nothing is claimed for it."""
    assert [advice for advice in measured(SILENT[name]).advice if advice.use != RECOMPUTE] == []


def test_for_the_rest_there_is_recompute() -> None:
    """It names what to run again, and where; the bytes are less the random state that a call of it keeps."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.out(torch.tanh(self.norm(x)))
            return y

    def ledger_of(model: nn.Module) -> Ledger:
        with pullback.saved_memory() as ledger:
            y = model(torch.randn(2 * ROWS, WIDTH))
        assert y.requires_grad
        return ledger

    first = nn.Linear(WIDTH, WIDTH)
    plain = ledger_of(nn.Sequential(first, Block()))
    (line,) = plain.advice
    wide = 2 * ROWS * WIDTH * 4
    state = torch.get_rng_state().nbytes
    assert line == Advice(RECOMPUTE, ("NativeLayerNorm", "Tanh"), "Sequential.1", wide - state)
    assert str(line) == "pullback.recompute around NativeLayerNorm, Tanh and what reads that, in Sequential.1"
    assert plain.total - ledger_of(nn.Sequential(first, pullback.recompute(Block()))).total >= line.bytes


def test_blocks_alike_are_one_line_and_there_are_five() -> None:
    """The same thing in numbered siblings is said once; the text has the five lines of the most bytes."""

    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.silu(x @ LEFT) * (x @ RIGHT)

    blocks = nn.Sequential(*(Gate() for _ in range(3)))
    ledger = measured(lambda a, b: blocks(a))
    assert [advice.module for advice in ledger.advice if advice.use == "ops.swiglu"] == [
        f"Sequential.{number}" for number in range(3)
    ]
    assert "    48.0 KiB  ops.swiglu for Silu, Mul in Sequential.*\n" in str(ledger) + "\n"
    names = [chr(ord("a") + number) for number in range(8)]
    many = nn.ModuleDict({name: Gate() for name in names})
    ledger = measured(lambda a, b: sum((gate(a) for gate in many.values()), b))
    assert len([advice for advice in ledger.advice if advice.use == "ops.swiglu"]) == 8
    lines = str(ledger).partition("what would free it:\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) == 5
