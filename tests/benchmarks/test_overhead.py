"""The benchmark itself: that it compares like with like, counts right, and fails when told to."""

from __future__ import annotations

import csv
import gc
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import overhead

# PyTorch's tracer instantiates each Function that it compiles, and warns of that.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def test_each_case_does_the_work_of_its_baseline() -> None:
    """A case and its baseline give the same value and gradient, so that only the calls differ."""
    table = {case.name: case for case in overhead.cases()}
    for case in table.values():
        numbers = []
        for function in (case.function, table[case.baseline].function):
            x = torch.tensor([1.0, -2.0, 0.5, 3.0], requires_grad=True)
            y = function.apply(x)
            numbers.append((y.detach(), *torch.autograd.grad(y, x, torch.ones(4))))
        torch.testing.assert_close(numbers[0], numbers[1], rtol=0, atol=0)


def test_both_styles_and_every_extra_have_the_promised_targets() -> None:
    """The targets are those that the project promises, and the floors have none."""
    targets = {case.name: (case.forward, case.both) for case in overhead.cases() if case.forward is not None}
    assert targets == {
        "pullback, ctx": (0.85, 0.95),
        "pullback, setup_context": (0.25, 0.45),
        "pullback, with double_backward": (1.03, 1.03),
        "pullback, with reference": (1.03, 1.03),
        "pullback, compiled": (1.1, 1.1),
        "pullback, saving an intermediate": (1.03, 1.03),
    }


def test_ratios_are_taken_round_by_round() -> None:
    """A slow round counts for both sides: the ratio is the median of ratios, not the ratio of medians."""
    base, case = (overhead.Case(name, overhead.cases()[0].function, "base", 2.5, 1.5) for name in ("base", "case"))
    times = {(name, mode): values for mode in overhead.MODES for name, values in (("base", [32_000, 64_000, 320_000]),)}
    times |= {("case", mode): [64_000, 128_000, 160_000] for mode in overhead.MODES}
    results = {(row.case, row.mode): row for row in overhead.summarise([base, case], times)}
    forward, both = results["case", "forward"], results["case", "forward + backward"]
    assert (forward.ratio, forward.microseconds) == (2.0, 4.0)
    assert (forward.low, forward.high) == pytest.approx((1.1, 2.0))
    assert (forward.verdict, both.verdict) == ("met", "missed")


def test_the_table_names_what_it_was_measured_with(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Table, JSON and CSV hold every case in both modes, with versions, threads, commit and command."""
    arguments = ["--rounds", "2", "--json", str(tmp_path / "out.json"), "--csv", str(tmp_path / "out.csv")]
    assert overhead.main(arguments) == 0
    printed = capsys.readouterr().out
    expected = {(case.name, mode) for case in overhead.cases() for mode in overhead.MODES}
    document = json.loads((tmp_path / "out.json").read_text())
    assert {(row["case"], row["mode"]) for row in document["results"]} == expected
    assert set(document["facts"]) == {"torch", "python", "cpu", "threads", "commit", "date", "rounds", "command"}
    assert document["facts"]["torch"] == torch.__version__
    assert document["facts"]["threads"] == "1"
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["case"], row["mode"]) for row in rows} == expected
    for case, mode in expected:
        assert f"| {case} | {mode} |" in printed
    assert f"torch {torch.__version__}" in printed


@pytest.mark.parametrize(("target", "enforced"), [(1e-9, 1), (1e9, 0)])
def test_enforce_turns_a_miss_into_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: float, enforced: int
) -> None:
    """A missed target is named; it is an error only with --enforce."""
    table = [replace(case, forward=target, both=target) for case in overhead.cases()[:3]]
    monkeypatch.setattr(overhead, "cases", lambda: table)
    assert overhead.main(["--rounds", "1"]) == 0
    assert overhead.main(["--rounds", "1", "--enforce"]) == enforced
    assert ("missed: torch, ctx, forward" in capsys.readouterr().err) == bool(enforced)


def test_the_garbage_collector_and_threads_are_left_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    """The collector is off while it times, and on again after; so are the threads."""
    collecting: list[bool] = []

    class Watching:
        """Note at each call whether the collector may run."""

        def apply(self, x: torch.Tensor) -> torch.Tensor:
            """Pass x on, connected to the graph."""
            collecting.append(gc.isenabled())
            return x * 1

    threads = torch.get_num_threads()
    overhead.measure([overhead.Case("watching", Watching(), "watching")], rounds=1)
    assert overhead.main(["--rounds", "1"]) == 0
    assert collecting
    assert not any(collecting)
    assert gc.isenabled()
    assert torch.get_num_threads() == threads


def test_no_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a round there is nothing to report, which is a usage error."""
    with pytest.raises(SystemExit) as stop:
        overhead.main(["--rounds", "0"])
    assert stop.value.code == 2
    assert "--rounds must be at least 1" in capsys.readouterr().err
