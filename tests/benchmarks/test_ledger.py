"""benchmarks/ledger.py runs, and measures forwards of 1,000 nodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_runs() -> None:
    """A quick run prints a row for the smallest case, with the ratio and what begin and end add."""
    ran = subprocess.run(
        [sys.executable, "benchmarks/ledger.py", "--quick", "--enforce"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (row,) = [line for line in ran.stdout.splitlines() if line.startswith("| Block")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 9
    assert 1000 <= int(cells[2]) < 1200
