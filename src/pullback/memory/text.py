"""The ledger as text, for people: plain lines that read well without colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pullback.memory.entry import CLOSURE, CTX, Entry, Holder

if TYPE_CHECKING:
    from pullback.memory.ledger import Ledger

_LINES = 12
"""How many lines a table has; the rest is summed up in one more."""

_OUTSIDE = "(outside of modules)"
_UNITS = ("KiB", "MiB", "GiB", "TiB")

_NO_GRAPH = (
    "No graph made in the block is alive at its end, or it keeps nothing. Keep the loss in a variable, and call "
    "backward after the block."
)


def size(count: int) -> str:
    """A number of bytes for people: ``512 B``, ``1.5 MiB``."""
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.1f} {unit}"


def report(ledger: Ledger) -> str:
    """The whole ledger."""
    parts = [_head(ledger)]
    if ledger.entries:
        modules = {path or _OUTSIDE: count for path, count in ledger.by_module().items()}
        parts.append(_table("by module", modules, ledger.total))
        parts.append(_table("by operation", ledger.by_operation(), ledger.total))
        parts.append(_largest(ledger.entries))
    parts += [part for part in (_cheap(ledger), _out_of_sight(ledger), _pinned(ledger), _unseen(ledger)) if part]
    return "\n\n".join(parts)


def _head(ledger: Ledger) -> str:
    beside = [
        f"{size(sum(entry.bytes for entry in entries))} of {name}"
        for name, entries in (("parameters", ledger.parameters), ("inputs", ledger.inputs))
        if entries
    ]
    exact = f" ({size(ledger.total)})" if ledger.total >= 1024 else ""
    lines = [f"The graph keeps {ledger.total:,} bytes{exact} in {_count(ledger.entries, 'piece')}."]
    if beside:
        lines.append(f"Beside them it holds on to {' and '.join(beside)}, which are alive anyway.")
    if not ledger.entries and not beside:
        lines.append(_NO_GRAPH)
    return "\n".join(lines)


def _table(title: str, sums: Mapping[str, int], total: int) -> str:
    rows = [(name, count) for name, count in sums.items() if count]
    if len(rows) > _LINES:
        rest = rows[_LINES - 1 :]
        rows = [*rows[: _LINES - 1], (f"{len(rest)} others", sum(count for _, count in rest))]
    lines = [f"{size(count):>12}  {count / total:>4.0%}  {name}" for name, count in rows]
    return "\n".join([f"{title}:", *lines])


def _largest(entries: Sequence[Entry]) -> str:
    chosen = sorted(entries, key=lambda entry: -entry.bytes)[:_LINES]
    lines = [f"{size(entry.bytes):>12}  {entry.first}  {_form(entry.first)}{_also(entry)}" for entry in chosen]
    return "\n".join(["the largest:", *lines])


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


def _out_of_sight(ledger: Ledger) -> str:
    head = "kept on ctx or in a closure, where no hook, checkpoint or offload sees it, until the graph is gone (PB303):"
    rows = [
        (entry, holder)
        for entry in (*ledger.entries, *ledger.inputs)
        for holder in (entry.first, *entry.also)
        if holder.how in (CTX, CLOSURE)
    ]
    return _listed(head, [f"{size(entry.bytes):>12}  {holder}  {_form(holder)}" for entry, holder in rows])


def _pinned(ledger: Ledger) -> str:
    head = "small views that keep a large storage (PB305); save a clone of the view:"
    rows = [
        f"{size(entry.bytes):>12}  kept for {size(entry.bytes - entry.pinned)}: {entry.first}  {_form(entry.first)}"
        for entry in ledger.pinned
    ]
    return _listed(head, rows)


def _unseen(ledger: Ledger) -> str:
    return _listed("what the ledger can't see:", [f"  {sentence}" for sentence in ledger.unseen])


def _listed(head: str, rows: Sequence[str]) -> str:
    rest = [f"  and {len(rows) - _LINES} more"] if len(rows) > _LINES else []
    return "\n".join([head, *rows[:_LINES], *rest]) if rows else ""


def _form(holder: Holder) -> str:
    return f"{holder.dtype}[{', '.join(map(str, holder.shape))}]"


def _also(entry: Entry) -> str:
    if not entry.also:
        return ""
    others = list(dict.fromkeys(f"{holder.operation}.{holder.argument}" for holder in entry.also))
    rest = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return f", also {', '.join(others[:2])}{rest}"


def _count(things: Iterable[object], name: str) -> str:
    number = sum(1 for _ in things)
    return f"{number:,} {name}{'' if number == 1 else 's'}"
