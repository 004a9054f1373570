"""What each operation of pullback.ops costs beside eager, torch.compile and checkpoint: time, saved bytes and peak.

    python benchmarks/ops.py                        all of them, in float32 and bfloat16; a quarter of an hour
    python benchmarks/ops.py swiglu rope            these alone
    python benchmarks/ops.py --quick                small sizes, few rounds: to see that it runs
    python benchmarks/ops.py --enforce              and exit with 1 if a time is more than a tenth above its target
    python benchmarks/ops.py --csv ops.csv

Every figure comes from a process of its own. Time has two rows: under glibc's allocator as it is, which gives large
tensors back to the system each time, and with memory used again ("steady"), as a caching allocator does it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.operations import measuring
from benchmarks.operations.cases import CHECKPOINT, COMPILED, EAGER, FLOOR, OPERATIONS, PULLBACK, WAYS, Operation
from benchmarks.overhead import provenance

ROOT = Path(__file__).resolve().parents[1]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BY_NAME = {operation.name: operation for operation in OPERATIONS}
QUICK = 0.02
"""The share of the tokens that a trial run has."""


def in_a_process(what: str, operation: str, dtype: str, ways: Sequence[str], quick: bool, steady: bool = False) -> Any:
    """Measure one thing in a new process; returns what `measured` gives there.

    A trial run, whose figures say nothing, starts none but for memory that is used again: each takes seconds to start.
    """
    if quick and not steady:
        return measured(what, operation, dtype, ",".join(ways), quick)
    command = [sys.executable, str(Path(__file__)), "--measure", what, operation, dtype, ",".join(ways)]
    command += ["--quick"] * quick
    environment = {**os.environ, **(measuring.STEADY if steady else {})}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{operation}, {dtype}, {what}: {ran.stderr}")
    return json.loads(ran.stdout.splitlines()[-1])


def measured(what: str, name: str, dtype: str, ways: str, quick: bool) -> Any:
    """One figure, or several, of one operation; this is what runs in the other process."""
    operation, scale, chosen = BY_NAME[name], QUICK if quick else 1.0, ways.split(",")
    warnings.simplefilter("ignore")
    if what == "times":
        measuring.check(operation, DTYPES[dtype], scale)
        return measuring.times(operation, DTYPES[dtype], scale, 2 if quick else operation.rounds, chosen)
    if what == "bytes":
        return measuring.bytes_saved(operation, DTYPES[dtype], scale, chosen)
    return measuring.peak(operation, ways, DTYPES[dtype], scale)


def row(operation: Operation, dtype: str, ways: Sequence[str], quick: bool) -> dict[str, Any]:
    """All figures of one operation in one dtype."""
    name = operation.name
    return {
        "operation": name,
        "dtype": dtype,
        "target": operation.target[list(DTYPES).index(dtype)],
        "default": in_a_process("times", name, dtype, ways, quick),
        "steady": in_a_process("times", name, dtype, ways, quick, steady=True),
        "bytes": in_a_process("bytes", name, dtype, ways, quick),
        "peak": {way: in_a_process("peak", name, dtype, [way], quick) for way in ways if way != FLOOR},
    }


def markdown(rows: Sequence[dict[str, Any]], facts: dict[str, str]) -> str:
    """The table as it stands in the documents."""
    lines = [
        "| operation | dtype | time, pullback | compile | checkpoint | floor | target | saved MiB, eager | pullback | "
        "peak MiB, eager | pullback |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in rows:
        ratios = [
            " / ".join(f"{one[regime]['ratio'].get(way, float('nan')):.2f}" for regime in ("default", "steady"))
            for way in (PULLBACK, COMPILED, CHECKPOINT, FLOOR)
        ]
        sizes = [f"{one[kind][way] / 2**20:.1f}" for kind in ("bytes", "peak") for way in (EAGER, PULLBACK)]
        cells = [one["operation"], one["dtype"], *ratios, f"{one['target']:.2f}", *sizes]
        lines.append(f"| {' | '.join(cells)} |")
    said = "Time is that of forward and backward as a ratio to eager's: default allocator / memory used again."
    return "\n".join([*lines, "", f"{said} {', '.join(f'{name} {value}' for name, value in facts.items())}."])


def flat(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One record for each operation, dtype and way, for programs."""
    for one in rows:
        for way in one["default"]["ratio"]:
            record = {"operation": one["operation"], "dtype": one["dtype"], "way": way, "target": one["target"]}
            for regime in ("default", "steady"):
                for figure in ("first", "milliseconds", "ratio"):
                    record[f"{figure}, {regime}"] = one[regime][figure][way]
            yield {**record, "bytes saved": one["bytes"].get(way), "peak bytes": one["peak"].get(way)}


def missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What takes more than a tenth above its target in both regimes."""
    late = []
    for one in rows:
        ratio = min(one[regime]["ratio"][PULLBACK] for regime in ("default", "steady"))
        if ratio > 1.1 * one["target"]:
            late.append(f"{one['operation']}, {one['dtype']}: {ratio:.2f}, aimed at {one['target']:.2f}")
    return late


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description="Time the operations of pullback.ops beside eager PyTorch.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="operations; all unless given")
    parser.add_argument("--dtype", choices=DTYPES, help="one dtype alone")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds: not to be quoted")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes longest")
    parser.add_argument("--enforce", action="store_true", help="exit with 1 if a target is missed by over a tenth")
    parser.add_argument("--csv", type=Path, metavar="PATH", help="write the results as CSV")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measured(*options.measure, options.quick)))
        return 0
    unknown = [name for name in options.names if name not in BY_NAME]
    if unknown:
        parser.error(f"no operation {unknown[0]!r}; there are {', '.join(BY_NAME)}")
    ways = [way for way in WAYS if way != COMPILED or not options.no_compile]
    rows = []
    for name in options.names or BY_NAME:
        for dtype in [options.dtype] if options.dtype else DTYPES:
            rows.append(row(BY_NAME[name], dtype, ways, options.quick))
            print(f"{name}, {dtype}: measured", file=sys.stderr)
    facts = {**provenance(0, []), "command": " ".join(["python", "benchmarks/ops.py", *arguments])}
    facts = {**facts, "threads": str(torch.get_num_threads()), "rounds": "each operation's own"}
    print(markdown(rows, facts))
    if options.csv:
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            records = list(flat(rows))
            writer = csv.DictWriter(file, [*records[0], *facts])
            writer.writeheader()
            writer.writerows({**record, **facts} for record in records)
    late = missed(rows)
    if late:
        print(f"\nmissed: {'; '.join(late)}", file=sys.stderr)
    return 1 if late and options.enforce else 0


if __name__ == "__main__":
    sys.exit(main())
