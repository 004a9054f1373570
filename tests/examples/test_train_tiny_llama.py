"""The small Llama learns the same with pullback's operations as with PyTorch's, and keeps less."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples import train_tiny_llama as example

ROOT = Path(__file__).resolve().parents[2]
SIZES = example.Sizes(batch=2, tokens=64, hidden=32, wide=88, heads=2, layers=2, vocabulary=1024)


@pytest.fixture(scope="module")
def runs() -> dict[str, example.Run]:
    """Three steps of each kit at a small size."""
    return example.train(SIZES, 3)


def test_losses_are_the_same(runs: dict[str, example.Run]) -> None:
    """To rounding, at each step, and they fall."""
    assert example.furthest(runs) < 1e-5
    assert all(run.losses[-1] < run.losses[0] for run in runs.values())


def test_weights_are_the_same(runs: dict[str, example.Run]) -> None:
    """After three steps each weight is plain PyTorch's, to what AdamW makes of rounding."""
    plain, *others = (run.model.state_dict() for run in runs.values())
    for other in others:
        torch.testing.assert_close(other, plain, rtol=1e-3, atol=1e-4)


def test_less_is_kept(runs: dict[str, example.Run]) -> None:
    """With the operations at most 0.75 of the bytes even at this size, and with recompute at most 0.2."""
    plain, lean, leanest = (run.saved for run in runs.values())
    assert lean < 0.75 * plain
    assert leanest < 0.2 * plain


def test_text_is_that_of_the_standard_library() -> None:
    """The numbers are below the vocabulary's size, the most frequent pieces come first, and the rest is 0."""
    tokens = example.text(64, characters=200_000)
    counts = torch.bincount(tokens, minlength=64)
    assert len(counts) == 64
    assert bool((counts[1:-1] >= counts[2:]).all())
    assert counts[0] > 0


def test_it_prints_a_table(tmp_path: Path) -> None:
    """Run as a program, it prints a row for each kit; without matplotlib a plot is refused in a plain sentence."""
    command = [sys.executable, "examples/train_tiny_llama.py", "--quick"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert [line.split(" | ")[0] for line in ran.stdout.splitlines()[2:5]] == [f"| {name}" for name in example.KITS]
    assert "The losses differ by" in ran.stdout
    without = "import sys; sys.modules['matplotlib'] = None; from examples import train_tiny_llama as e; "
    code = f"{without}from pathlib import Path; e.plot({{}}, Path({str(tmp_path / 'x.png')!r}))"
    refused = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.strip() == (
        "A plot needs matplotlib: install it, or pullback with its extra: pullback[plot]."
    )
