"""benchmarks/recompute.py times the three ways, and compares overheads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import recompute as benchmark

ROOT = Path(__file__).parents[2]


def test_the_benchmark_runs() -> None:
    """A quick run prints a row for each function, forward alone and with backward, and where it was measured."""
    command = [sys.executable, "benchmarks/recompute.py", "--quick"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = [line.split(" | ") for line in ran.stdout.splitlines() if line.startswith(("| three", "| a layer"))]
    assert [row[1] for row in rows] == 2 * ["forward", "forward and backward"]
    assert all(float(row[2]) < float(row[3]) for row in rows)  # a checkpoint is never free
    assert "python benchmarks/recompute.py --quick" in ran.stdout


def test_a_ratio_is_that_of_the_overheads() -> None:
    """The plain call is taken off both, and the rerun where one is given."""
    rounds = [benchmark.Taken(plain=10, checkpoint=50, recompute=30), benchmark.Taken(10, 110, 40)]
    assert benchmark.ratios(rounds, 0.0)[0] == pytest.approx((0.5 + 0.3) / 2)
    assert benchmark.ratios(rounds[:1], 10.0)[0] == pytest.approx(1 / 3)
