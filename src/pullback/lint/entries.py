"""Expressions as tuples, lists, None and flags: what they may be on one path."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from pullback.lint.alternatives import (
    NOTHING,
    UNKNOWN,
    Alternative,
    Alternatives,
    Entries,
    Flag,
    Flags,
    Made,
    Missing,
    Nothing,
    Rest,
    Several,
    State,
    merged,
    possible,
    under,
)
from pullback.lint.conditions import ANY, of_test

LONGEST = 64
"""A tuple longer than this is taken as unknown."""

DEEPEST = 3
"""What stands in more tuples than this is taken as unknown: ``h = (h, g) if a else (g, h)`` doubles with each line."""

_READERS = ("len", "print", "sum", "any", "all", "zip", "enumerate", "reversed", "repr", "isinstance")
"""Functions that don't change a list they are called with."""


@dataclass(eq=False)
class Evaluation:
    """Evaluates expressions in one state, which assignments change.

    Args:
        ctx: The name of ctx.
        count: How many flags there are; None if that varies.
        state: What the names stand for.
    """

    ctx: str
    count: int | None
    state: State

    def __call__(self, node: ast.expr) -> Alternatives:
        """What an expression may be."""
        if isinstance(node, ast.Constant):
            return NOTHING if node.value is None else made(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, (ast.Tuple, ast.List)):
            return self._display(node)
        if isinstance(node, ast.IfExp):
            return self._if_else(node)
        if isinstance(node, ast.BinOp):
            return self._operation(node, self(node.left), self(node.right))
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.NamedExpr):
            return self(node.value)
        if isinstance(node, ast.Attribute):
            return (Alternative(Flags(0, self.count)),) if self._is_flags(node) else made(node)
        return made(node)

    def flag(self, node: ast.expr) -> int | None:
        """The index of the one flag that an expression is; None for any other expression."""
        if not isinstance(node, (ast.Name, ast.Subscript)):
            return None
        things = [one.thing for one in possible(self(node), self.state.path)]
        return things[0].index if len(things) == 1 and isinstance(things[0], Flag) else None

    def flags(self, node: ast.expr) -> frozenset[int] | None:
        """The indices of a tuple of flags, `ANY` for all of them; None for any other expression."""
        things = [one.thing for one in possible(self(node), self.state.path)]
        if things == [Flags(0, self.count)]:
            return frozenset((ANY,))
        if len(things) != 1 or not isinstance(things[0], Flags) or things[0].count is None:
            return None
        return frozenset(range(things[0].start, things[0].start + things[0].count))

    def _is_flags(self, node: ast.Attribute) -> bool:
        return node.attr == "needs_input_grad" and isinstance(node.value, ast.Name) and node.value.id == self.ctx != ""

    def _name(self, node: ast.Name) -> Alternatives:
        found = self.state.names.get(node.id)
        if found is None:
            return made(node)
        # A name that stands for one value with a place of its own keeps that place; else this is the place to point to.
        return tuple(
            one._replace(thing=Made(node)) if isinstance(one.thing, Made) and one.thing.node is None else one
            for one in possible(found, self.state.path)
            if not isinstance(one.thing, Missing)
        ) or made(node)

    def _display(self, node: ast.Tuple | ast.List) -> Alternatives:
        entries: list[Entries] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                entries.extend(self.spread(self(element.value)))
            else:
                entries.append(self(element))
        return sequence(entries, is_list=isinstance(node, ast.List))

    def _if_else(self, node: ast.IfExp) -> Alternatives:
        then = under(self(node.body), of_test(node.test, True, self))
        other = under(self(node.orelse), of_test(node.test, False, self))
        return merged((*then, *other)) or UNKNOWN

    def _operation(self, node: ast.BinOp, left: Alternatives, right: Alternatives) -> Alternatives:
        first, second = one_several(left), one_several(right)
        if isinstance(node.op, ast.Add) and (first or second):
            entries = [*(first.entries if first else (Rest(),)), *(second.entries if second else (Rest(),))]
            return sequence(entries, is_list=(first or second or Several(())).is_list)
        if isinstance(node.op, ast.Mult) and (first or second):
            repeated, times = (first, node.right) if first else (second, node.left)
            assert repeated is not None
            if isinstance(times, ast.Constant) and isinstance(times.value, int) and 0 <= times.value <= LONGEST:
                return sequence(list(repeated.entries) * times.value, is_list=repeated.is_list)
            nothing = all(_is_nothing(entry) for entry in repeated.entries)
            return sequence([Rest(nothing)], is_list=repeated.is_list)
        return made(node)

    def _subscript(self, node: ast.Subscript) -> Alternatives:
        things = [one.thing for one in self(node.value)] if isinstance(node.value, (ast.Name, ast.Attribute)) else []
        if len(things) != 1:
            return made(node)
        index = integer(node.slice)
        if isinstance(things[0], Flags):
            return self._of_flags(node, things[0], index)
        if isinstance(things[0], Several) and things[0].count is not None:
            entries = things[0].entries
            if index is not None and -len(entries) <= index < len(entries):
                entry = entries[index]
                return entry if not isinstance(entry, Rest) else UNKNOWN
            bounds = _bounds(node.slice)
            if bounds is not None:
                return sequence(list(entries[slice(*bounds)]), is_list=things[0].is_list)
        return made(node)

    def _of_flags(self, node: ast.Subscript, flags: Flags, index: int | None) -> Alternatives:
        if index is not None:
            if flags.count is not None and not -flags.count <= index < flags.count:
                return made(node)
            if index < 0:
                return made(node) if flags.count is None else (Alternative(Flag(flags.start + flags.count + index)),)
            return (Alternative(Flag(flags.start + index)),)
        bounds = _bounds(node.slice)
        if bounds is None:
            return made(node)
        low, high = bounds
        if flags.count is not None:
            kept = range(flags.count)[slice(low, high)]
            return (Alternative(Flags(flags.start + kept.start, len(kept))),)
        if (low or 0) < 0 or (high or 0) < 0:
            return made(node)
        return (Alternative(Flags(flags.start + (low or 0), None if high is None else max(high - (low or 0), 0))),)

    def _call(self, node: ast.Call) -> Alternatives:
        """What a call gives: only tuple() and list() are looked through."""
        if isinstance(node.func, ast.Name) and node.func.id in ("tuple", "list") and not node.keywords:
            is_list = node.func.id == "list"
            inner = self(node.args[0]) if len(node.args) == 1 else ()
            found = one_several(inner)
            if found is not None:
                return (inner[0]._replace(thing=replace(found, is_list=is_list)),)
            if all(isinstance(one.thing, Several) for one in inner) and inner:
                return tuple(
                    one._replace(thing=replace(one.thing, is_list=is_list))
                    for one in inner
                    if isinstance(one.thing, Several)
                )
            return sequence([Rest()] if node.args else [], is_list=is_list)
        self._handed_on(node)
        return made(node)

    def _handed_on(self, node: ast.Call) -> None:
        """Whoever is called with a list may change it."""
        if isinstance(node.func, ast.Name) and node.func.id in _READERS:
            return
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if isinstance(argument, ast.Name):
                several = one_several(self.state.names.get(argument.id, ()))
                if several is not None and several.is_list:
                    self.state.names[argument.id] = sequence([Rest()], is_list=True)

    def spread(self, alternatives: Alternatives) -> list[Entries]:
        """The entries of what is written with a star, where there is one way to read it."""
        several = one_several(alternatives)
        return [Rest()] if several is None else list(several.entries)


