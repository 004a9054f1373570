"""What the run says: found and missed by kind, early and late apart, false alarms, survivors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.mutation.judges import JUDGES
from benchmarks.mutation.kinds import KINDS

OWN_CRASH = "PB123"
"""The battery's finding that one of its own probes crashed: it tells nobody what is wrong with a Function."""


@dataclass(frozen=True)
class Verdict:
    """What one judge said of one mutant.

    Attributes:
        found: Its findings; empty for none.
        seconds: Processor time.
        ended: ``timed out`` or ``crashed`` where it never answered: that counts as not found.
        counts: Whether it finds the fault: it speaks, and of the original it doesn't.
        hinted: Whether that is by a hint, which is enough where the mutant only declines something.
    """

    found: str
    seconds: float
    ended: str
    counts: bool
    hinted: bool


@dataclass(frozen=True)
class Result:
    """One mutant with all verdicts.

    Attributes:
        id: Its name.
        kind: Its kind.
        observed: ``observable``, ``broken at once``, ``declines`` or ``equivalent``, or how the observer ended.
        where: Where it shows.
        verdicts: By judge.
        diff: What was rewritten.
    """

    id: str
    kind: str
    observed: str
    where: str
    verdicts: Mapping[str, Verdict] = field(repr=False)
    diff: str = field(default="", repr=False)

    @property
    def observable(self) -> bool:
        """Whether it counts. One that hangs or crashes its observer is noticed, too."""
        return self.observed != "equivalent"


def result_of(
    mutant: Any, found: Mapping[str, dict[str, Any]], scolded: Mapping[str, set[str]], hinted: Mapping[str, set[str]]
) -> Result | None:
    """Put a mutant's records together; None where a stage is still to be done.

    Args:
        mutant: The mutant.
        found: Every record by its key.
        scolded: For each judge, the originals that it speaks against.
        hinted: The rules of the battery's hints on an original.
    """
    records = {stage: found.get(f"{mutant.id}#{stage}") for stage in ("observe", *JUDGES)}
    if any(record is None for record in records.values()):
        return None
    seen = records["observe"] or {}
    observed = str(seen.get("verdict") or f"observer {seen.get('ended')}")
    verdicts = {}
    for judge in JUDGES:
        record = records[judge] or {}
        said = str(record.get("found", ""))
        counts = bool({*said.split(", ")} - {"", OWN_CRASH}) and mutant.original.id not in scolded[judge]
        hints = {*str(record.get("hints", "")).split(", ")} - {""} - hinted.get(mutant.original.id, set())
        by_hint = observed == "declines" and bool(hints) and not counts
        ended = str(record.get("ended", ""))
        verdicts[judge] = Verdict(said, float(record.get("seconds", 0.0)), ended, counts or by_hint, by_hint)
    return Result(mutant.id, mutant.kind, observed, str(seen.get("where", "")), verdicts, mutant.diff)


def share(results: Sequence[Result], judge: str) -> tuple[int, int]:
    """How many observable mutants a judge finds, and how many there are."""
    observable = [result for result in results if result.observable]
    return sum(result.verdicts[judge].counts for result in observable), len(observable)


def by_kind(results: Sequence[Result], *, late: bool) -> list[dict[str, Any]]:
    """A row for each kind."""
    rows = []
    for kind in KINDS.values():
        mine = [result for result in results if result.kind == kind.name]
        if kind.late is late and mine:
            rows.append({"kind": kind.name, "what goes wrong": kind.says, **counted(mine)})
    return rows


def counted(results: Sequence[Result]) -> dict[str, Any]:
    """The numbers of a row."""
    row: dict[str, Any] = {"mutants": len(results), "observable": share(results, "battery")[1]}
    row["broken at once"] = sum(result.observed == "broken at once" for result in results)
    for judge in JUDGES:
        row[judge] = share(results, judge)[0]
    row["of the battery's by a hint"] = sum(result.verdicts["battery"].hinted for result in results)
    for judge in JUDGES:
        row[f"{judge} seconds"] = sum(result.verdicts[judge].seconds for result in results)
    return row


def doubtful(results: Iterable[Result]) -> list[Result]:
    """Mutants that no difference was seen in, and that the battery speaks against: either of the two is mistaken."""
    return [result for result in results if not result.observable and result.verdicts["battery"].counts]


def survivors(results: Iterable[Result]) -> list[Result]:
    """The observable mutants that the battery doesn't find."""
    return [result for result in results if result.observable and not result.verdicts["battery"].counts]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table."""
    head = [*rows[0]]
    lines = [f"| {' | '.join(head)} |", "|" + "".join(" --- |" if i < 2 else " ---: |" for i in range(len(head)))]
    for row in rows:
        cells = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row.values())
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Three rows: early kinds, late kinds, all."""
    late = {name for name, kind in KINDS.items() if kind.late}
    groups = {
        "early kinds": [result for result in results if result.kind not in late],
        "late kinds": [result for result in results if result.kind in late],
        "all": list(results),
    }
    return [{"": name, "kinds": len({r.kind for r in group}), **counted(group)} for name, group in groups.items()]


def survivor_text(result: Result) -> str:
    """A few lines on one that got away."""
    verdict = result.verdicts["battery"]
    ended = f" (the battery {verdict.ended})" if verdict.ended else ""
    others = ", ".join(judge for judge in JUDGES if result.verdicts[judge].counts) or "none"
    lines = [f"* `{result.id}`{ended}: {result.where or result.observed}. Found by: {others}.", "", "  ```diff"]
    return "\n".join([*lines, *(f"  {line}" for line in result.diff.splitlines()[:14]), "  ```"])


def as_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Every mutant with its verdicts, for programs."""
    return [asdict(result) for result in results]
