"""How many planted faults `pullback check` finds, beside PyTorch's gradcheck and gradgradcheck.

Faults are planted in right Functions by rewriting their source; see `benchmarks/mutation`. Whether a fault can be
noticed at all is decided without the battery, by comparing with the original. Survivors are misses, and are listed.

    python benchmarks/power.py              a sample of every kind: the table
    python benchmarks/power.py --all        every mutant
    python benchmarks/power.py --quick      a few mutants, to see that it runs

Results are kept in a file as they come; the same command goes on where an earlier one broke off.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the package benchmarks, also where this file is run as a script

from benchmarks.mutation import tables  # noqa: E402  # after the path is set
from benchmarks.mutation.judges import JUDGES  # noqa: E402
from benchmarks.mutation.kinds import KINDS  # noqa: E402
from benchmarks.mutation.originals import Original, originals  # noqa: E402
from benchmarks.mutation.plant import Mutant, digest, mutants_of, prepared  # noqa: E402
from benchmarks.mutation.pool import Results, Task, run  # noqa: E402
from benchmarks.overhead import provenance  # noqa: E402

SAMPLE = 16
"""So many mutants of each kind are drawn unless all are asked for."""

ROUND = 3
"""So many mutants of each kind are tried before others."""

TARGETS = (("early kinds", 0.99), ("late kinds", 0.97))
"""The least share of observable mutants that the battery should find."""


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(description="Count which planted faults pullback check finds.")
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N", help="mutants a kind (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), metavar="NAME", help="only this kind")
    parser.add_argument("--original", action="append", metavar="NAME", help="only faults in this Function")
    parser.add_argument("--seeds", type=int, default=20, help="runs of the battery on each original (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="repeats the draw of mutants (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one judge and mutant (default: 180)")
    parser.add_argument("--folder", type=Path, help="where mutants and results are kept; a temporary one unless given")
    parser.add_argument("--quick", action="store_true", help="one mutant a kind, two seeds, a few Functions")
    parser.add_argument("--report", action="store_true", help="run nothing: only count what the folder has")
    parser.add_argument("--enforce", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every mutant with its verdicts as JSON")
    parser.add_argument("--csv", type=Path, metavar="PATH", help="write the table by kind as CSV")
    return parser


QUICK_ONES = ("chapter.Square", "chapter.Matmul", "plain.ComplexProduct", "transforms.ProductWithJvp", "swiglu.SwiGLU")


def drawn(options: argparse.Namespace) -> tuple[list[Original], list[Mutant]]:
    """The originals, and the mutants to try: round by round, in each round those of one original together."""
    found = originals()
    names = options.original or (QUICK_ONES if options.quick else None)
    if names:
        unknown = set(names) - {original.id for original in found}
        if unknown:
            raise SystemExit(f"no right Function is called {', '.join(sorted(unknown))}")
        found = [original for original in found if original.id in names]
    groups: dict[str, list[Mutant]] = defaultdict(list)
    for original in found:
        for mutant in mutants_of(original, [KINDS[name] for name in options.kind or KINDS]):
            groups[mutant.kind].append(mutant)
    count = None if options.all else 1 if options.quick else options.sample
    order = {original.id: index for index, original in enumerate(found)}
    chosen: list[tuple[int, int, Mutant]] = []
    for group in groups.values():
        group.sort(key=lambda mutant: digest(f"{options.seed}/{mutant.id}"))
        # in rounds, so that a run that breaks off has seen every kind
        chosen += [(i // ROUND, order[mutant.original.id], mutant) for i, mutant in enumerate(group[:count])]
    return found, [mutant for _, _, mutant in sorted(chosen, key=lambda entry: entry[:2])]


def tasks(found: Sequence[Original], mutants: Sequence[Mutant], seeds: int, folder: Path) -> list[Task]:
    """All stages of all mutants, and then of all originals."""
    place = prepared(folder)
    made = []
    for mutant in mutants:
        path = mutant.write(place)
        for stage in ("observe", *JUDGES):
            made.append(_task(mutant.id, stage, path, mutant.original, 0))
    for original in found:
        # a copy, so that an operation is judged as anybody's Function would be
        path = place / f"{Path(original.path).stem}_{digest(original.id)[:12]}_right.py"
        path.write_text(original.source, encoding="utf-8")
        for judge in JUDGES:
            for seed in range(seeds if judge == "battery" else 1):
                made.append(_task(original.id, judge, path, original, seed))
    return made


def _task(subject: str, stage: str, path: Path, original: Original, seed: int) -> Task:
    key = f"{subject}#{stage}" + (f"#{seed}" if subject == original.id else "")
    message = {"stage": stage, "file": str(path), "class": original.name, "original": original.path, "seed": seed}
    return Task(key, message)


def alarms(found: Sequence[Original], results: Results, seeds: int) -> dict[str, list[tuple[str, int, str]]]:
    """What each judge says against originals: their names, seeds, and what is said."""
    said: dict[str, list[tuple[str, int, str]]] = {judge: [] for judge in JUDGES}
    for judge in JUDGES:
        for original in found:
            for seed in range(seeds if judge == "battery" else 1):
                record = results.found.get(f"{original.id}#{judge}#{seed}", {})
                what = record.get("found") or record.get("ended")
                if what:
                    said[judge].append((original.id, seed, what))
    return said


def hints(found: Sequence[Original], results: Results, seeds: int) -> dict[str, set[str]]:
    """The rules of the battery's hints on each original: on its mutants they aren't about the fault."""
    return {
        original.id: {
            rule
            for seed in range(seeds)
            for rule in str(results.found.get(f"{original.id}#battery#{seed}", {}).get("hints", "")).split(", ")
        }
        for original in found
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant, judge, count, and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments)
    seeds = 2 if options.quick else options.seeds
    found, mutants = drawn(options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        results = Results(folder / "results.jsonl")
        todo = tasks(found, mutants, seeds, folder)
        if not options.report:
            run(todo, results, jobs=options.jobs, limit=options.limit, progress=_progress)
        left = sum(task.key not in results.found for task in todo)
    said = alarms(found, results, seeds)
    scolded = {judge: {name for name, _, _ in against} for judge, against in said.items()}
    hinted = hints(found, results, seeds)
    judged = [result for mutant in mutants if (result := tables.result_of(mutant, results.found, scolded, hinted))]
    met = print_all(judged, said, len(found), seeds, left)
    facts = provenance(1, arguments)
    del facts["rounds"]
    facts["command"] = facts["command"].replace("overhead.py", "power.py")
    facts["seeds"] = f"mutants {options.seed}, battery 0, originals 0 to {seeds - 1}"
    print(f"\n{', '.join(f'{name} {value}' for name, value in facts.items())}.")
    write(options, judged, said, facts)
    return int(options.enforce and not met)


def _progress(done: int, due: int) -> None:
    if done % 50 == 0 or done == due:
        print(f"{done} of {due}", file=sys.stderr)


def print_all(
    judged: Sequence[tables.Result],
    said: dict[str, list[tuple[str, int, str]]],
    count: int,
    seeds: int,
    left: int,
) -> bool:
    """Print tables, survivors and targets; return whether all targets are met."""
    for late in (False, True):
        rows = tables.by_kind(judged, late=late)
        if rows:
            print(f"## {'Late' if late else 'Early'} kinds\n\n{tables.markdown(rows)}\n")
    rows = tables.summary(judged)
    print(f"## All\n\n{tables.markdown(rows)}\n")
    missed = tables.survivors(judged)
    print(f"## Survivors: {len(missed)}\n")
    for result in missed:
        print(tables.survivor_text(result) + "\n")
    doubtful = tables.doubtful(judged)
    print(f"## Found, though nothing differs from the original: {len(doubtful)}\n")
    for result in doubtful:
        print(f"* `{result.id}`: {result.verdicts['battery'].found}")
    print(f"\n## Said against {count} originals\n")
    for judge, against in said.items():
        print(f"* {judge}, {seeds if judge == 'battery' else 1} seeds: {len(against)}")
        for name, seed, what in against if judge == "battery" else ():
            print(f"  * {name}, seed {seed}: {what}")
    print("\n## Targets\n")
    met = not said["battery"]
    for row, (group, least) in zip(rows, TARGETS, strict=False):
        rate = row["battery"] / row["observable"] if row["observable"] else 1.0
        met = met and rate >= least
        verdict = "no mutants" if not row["observable"] else "met" if rate >= least else "missed"
        print(f"* {group}: {rate:.2%} of {row['observable']}, at least {least:.0%}: {verdict}")
    print(f"* findings on originals: {len(said['battery'])}, none allowed: {'missed' if said['battery'] else 'met'}")
    if left:
        print(f"\n{left} tasks are still to be done: these numbers are of what is.")
    return met and not left


def write(
    options: argparse.Namespace, judged: Sequence[tables.Result], said: dict[str, Any], facts: dict[str, str]
) -> None:
    """Write the files that were asked for."""
    if options.json:
        data = {"facts": facts, "mutants": tables.as_json(judged), "said of originals": said}
        options.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.csv:
        rows = [{"late": late, **row, **facts} for late in (False, True) for row in tables.by_kind(judged, late=late)]
        with options.csv.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