def made(node: ast.expr) -> Alternatives:
    """The value of an expression of which no more is known."""
    return (Alternative(Made(node)),)


def sequence(entries: list[Entries], *, is_list: bool) -> Alternatives:
    """A tuple or list with these entries."""
    if len(entries) > LONGEST:
        entries = [Rest()]
    entries = [UNKNOWN if _is_deeper(entry, DEEPEST - 1) else entry for entry in entries]
    return (Alternative(Several(tuple(entries), is_list)),)


def _is_deeper(entry: Entries, limit: int) -> bool:
    """Whether tuples stand in tuples more than `limit` times at one place."""
    inner = [one.thing for one in entry if isinstance(one.thing, Several)] if not isinstance(entry, Rest) else []
    return bool(inner) and (limit == 0 or any(_is_deeper(part, limit - 1) for one in inner for part in one.entries))


def one_several(alternatives: Alternatives) -> Several | None:
    """The tuple or list, where there is one alternative and it is one."""
    if len(alternatives) == 1 and isinstance(alternatives[0].thing, Several):
        return alternatives[0].thing
    return None


def _is_nothing(entry: Entries) -> bool:
    if isinstance(entry, Rest):
        return entry.nothing
    return all(isinstance(one.thing, Nothing) for one in entry)


def integer(node: ast.expr) -> int | None:
    """The number that a literal is; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = integer(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _bounds(node: ast.expr) -> tuple[int | None, int | None] | None:
    """The bounds of a slice with step 1, where they are numbers."""
    if not isinstance(node, ast.Slice) or node.step is not None:
        return None
    low = None if node.lower is None else integer(node.lower)
    high = None if node.upper is None else integer(node.upper)
    if (node.lower is not None and low is None) or (node.upper is not None and high is None):
        return None
    return low, high
