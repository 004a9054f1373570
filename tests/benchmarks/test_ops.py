"""benchmarks/ops.py measures each operation in each way, and judges by the targets."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import ops as benchmark
from benchmarks.operations import measuring
from benchmarks.operations.cases import COMPILED, EAGER, OPERATIONS, PULLBACK, TOKENS, WAYS, WIDE, Operation

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_each_operation_is_right_before_it_is_timed(operation: Operation) -> None:
    """At a small size its gradients are as near to float64 as eager's, in both dtypes."""
    for dtype in benchmark.DTYPES.values():
        measuring.check(operation, dtype, benchmark.QUICK)


def test_an_operation_that_is_wrong_is_not_timed() -> None:
    """Another gradient than eager's stops the benchmark."""
    first = OPERATIONS[0]
    wrong = Operation("wrong", first.eager, lambda a, u: first.eager(a, u) * 1.5, first.make, (1, 1))
    with pytest.raises(AssertionError, match=r"wrong, torch\.float32: result 0 is off by"):
        measuring.check(wrong, torch.float32, benchmark.QUICK)


def test_it_prints_a_row_and_writes_records(tmp_path: Path) -> None:
    """One operation at a small size: the row has time, bytes and peak, the file a record for each way."""
    path = tmp_path / "ops.csv"
    options = ["--dtype", "float32", "--quick", "--no-compile", "--csv", str(path)]
    command = [sys.executable, "benchmarks/ops.py", "swiglu", *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=150)
    assert ran.returncode == 0, ran.stderr
    assert "| swiglu | float32 | " in ran.stdout
    with path.open(encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    assert [record["way"] for record in records] == [way for way in WAYS if way != COMPILED]
    saved = {record["way"]: record["bytes saved"] for record in records}
    assert 3 * int(saved[PULLBACK]) == 2 * int(saved[EAGER])


def test_peak_counts_all_that_a_step_makes() -> None:
    """An output and two gradients are there at once, whatever a step before has freed."""
    ours = benchmark.in_a_process("peak", "swiglu", "float32", [PULLBACK], quick=False)
    one = TOKENS * WIDE * 4
    assert ours == 0 or ours > 3 * one  # 0 where the system doesn't say


def test_an_unknown_operation_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The error lists what there is."""
    with pytest.raises(SystemExit):
        benchmark.main(["swish"])
    assert "no operation 'swish'; there are swiglu, geglu" in capsys.readouterr().err


def test_a_time_far_above_its_target_is_missed() -> None:
    """More than a tenth above it in both regimes counts as missed; in one of them it doesn't."""

    def row(default: float, steady: float) -> dict[str, Any]:
        times = {"default": {"ratio": {PULLBACK: default}}, "steady": {"ratio": {PULLBACK: steady}}}
        return {"operation": "f", "dtype": "float32", "target": 1.0, **times}

    assert benchmark.missed([row(1.2, 1.05), row(1.05, 1.2)]) == []
    assert benchmark.missed([row(1.2, 1.15)]) == ["f, float32: 1.15, aimed at 1.00"]
