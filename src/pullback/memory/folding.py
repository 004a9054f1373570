"""Rows of a report that differ in a number alone, such as those of the blocks of a model, folded into one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_SHOWN = 3


class Row(NamedTuple):
    """One row.

    Attributes:
        name: The path, in which ``*`` stands for the numbers of what was folded.
        bytes: The bytes of all of it.
        paths: How many paths were folded.
    """

    name: str
    bytes: int
    paths: int

    def __str__(self) -> str:
        return self.name if self.paths == 1 else f"{self.name} ({self.paths})"


def starred(path: str) -> str:
    """A path with ``*`` for each number: ``Model.blocks.*.norm``."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


def folded(sums: Mapping[str, int]) -> list[Row]:
    """The rows of a table by module, most bytes first.

    Numbered siblings are one row where they are of a kind: the same paths lie within each of them, or, where none do,
    each has the same bytes. Siblings of several kinds are told apart by their numbers: ``Sequential.[0,2,4]``.

    Args:
        sums: The bytes of each path.
    """
    rows = {tuple(path.split(".")): Row(path, count, 1) for path, count in sums.items()}
    for level in range(1, max(map(len, rows), default=0)):
        rows = _fold(rows, level)
    return sorted((Row(".".join(path), row.bytes, row.paths) for path, row in rows.items()), key=lambda row: -row.bytes)


_Path = tuple[str, ...]


def _fold(rows: Mapping[_Path, Row], level: int) -> dict[_Path, Row]:
    parents: dict[_Path, dict[str, dict[_Path, Row]]] = {}
    for path, row in rows.items():
        if len(path) > level and path[level].isdigit():
            parents.setdefault(path[:level], {}).setdefault(path[level], {})[path[level + 1 :]] = row
    names: dict[_Path, str] = {}
    for parent, siblings in parents.items():
        kinds: dict[object, list[str]] = {}
        for number, within in siblings.items():
            alone = [row.bytes for row in within.values()] if len(within) == 1 else []
            kinds.setdefault((frozenset(within), *alone), []).append(number)
        for numbers in kinds.values():
            if len(numbers) > 1:
                label = "*" if _are_all(numbers, siblings) else _listed(numbers)
                names.update({(*parent, number): label for number in numbers})
    found: dict[_Path, Row] = {}
    for path, row in rows.items():
        label = names.get(path[: level + 1], "") if len(path) > level else ""
        to = (*path[:level], label, *path[level + 1 :]) if label else path
        before = found.get(to)
        found[to] = row if before is None else Row(row.name, before.bytes + row.bytes, before.paths + row.paths)
    return found


def _are_all(numbers: Sequence[str], siblings: Iterable[str]) -> bool:
    """Whether these are all siblings, and no number is missing between them: what keeps nothing has no row."""
    values = sorted(map(int, numbers))
    return len(values) == len([*siblings]) and values == [*range(values[0], values[-1] + 1)]


def _listed(numbers: Iterable[str]) -> str:
    ordered = sorted(numbers, key=int)
    return f"[{','.join(ordered[:_SHOWN])}{',…' if len(ordered) > _SHOWN else ''}]"
