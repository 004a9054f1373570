"""What one call of a recomputed function costs beside the same call in `torch.utils.checkpoint` (non-reentrant).

A chain of small calls, so that nearly all of the time is the call and not the arithmetic: plain, in a checkpoint, and
recomputed. The overhead of a call is what it takes beyond the plain one. In forward with backward both run the function
once more: the table has the overhead with that run, and without it (less one more plain forward). All three run once in
every round, in an order drawn anew for each round; the ratio is that of the overheads in the same round, its median
with the 20th and 80th percentile.

    python benchmarks/recompute.py              the table
    python benchmarks/recompute.py --enforce    and exit with 1 if a target is missed
    python benchmarks/recompute.py --quick      a few rounds, to see that it runs
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pullback

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.overhead import provenance

TARGET = 0.5
"""The most that the overhead of a call may be of that of a checkpoint."""

CHAIN = 16
"""Calls in a chain."""

WAYS = ("plain", "checkpoint", "recompute")

Call = Callable[[Tensor], Tensor]


class Layer(nn.Module):
    """A residual layer: a norm, a linear map and a pointwise operation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


def wave(x: Tensor) -> Tensor:
    """Save two tensors, and return a function that needs them."""
    return x.sin().exp().tanh()


@dataclass(frozen=True)
class Taken:
    """How long one chain took, in microseconds a call, each way."""

    plain: float
    checkpoint: float
    recompute: float


def calls(function: Call) -> dict[str, Call]:
    """Return the function, each way."""
    return {
        "plain": function,
        "checkpoint": lambda x: checkpoint(function, x, use_reentrant=False),
        "recompute": pullback.recompute(function),
    }


def chain(call: Call, x: Tensor, *, backward: bool) -> float:
    """Return how long a chain takes, in microseconds a call."""
    start = time.perf_counter()
    y = x
    for _ in range(CHAIN):
        y = call(y)
    if backward:
        y.sum().backward()
    return (time.perf_counter() - start) / CHAIN * 1e6


def measure(function: Call, rounds: int, *, backward: bool) -> list[Taken]:
    """Return what each round took; all ways in each round, in random order."""
    x = torch.randn(2, 4, requires_grad=True)
    ways = calls(function)
    results = []
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds + 2):
            taken = {way: chain(ways[way], x, backward=backward) for way in random.sample(WAYS, len(WAYS))}
            if number >= 2:  # the first ones allocate and import
                results.append(Taken(**taken))
    finally:
        gc.enable()
    return results


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the 20th and 80th percentiles."""
    if len(values) < 2:
        return (values[0],) * 3
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return statistics.median(values), fifths[0], fifths[3]


def ratios(results: Sequence[Taken], rerun: float) -> tuple[float, float, float]:
    """Return the overhead of recompute as a part of checkpoint's, with `rerun` microseconds of each taken off."""
    return quantiles([(one.recompute - one.plain - rerun) / (one.checkpoint - one.plain - rerun) for one in results])


def main() -> int:
    """Print the table; return 1 if a target is missed and --enforce is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--enforce", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it runs")
    options = parser.parse_args()
    rounds = 5 if options.quick else 200
    torch.set_num_threads(1)
    print("| function | mode | plain, µs | checkpoint, µs | recompute, µs | overhead | without the rerun | target |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    missed = False
    for name, function in {"three operations": wave, "a layer": Layer()}.items():
        forward = 0.0
        for backward in (False, True):
            results = measure(function, rounds, backward=backward)
            middle = {way: statistics.median(getattr(one, way) for one in results) for way in WAYS}
            whole, (ratio, low, high) = ratios(results, 0.0)[0], ratios(results, forward)
            forward = middle["plain"]
            missed |= ratio > TARGET
            times = " | ".join(f"{middle[way]:.1f}" for way in WAYS)
            mode = "forward and backward" if backward else "forward"
            print(f"| {name} | {mode} | {times} | {whole:.2f} | {ratio:.2f} ({low:.2f} to {high:.2f}) | {TARGET} |")
    command = " ".join(["python", "benchmarks/recompute.py", *sys.argv[1:]])
    facts = {**provenance(rounds, []), "calls in a chain": str(CHAIN), "command": command}
    print(f"\n{', '.join(f'{name} {value}' for name, value in facts.items())}.")
    return int(missed and options.enforce)


if __name__ == "__main__":
    sys.exit(main())
