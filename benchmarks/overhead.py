"""What one call of a Function costs, beside torch's own, in a chain of tiny calls.

Every case is timed once in every round, in an order drawn anew for each round, and compared with its baseline in the
same round: what slows the machine down for a while slows both. The table shows medians, and ratios with their 20th and
80th percentiles.

    python benchmarks/overhead.py              the table
    python benchmarks/overhead.py --enforce    and exit with 1 if a target is missed
    python benchmarks/overhead.py --quick      a few rounds, to see that it runs
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import platform
import random
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import pullback
from pullback import Context

LAYERS = 32
"""Calls in one chain: enough that starting the timer and the engine costs nothing beside them."""

WARM_UPS = 2
"""Rounds that are run and thrown away: the first calls of a class learn, allocate and import."""


class Applied(Protocol):
    """A Function, or whatever else has its apply; the attribute is looked up at every call, as in a model."""

    def apply(self, x: Tensor) -> Tensor:
        """Call it once."""
        ...


@dataclass(frozen=True)
class Case:
    """A Function to time, and what to compare it with.

    Attributes:
        name: How the table calls it.
        function: What is applied.
        baseline: The name of the case that it is divided by; its own for a baseline.
        scale: Two further cases whose ratio it is divided by as well: what the same step costs without pullback.
        forward: The largest ratio allowed for forward, or None where there is no target.
        both: The same for forward and backward together.
        apart: Whether it is timed in rounds of its own: what comes between leaves the processor's caches to others.
    """

    name: str
    function: Applied
    baseline: str
    forward: float | None = None
    both: float | None = None
    scale: tuple[str, str] | None = None
    apart: bool = False


@dataclass(frozen=True)
class Result:
    """One row of the table: a case in one mode.

    Attributes:
        case: The name of the case.
        mode: ``forward``, or ``forward + backward``.
        baseline: The name of the case that it was divided by.
        microseconds: Median time of one call in the chain.
        ratio: Median of the rounds' ratios to the baseline.
        low: Their 20th percentile.
        high: Their 80th percentile.
        target: The largest ratio allowed, if there is one.
        scaled: Whether it was also divided by what the same step costs torch's own Function.
    """

    case: str
    mode: str
    baseline: str
    microseconds: float
    ratio: float
    low: float
    high: float
    target: float | None
    scaled: bool

    @property
    def verdict(self) -> str:
        """``met`` or ``missed``; empty without a target."""
        return "" if self.target is None else "met" if self.ratio <= self.target else "missed"


# -- What is timed -----------------------------------------------------------------------------------------------------
# y = x · c, where c is x's value taken as a constant: one multiplication forward, and one, g · x, backward.


def ctx_style(base: type, **extras: object) -> Any:
    """Make a Function whose forward takes ctx, with further attributes such as a reference."""

    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward), **extras}
    return types.new_class("Scale", (base,), exec_body=lambda namespace: namespace.update(body))


def setup_context_style(base: type) -> Any:
    """Make the same Function with forward and setup_context apart."""

    class Scale(base):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Context, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Context, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g * x

    return Scale


def copying_style(base: Any, *, saves_copy: bool) -> Any:
    """Make the same once more, with a copy of x that is saved in x's place or not; the arithmetic is the same."""

    class ScaleByCopy(base):
        @staticmethod
        def forward(ctx: Context, x: Tensor) -> Tensor:
            copy = x.clone()
            ctx.save_for_backward(copy if saves_copy else x)
            return x * copy

        @staticmethod
        def backward(ctx: Context, g: Tensor) -> Tensor:
            (saved,) = ctx.saved_tensors
            return g * saved

    return ScaleByCopy


def beneath(function: Any) -> Applied:
    """Return the C++ apply of a torch Function, without the Python that torch puts around it."""
    return types.SimpleNamespace(apply=super(torch.autograd.Function, function).apply)


