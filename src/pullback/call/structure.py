"""The structure of a call: its arguments by name, and which of them are nests of leaves.

A leafwise call has the leaves for its arguments, and a `Given` after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.call.nests import Nest
from pullback.define.cached import cached_property


class Given:
    """The arguments as the caller gave them: the last of a leafwise call's own, beside the leaves.

    forward runs on them, so that what it writes to a list is seen outside, as in PyTorch. It takes them away when it
    does: nothing keeps them alive, and when it is run again, they are built anew of the leaves.

    Args:
        values: The arguments; None where they are to be built of the leaves from the start.
    """

    __slots__ = ("_values",)

    def __init__(self, values: tuple[Any, ...] | None = None) -> None:
        self._values = values

    def taken(self) -> tuple[Any, ...] | None:
        """The arguments, the first time."""
        values, self._values = self._values, None
        return values


@dataclass(frozen=True)
class Structure:
    """What two calls have in common that differ in their leaves only.

    Attributes:
        names: The name of each argument, in order, those that go by keyword last.
        nests: For each argument: None for one that is passed on as it is, or the nest.
        keywords: How many of the last arguments go by keyword.
    """

    names: tuple[str, ...]
    nests: tuple[Nest | None, ...]
    keywords: int = 0

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of leaves of each argument."""
        return tuple([1 if nest is None else nest.size for nest in self.nests])

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The name of each leaf, such as ``state['w']``; of an argument that is none, its own."""
        pairs = zip(self.names, self.nests, strict=True)
        return tuple([path for name, nest in pairs for path in ((name,) if nest is None else nest.paths(name))])

    @cached_property
    def seen(self) -> tuple[bool, ...]:
        """For each leaf whether the author knows it as one: a module itself, beside its parameters, is none."""
        return tuple([flag for nest in self.nests for flag in ((True,) if nest is None else nest.seen())])

    def owners(self, names: Sequence[bool]) -> tuple[bool, ...]:
        """For each leaf the flag of its argument."""
        return tuple([flag for flag, size in zip(names, self.sizes, strict=True) for _ in range(size)])

    def by_argument(self, leaves: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The leaves of each argument."""
        start = 0
        for size in self.sizes:
            yield leaves[start : start + size]
            start += size

    def any_of(self, flags: Sequence[bool]) -> tuple[bool, ...]:
        """For each argument whether a flag of its leaves is set."""
        return tuple([any(own) for own in self.by_argument(flags)])

    def nested(self, leaves: Sequence[Any], *, values: bool = False) -> tuple[Any, ...]:
        """The arguments that have these leaves.

        Args:
            leaves: One for each of `paths`.
            values: Whether they belong to the arguments' leaves, as tangents do; see `Nest.rebuilt`.
        """
        rest = iter(leaves)
        return tuple([next(rest) if nest is None else nest.rebuilt(rest, values=values) for nest in self.nests])

    def arguments(self, leaves: Sequence[Any], given: Given) -> tuple[Any, ...]:
        """The arguments for a run of forward: those that the caller gave, where they are still to be had."""
        values = given.taken()
        return self.nested(leaves) if values is None else values

    def split(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments by position, and those by keyword."""
        if not self.keywords:
            return arguments, {}
        end = len(arguments) - self.keywords
        return arguments[:end], dict(zip(self.names[end:], arguments[end:], strict=True))
