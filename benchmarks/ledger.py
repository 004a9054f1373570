"""What a block of `pullback.saved_memory` costs: a forward of 1,000 nodes within one, beside the same forward without.

Both run once in every round, in an order drawn anew for each round; the table shows medians, of ratios with their 20th
and 80th percentiles.

    python benchmarks/ledger.py              the table
    python benchmarks/ledger.py --enforce    and exit with 1 if a target is missed
    python benchmarks/ledger.py --quick      a few rounds, to see that it runs
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pullback

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.overhead import provenance

TARGET = 1.15
"""The most that a forward within a block may take of one without, where the target holds."""


class Block(nn.Module):
    """A block of a Llama-like model without a mask: 28 nodes, and 8 calls of modules."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, 4, -1)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Fine(nn.Module):
    """The other end: nearly every node is made by a module of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


@dataclass(frozen=True)
class Case:
    """A model and a size.

    Attributes:
        kind: The class of its blocks.
        tokens: How many tokens go through.
        width: Their width.
        enforced: Whether the target is to hold here.
    """

    kind: Callable[[int], nn.Module]
    tokens: int
    width: int
    enforced: bool

    def make(self) -> tuple[nn.Module, Tensor]:
        """Return a model whose forward makes some 1,000 nodes, and its input."""
        x = torch.randn(1, self.tokens, self.width)
        for blocks in range(1, 1000):
            model = nn.Sequential(*[self.kind(self.width) for _ in range(blocks)])
            if blocks == 1:
                each = nodes(model(x))
            if blocks * each >= 1000:
                return model, x
        raise AssertionError("a block makes at least one node")


CASES = (
    Case(Block, 16, 32, enforced=False),
    Case(Block, 128, 128, enforced=True),
    Case(Block, 512, 256, enforced=True),
    Case(Fine, 16, 32, enforced=False),
    Case(Fine, 128, 128, enforced=False),
    Case(Fine, 512, 256, enforced=True),
)


def nodes(output: Tensor) -> int:
    """Return how many operations the graph has."""
    seen: set[Any] = set()
    open_ = [output.grad_fn]
    while open_:
        node = open_.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_ += [following for following, _ in node.next_functions]
    return sum(type(node).__name__ != "AccumulateGrad" for node in seen)


@dataclass(frozen=True)
class Round:
    """One round, in seconds."""

    plain: float
    begin: float
    within: float
    end: float


def measure(case: Case, rounds: int) -> tuple[int, list[Round]]:
    """Return the number of nodes, and what each round took."""
    model, x = case.make()
    count = nodes(model(x))
    results = []
    for number in range(rounds + 2):
        gc.collect()
        taken: dict[str, float] = {}
        for which in random.sample(("plain", "ledger"), 2):
            if which == "plain":
                start = time.perf_counter()
                y = model(x)
                taken["plain"] = time.perf_counter() - start
            else:
                marks = [time.perf_counter()]
                with pullback.saved_memory():
                    marks.append(time.perf_counter())
                    y = model(x)
                    marks.append(time.perf_counter())
                marks.append(time.perf_counter())
                taken["begin"], taken["within"], taken["end"] = (b - a for a, b in itertools.pairwise(marks))
            del y
        if number >= 2:  # the first ones learn, allocate and import
            results.append(Round(**taken))
    return count, results


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the 20th and 80th percentiles."""
    if len(values) < 2:
        return (values[0],) * 3
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return statistics.median(values), fifths[0], fifths[3]


def main() -> int:
    """Print the table; return 1 if a target is missed and --enforce is given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--enforce", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it runs")
    options = parser.parse_args()
    print("| blocks | tokens x width | nodes | forward | within a block | begin | end | all in all | target |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    missed = False
    for case in CASES[:1] if options.quick else CASES:
        count, results = measure(case, 2 if options.quick else 15)
        ratio, low, high = quantiles([one.within / one.plain for one in results])
        plain, begin, end = (
            statistics.median(getattr(one, name) for one in results) * 1e3 for name in ("plain", "begin", "end")
        )
        whole = statistics.median((one.begin + one.within + one.end) / one.plain for one in results)
        missed |= case.enforced and ratio > TARGET
        print(
            f"| {case.kind.__name__} | {case.tokens} x {case.width} | {count} | {plain:.1f} ms "
            f"| {ratio:.2f} ({low:.2f} to {high:.2f}) | {begin:.0f} ms | {end:.0f} ms "
            f"| {whole:.2f} | {TARGET if case.enforced else '-'} |"
        )
    command = " ".join(["python", "benchmarks/ledger.py", *sys.argv[1:]])
    facts = {**provenance(2 if options.quick else 15, []), "objects": f"{len(gc.get_objects()):,}", "command": command}
    print(f"\n{', '.join(f'{name} {value}' for name, value in facts.items())}.")
    return int(missed and options.enforce)


if __name__ == "__main__":
    sys.exit(main())