def compiled(function: Any) -> Applied:
    """Return one call as a compiled region of its own: what it costs to enter, and to run the graph."""

    def call(x: Tensor) -> Tensor:
        return function.apply(x)

    return types.SimpleNamespace(apply=torch.compile(call, backend="aot_eager", fullgraph=True))


def cases() -> list[Case]:
    """Build every case; the targets stand here."""
    torch_base, own_base = torch.autograd.Function, pullback.Function
    torch_ctx, torch_setup = ctx_style(torch_base), setup_context_style(torch_base)
    double = ctx_style(own_base, double_backward=staticmethod(lambda ctx, gg: torch.zeros_like(gg)))
    reference = ctx_style(own_base, reference=staticmethod(lambda x: x * x.detach()))
    ctx, setup, ours = "torch, ctx", "torch, setup_context", "pullback, ctx"
    same, saves = "pullback, saving its input", "pullback, saving an intermediate"
    torch_same, torch_saves = "torch, saving its input", "torch, saving an intermediate"
    return [
        Case(ctx, torch_ctx, ctx),
        Case("C++ apply beneath, ctx", beneath(torch_ctx), ctx),
        Case(ours, ctx_style(own_base), ctx, 0.85, 0.95),
        Case(setup, torch_setup, setup),
        Case("C++ apply beneath, setup_context", beneath(torch_setup), setup),
        Case("pullback, setup_context", setup_context_style(own_base), setup, 0.25, 0.45),
        Case("pullback, with double_backward", double, ours, 1.03, 1.03),
        Case("pullback, with reference", reference, ours, 1.03, 1.03),
        Case("torch, compiled", compiled(torch_ctx), "torch, compiled", apart=True),
        Case("pullback, compiled", compiled(ctx_style(own_base)), "torch, compiled", 1.1, 1.1, apart=True),
        # An intermediate that is saved stays allocated, which costs torch's own Function as much: that is divided out.
        Case(torch_same, copying_style(torch_base, saves_copy=False), torch_same),
        Case(torch_saves, copying_style(torch_base, saves_copy=True), torch_same),
        Case(same, copying_style(own_base, saves_copy=False), same),
        Case(saves, copying_style(own_base, saves_copy=True), same, 1.03, 1.03, (torch_saves, torch_same)),
    ]


# -- Timing ------------------------------------------------------------------------------------------------------------


def time_forward(function: Applied, x: Tensor, g: Tensor) -> int:
    """Time one chain forward; its graph is freed after the clock stops."""
    start = time.perf_counter_ns()
    y = x
    for _ in range(LAYERS):
        y = function.apply(y)
    return time.perf_counter_ns() - start


def time_both(function: Applied, x: Tensor, g: Tensor) -> int:
    """Time one chain forward and backward."""
    start = time.perf_counter_ns()
    y = x
    for _ in range(LAYERS):
        y = function.apply(y)
    torch.autograd.grad(y, x, g)
    return time.perf_counter_ns() - start


MODES: dict[str, Callable[[Applied, Tensor, Tensor], int]] = {
    "forward": time_forward,
    "forward + backward": time_both,
}


def measure(table: Sequence[Case], rounds: int, seed: int = 0) -> dict[tuple[str, str], list[int]]:
    """Time every case in every mode once a round; return nanoseconds by case and mode, one for each round."""
    x, g = torch.ones(4, requires_grad=True), torch.ones(4)
    order = [(case, mode) for case in table for mode in MODES]
    times: dict[tuple[str, str], list[int]] = {(case.name, mode): [] for case, mode in order}
    shuffle = random.Random(seed).shuffle  # seeded: which order came when can be repeated
    gc.collect()
    gc.disable()
    try:
        for number in range(-WARM_UPS, rounds):
            shuffle(order)
            for case, mode in order:
                elapsed = MODES[mode](case.function, x, g)
                if number >= 0:
                    times[case.name, mode].append(elapsed)
    finally:
        gc.enable()
    return times


