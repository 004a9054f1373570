"""What a name may stand for on each path through a method, as far as it matters for what the method returns.

An alternative remembers the conditions under which it is what the name stands for, so that what can't go together is
left out: a gradient that is only made where its flag is on isn't missing where it is returned under that same flag.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pullback.lint.conditions import NONE_ASKED, Conditions, together

MOST = 8
"""A name with more alternatives than this is taken as unknown."""

_DEEPEST = 32  # conditions for one alternative; with more it is taken as unknown


@dataclass(frozen=True)
class Nothing:
    """The literal None."""


@dataclass(frozen=True)
class Missing:
    """No value: the name was never set on this path."""


class Made(NamedTuple):
    """The value of an expression, or one of several values of it.

    Attributes:
        node: The expression; None where nothing is known.
        part: Which of several it is, for a target of an unpacking; None for the whole.
    """

    node: ast.expr | None
    part: int | None = None


@dataclass(frozen=True)
class Flag:
    """A flag of needs_input_grad."""

    index: int


@dataclass(frozen=True)
class Flags:
    """needs_input_grad, or a part of it that begins at `start`; `count` is its length where that is known."""

    start: int = 0
    count: int | None = None


class Rest(NamedTuple):
    """Any number of entries of which nothing is known, but perhaps that all are None."""

    nothing: bool = False


@dataclass(frozen=True)
class Several:
    """A tuple or list with the entries that are known."""

    entries: tuple[tuple[Alternative, ...] | Rest, ...]
    is_list: bool = False

    @property
    def count(self) -> int | None:
        """How many entries it has, if that is known."""
        return None if any(isinstance(entry, Rest) for entry in self.entries) else len(self.entries)


Thing = Nothing | Missing | Made | Flag | Flags | Several


class Alternative(NamedTuple):
    """What something may be, and under which conditions it is that."""

    thing: Thing
    conditions: Conditions = NONE_ASKED


Alternatives = tuple[Alternative, ...]
Entries = Alternatives | Rest
"""What stands at one place of a tuple, or at any number of them."""

UNKNOWN: Alternatives = (Alternative(Made(None)),)
NOTHING: Alternatives = (Alternative(Nothing()),)


@dataclass(eq=False)
class State:
    """What each local name may stand for, on one path."""

    names: dict[str, Alternatives] = field(default_factory=dict)
    path: Conditions = NONE_ASKED

    def copy(self) -> State:
        """A state that can go its own way."""
        return State(dict(self.names), self.path)


def under(alternatives: Alternatives, conditions: Conditions) -> Alternatives:
    """The alternatives that are left under further conditions, which each then has too."""
    if not conditions:
        return alternatives
    kept = []
    for alternative in alternatives:
        both = together(alternative.conditions, conditions)
        if both is not None and len(both) > _DEEPEST:
            return UNKNOWN
        if both is not None:
            kept.append(alternative._replace(conditions=both))
    return tuple(kept)


def possible(alternatives: Alternatives, path: Conditions) -> Alternatives:
    """The alternatives that don't contradict what holds on a path."""
    return tuple(one for one in alternatives if together(one.conditions, path) is not None)


def merged(alternatives: Iterable[Alternative]) -> Alternatives:
    """Alternatives without doubles; tuples and lists of one length become one, entry by entry."""
    several: dict[tuple[int, bool], list[Alternative]] = {}
    kept: list[Alternative] = []
    for one in dict.fromkeys(alternatives):
        if isinstance(one.thing, Several) and one.thing.count is not None:
            several.setdefault((one.thing.count, one.thing.is_list), []).append(one)
        else:
            kept.append(one)
    for group in several.values():
        kept.append(group[0] if len(group) == 1 else _entry_by_entry(group))
    return tuple(kept) if len(kept) <= MOST else UNKNOWN


def _entry_by_entry(group: list[Alternative]) -> Alternative:
    """One tuple for several of the same length: each one's conditions become those of its entries."""
    common = frozenset.intersection(*(one.conditions for one in group))
    columns: list[list[Alternative]] = []
    for one in group:
        assert isinstance(one.thing, Several)
        for index, entry in enumerate(one.thing.entries):
            if len(columns) <= index:
                columns.append([])
            assert not isinstance(entry, Rest)
            columns[index].extend(under(entry, one.conditions - common) or UNKNOWN)
    first = group[0].thing
    assert isinstance(first, Several)
    return Alternative(Several(tuple(_few(column) for column in columns), first.is_list), common)


def _few(alternatives: list[Alternative]) -> Alternatives:
    few = tuple(dict.fromkeys(alternatives))
    return few if len(few) <= 2 * MOST else UNKNOWN


def join(before: Conditions, states: Iterable[State | None]) -> State | None:
    """The state after paths have met; None if each of them left the method, or a loop.

    Args:
        before: What held before they parted, and holds again.
        states: The state at the end of each; None for one that left.
    """
    alive = [state for state in states if state is not None]
    if not alive:
        return None
    if len(alive) == 1:
        return alive[0]
    together_now = State({}, before | frozenset.intersection(*(state.path for state in alive)))
    for name in dict.fromkeys(name for state in alive for name in state.names):
        found: list[Alternative] = []
        for state in alive:
            own = state.names.get(name, (Alternative(Missing()),))
            found.extend(under(own, state.path - together_now.path))
        untouched = len({id(state.names.get(name)) for state in alive}) == 1
        together_now.names[name] = alive[0].names[name] if untouched else merged(found) or UNKNOWN
    return together_now
