"""The ledger as text, for people: plain lines that read well without colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pullback.memory.entry import CLOSURE, CTX, Entry
from pullback.memory.folding import folded, starred
from pullback.memory.sizes import size as size

if TYPE_CHECKING:
    from pullback.memory.advice import Advice
    from pullback.memory.ledger import Ledger

_LINES = 12
"""How many lines a table has; the rest is summed up in one more."""

_DO = 5
"""How many things to do are named."""

_OUTSIDE = "(outside of modules)"
_NO_GRAPH = (
    "No graph made in the block is alive at its end, or it keeps nothing. Keep the loss in a variable, and call "
    "backward after the block."
)


def report(ledger: Ledger, depth: int | None = None) -> str:
    """The whole ledger.

    Args:
        ledger: The ledger.
        depth: How many names of a module's path count in the table by module.
    """
    parts = [_head(ledger)]
    if ledger.entries:
        modules = folded({path or _OUTSIDE: count for path, count in ledger.by_module(depth).items()})
        parts.append(_table("by module", [(str(row), row.bytes) for row in modules], ledger.total))
        parts.append(_table("by operation", [*ledger.by_operation().items()], ledger.total))
        parts.append(_largest(ledger.entries))
    sections = (_cheap(ledger), _advice(ledger), _out_of_sight(ledger), _pinned(ledger), _unseen(ledger))
    return "\n\n".join([*parts, *(part for part in sections if part)])


def _head(ledger: Ledger) -> str:
    beside = [
        f"{size(sum(entry.bytes for entry in entries))} of {name}"
        for name, entries in (("parameters", ledger.parameters), ("inputs", ledger.inputs))
        if entries
    ]
    exact = f" ({size(ledger.total)})" if ledger.total >= 1024 else ""
    lines = []
    if ledger.stopped:
        lines.append(f"Stopped by {ledger.stopped}; this is what was kept up to there.")
    lines.append(f"The graph keeps {ledger.total:,} bytes{exact} in {_count(ledger.entries, 'piece')}.")
    if beside:
        lines.append(f"Beside them it holds on to {' and '.join(beside)}, which are alive anyway.")
    if not ledger.entries and not beside:
        lines.append(_NO_GRAPH)
    return "\n".join(lines)


def _table(title: str, sums: Iterable[tuple[str, int]], total: int) -> str:
    rows = [(name, count) for name, count in sums if count]
    if len(rows) > _LINES:
        rest = rows[_LINES - 1 :]
        rows = [*rows[: _LINES - 1], (f"{len(rest)} others", sum(count for _, count in rest))]
    lines = [f"{size(count):>12}  {count / total:>4.0%}  {name}" for name, count in rows]
    return "\n".join([f"{title}:", *lines])


def _largest(entries: Iterable[Entry]) -> str:
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        first = entry.first
        key = (entry.bytes, starred(first.name), starred(first.module), first.form, starred(entry.others))
        groups.setdefault(key, []).append(entry)
    chosen = sorted(groups.values(), key=lambda alike: -alike[0].bytes)[:_LINES]
    return "\n".join(["the largest:", *map(_alike, chosen)])


def _alike(entries: Sequence[Entry]) -> str:
    """The line of entries that differ in numbers of modules alone."""
    entry, paths = entries[0], {str(entry.first) for entry in entries}
    name = str(entry.first) if len(paths) == 1 else starred(str(entry.first))
    others = entry.others if len(paths) == 1 else starred(entry.others)
    times = f" × {len(entries)}" if len(entries) > 1 else ""
    return f"{size(entry.bytes):>12}{times}  {name}  {entry.first.form}{others}"


def _cheap(ledger: Ledger) -> str:
    chosen = [entry for entry in ledger.entries if entry.recompute]
    if not chosen:
        return ""
    share = f"{ledger.recomputable / ledger.total:.0%}"
    head = f"cheap to compute again in backward, which would free {size(ledger.recomputable)} ({share}):"
    sums: dict[str, int] = {}
    for entry in chosen:
        sums[entry.recompute] = sums.get(entry.recompute, 0) + entry.bytes
    lines = [f"{size(count):>12}  {how}" for how, count in sorted(sums.items(), key=lambda item: -item[1])]
    return "\n".join([head, *lines])


def _advice(ledger: Ledger) -> str:
    """The first few things to do, those of numbered siblings as one."""
    sums: dict[str, list[Advice]] = {}
    for advice in ledger.advice:
        sums.setdefault(str(advice._replace(module=starred(advice.module))), []).append(advice)
    rows = [
        (sum(advice.bytes for advice in alike), name if len(alike) > 1 else str(alike[0]))
        for name, alike in sums.items()
    ]
    lines = [f"{size(count):>12}  {line}" for count, line in sorted(rows, key=lambda row: -row[0])[:_DO]]
    return "\n".join(["what would free it:", *lines]) if lines else ""


def _out_of_sight(ledger: Ledger) -> str:
    head = "kept on ctx or in a closure, where no hook, checkpoint or offload sees it, until the graph is gone (PB303):"
    rows = [
        (entry, holder)
        for entry in (*ledger.entries, *ledger.inputs)
        for holder in (entry.first, *entry.also)
        if holder.how in (CTX, CLOSURE)
    ]
    return _listed(head, [f"{size(entry.bytes):>12}  {holder}  {holder.form}" for entry, holder in rows])


def _pinned(ledger: Ledger) -> str:
    head = "small views that keep a large storage (PB305); save a clone of the view:"
    rows = [
        f"{size(entry.bytes):>12}  kept for {size(entry.bytes - entry.pinned)}: {entry.first}  {entry.first.form}"
        for entry in ledger.pinned
    ]
    return _listed(head, rows)


def _unseen(ledger: Ledger) -> str:
    return _listed("what the ledger can't see:", [f"  {sentence}" for sentence in ledger.unseen])


def _listed(head: str, rows: Sequence[str]) -> str:
    rest = [f"  and {len(rows) - _LINES} more"] if len(rows) > _LINES else []
    return "\n".join([head, *rows[:_LINES], *rest]) if rows else ""


def _count(things: Iterable[object], name: str) -> str:
    number = sum(1 for _ in things)
    return f"{number:,} {name}{'' if number == 1 else 's'}"