def summarise(table: Sequence[Case], times: dict[tuple[str, str], list[int]]) -> list[Result]:
    """Compare each case with its baseline, round by round."""
    results = []
    for mode in MODES:
        for case in table:
            own, base = times[case.name, mode], times[case.baseline, mode]
            ratios = [one / other for one, other in zip(own, base, strict=True)]
            if case.scale:
                above, below = (times[name, mode] for name in case.scale)
                ratios = [ratio * two / one for ratio, one, two in zip(ratios, above, below, strict=True)]
            low, middle, high = percentiles(ratios)
            target = case.forward if mode == "forward" else case.both
            per_call = statistics.median(own) / LAYERS / 1000
            results.append(
                Result(case.name, mode, case.baseline, per_call, middle, low, high, target, case.scale is not None)
            )
    return results


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 20th, 50th and 80th percentile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return fifths[0], statistics.median(values), fifths[3]


# -- What people and machines read -------------------------------------------------------------------------------------


def provenance(rounds: int, command: Sequence[str]) -> dict[str, str]:
    """Say what was measured, where and how."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "threads": str(torch.get_num_threads()),
        "commit": commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "rounds": str(rounds),
        "command": " ".join(["python", "benchmarks/overhead.py", *command]),
    }


def cpu_name() -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """Return the commit that is checked out, marked if files were changed since."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def markdown(results: Sequence[Result], facts: dict[str, str]) -> str:
    """Write the table as it stands in docs/costs.md."""
    lines = [
        f"| per call, chain of {LAYERS} | mode | µs | ratio (20-80 %) | to | target | |",
        "| --- | --- | ---: | ---: | --- | ---: | --- |",
    ]
    for result in results:
        baseline = result.case == result.baseline
        ratio = "1" if baseline else f"{result.ratio:.2f} ({result.low:.2f}-{result.high:.2f})"
        target = "" if result.target is None else f"{result.target:.2f}"
        to = "" if baseline else result.baseline
        to += " (torch's own step divided out)" if result.scaled else ""
        cells = (result.case, result.mode, f"{result.microseconds:.2f}", ratio, to, target, result.verdict)
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join([*lines, "", ", ".join(f"{name} {value}" for name, value in facts.items()) + "."])


def write_json(path: Path, results: Sequence[Result], facts: dict[str, str]) -> None:
    """Write facts and rows for programs."""
    rows = [{**asdict(result), "verdict": result.verdict} for result in results]
    path.write_text(json.dumps({"facts": facts, "results": rows}, indent=2) + "\n", encoding="utf-8")


def write_csv(path: Path, results: Sequence[Result], facts: dict[str, str]) -> None:
    """Write one row for each result, each with the facts."""
    rows = [{**asdict(result), "verdict": result.verdict, **facts} for result in results]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="Time a call of pullback.Function beside torch's own.")
    parser.add_argument("--rounds", type=int, default=600, help="paired rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="30 rounds: to see that it runs, not to be quoted")
    parser.add_argument("--enforce", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results as JSON")
    parser.add_argument("--csv", type=Path, metavar="PATH", help="write the results as CSV")
    options = parser.parse_args(arguments)
    rounds = 30 if options.quick else options.rounds
    if rounds < 1:
        parser.error("--rounds must be at least 1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        table = cases()
        groups = [[case for case in table if case.apart is apart] for apart in (False, True)]
        times = {key: taken for group in groups for key, taken in measure(group, rounds).items()}
        results = summarise(table, times)
        facts = provenance(rounds, arguments)
    finally:
        torch.set_num_threads(threads)
    print(markdown(results, facts))
    if options.json:
        write_json(options.json, results, facts)
    if options.csv:
        write_csv(options.csv, results, facts)
    missed = [f"{result.case}, {result.mode}" for result in results if result.verdict == "missed"]
    if missed:
        print(f"\nmissed: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed and options.enforce else 0


if __name__ == "__main__":
    sys.exit(main())
