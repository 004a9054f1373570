"""benchmarks/battery.py times checks, and says what takes longest."""

from __future__ import annotations

import pytest

from benchmarks import battery as benchmark
from examples import chapter


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """A quick run prints a row for a Function and one for each size, and where it was measured."""
    assert benchmark.main(["--quick"]) == 0
    printed = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in printed.splitlines() if line.startswith("| Square")] == ["| Square"]
    grown = [line.split(" | ") for line in printed.splitlines() if line.startswith(("| 1,000", "| 10,000"))]
    assert len(grown) == 2
    assert float(grown[1][2]) < 1
    assert "python benchmarks/battery.py --quick" in printed


def test_every_function_of_the_chapter_is_timed() -> None:
    """The list is the module's own, in its order."""
    assert [function.__name__ for function in benchmark.FUNCTIONS[:3]] == ["Square", "ClippedReLU", "Matmul"]
    assert all(function.__module__ == chapter.__name__ for function in benchmark.FUNCTIONS)


def test_a_missed_target_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --enforce; without, the table says it alone."""
    monkeypatch.setattr(benchmark, "TARGET", 0.0)
    assert benchmark.main(["--quick", "--enforce"]) == 1
    assert benchmark.main(["--quick"]) == 0
