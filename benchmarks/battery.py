"""How long `pullback check` takes: for each Function of examples/chapter.py, and as its samples grow.

    python benchmarks/battery.py              the tables
    python benchmarks/battery.py --enforce    and exit with 1 if a target is missed
    python benchmarks/battery.py --quick      the first Function and small samples, to see that it runs

Seconds are of one thread's processor time, the least of three checks after a first one, without the probe that
compiles. Growth is the power of the number of elements that the time grows with, between the last two sizes: 1 is
linear. What a check of a large sample doesn't look at in full stands at the end of its report.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import pullback

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.overhead import provenance
from examples import chapter

TARGET = 1.5
"""The most seconds that the battery may take for a Function of the chapter."""

GROWTH = 1.05
"""The most that growth may be: linear, and what timings vary by."""

SIZES = (10**3, 10**4, 10**5, 10**6)
SLOW = "compiled"

FUNCTIONS: tuple[Any, ...] = tuple(
    made for made in vars(chapter).values() if isinstance(made, type) and issubclass(made, pullback.Function)
)


def taken(function: Any, sample: tuple[Any, ...] | None, times: int = 3) -> tuple[float, pullback.Report]:
    """Return the least seconds of some checks, and the last report."""
    samples = () if sample is None else (sample,)
    results = []
    for _ in range(times):
        start = time.process_time()
        report = pullback.check(function, *samples, skip=(SLOW,))
        results.append(time.process_time() - start)
    return min(results), report


def slowest(report: pullback.Report, many: int = 3) -> str:
    """Name the probes that took longest, each with its part of the whole."""
    by_time = sorted(report.outcomes.items(), key=lambda item: item[1].seconds, reverse=True)
    whole = sum(outcome.seconds for _, outcome in by_time)
    return ", ".join(f"{name} {outcome.seconds / whole:.0%}" for name, outcome in by_time[:many])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables; return 1 if a target is missed and --enforce is given."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--enforce", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--quick", action="store_true", help="the first Function and small samples")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    functions, sizes, times = (FUNCTIONS[:1], SIZES[:2], 1) if options.quick else (FUNCTIONS, SIZES, 3)
    pullback.check(functions[0], skip=(SLOW,))  # the first one imports
    print("| Function | samples | seconds | most of it | target |")
    print("| --- | ---: | ---: | --- | ---: |")
    missed = False
    for function in functions:
        seconds, report = taken(function, None, times)
        missed |= seconds > TARGET or not report.ok
        samples = report.samples.split()[0]
        print(f"| {function.__name__} | {samples} | {seconds:.2f} | {slowest(report)} | {TARGET} |")
    print("\n| elements of x in Square | seconds | growth | most of it | target |")
    print("| ---: | ---: | ---: | --- | ---: |")
    before = None
    for size in sizes:
        x = torch.randn(size // 100, 100, dtype=torch.float64, requires_grad=True)
        seconds, report = taken(chapter.Square, (x,), 1)
        growth = None if before is None else math.log(seconds / before[1]) / math.log(size / before[0])
        missed |= not report.ok
        shown = "" if growth is None else f"{growth:.2f}"
        print(f"| {size:,} | {seconds:.2f} | {shown} | {slowest(report)} | {GROWTH} |")
        before = size, seconds
        missed |= growth is not None and growth > GROWTH
    command = " ".join(["python", "benchmarks/battery.py", *arguments])
    facts = {**provenance(times, []), "command": command}
    print(f"\n{', '.join(f'{name} {value}' for name, value in facts.items())}.")
    return int(missed and options.enforce)


if __name__ == "__main__":
    sys.exit(main())
