"""What has to hold for a statement to run: flags of needs_input_grad that were asked for, and other tests."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Flags(Protocol):
    """Which expressions are flags of needs_input_grad."""

    def flag(self, node: ast.expr) -> int | None:
        """The index of the one flag that an expression is; None for any other expression."""

    def flags(self, node: ast.expr) -> frozenset[int] | None:
        """The indices of a tuple of flags, `ANY` for all of them; None for any other expression."""


class Condition(NamedTuple):
    """A test with the result that it had on a path.

    Attributes:
        flags: The flags that were asked for; empty for a test of anything else.
        on: Whether the test held. Of several flags: that at least one is on; where it is False, that all are off.
        text: The test itself, where it isn't made of flags.
        never: What can't all hold at once after it: the parts of an ``and`` that didn't hold.
    """

    flags: frozenset[int]
    on: bool
    text: str = ""
    never: frozenset[Condition] = frozenset()

    @property
    def is_flag(self) -> bool:
        """Whether it asks for flags, and for nothing else."""
        return bool(self.flags)

    def contradicts(self, other: Condition) -> bool:
        """Whether the two can't hold together."""
        if self.on == other.on:
            return False
        on, off = (self, other) if self.on else (other, self)
        if self.is_flag and other.is_flag:
            return on.flags <= off.flags
        return self.text == other.text and self.is_flag == other.is_flag


ANY = -1
"""Stands for all flags at once: backward is only called where one of them is on."""

Conditions = frozenset[Condition]
NONE_ASKED: Conditions = frozenset()
CALLED: Conditions = frozenset((Condition(frozenset((ANY,)), True),))
"""What holds wherever backward runs."""


def together(first: Conditions, second: Conditions) -> Conditions | None:
    """Both at once; None where that can't be."""
    if any(one.contradicts(other) for one in first for other in second):
        return None
    both = first | second
    return None if any(one.never and one.never <= both for one in both) else both


def of_test(test: ast.expr, on: bool, reader: Flags) -> Conditions:
    """What is known where a test came out as `on`.

    Args:
        test: The test of an ``if``, an ``assert``, or a conditional expression.
        on: Its result.
        reader: Which expressions are flags.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return of_test(test.operand, not on, reader)
    flags = _flags(test, reader)
    if flags is not None:
        return frozenset((Condition(flags, on),))
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == on:
        # Each part of an `and` that held, held; each part of an `or` that didn't, didn't.
        return frozenset().union(*(of_test(part, on, reader) for part in test.values))
    never: Conditions = frozenset()
    if isinstance(test, ast.BoolOp):
        never = frozenset().union(*(of_test(part, not on, reader) for part in test.values))
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot) and len(test.ops) == 1:
        test, on = ast.Compare(test.left, [ast.Is()], test.comparators), not on  # one text for both
    return frozenset((Condition(frozenset(), on, ast.unparse(test), never),))


def _flags(test: ast.expr, reader: Flags) -> frozenset[int] | None:
    """The flags of a test that holds exactly if one of them is on."""
    single = reader.flag(test)
    if single is not None:
        return frozenset((single,))
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        parts = [_flags(part, reader) for part in test.values]
        known = [part for part in parts if part is not None]
        return frozenset().union(*known) if len(known) == len(parts) else None
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and len(test.args) == 1 and not test.keywords:
        if test.func.id == "bool":
            return _flags(test.args[0], reader)
        if test.func.id == "any":
            return _of_any(test.args[0], reader)
    return None


def _of_any(argument: ast.expr, reader: Flags) -> frozenset[int] | None:
    if isinstance(argument, (ast.Tuple, ast.List)):
        parts = [_flags(part, reader) for part in argument.elts]
        known = [part for part in parts if part is not None]
        return frozenset().union(*known) if known and len(known) == len(parts) else None
    return reader.flags(argument)


def asked(conditions: Iterable[Condition]) -> frozenset[int]:
    """Every flag of which one at least had to be on."""
    return frozenset().union(*(one.flags for one in conditions if one.on)) - {ANY}
