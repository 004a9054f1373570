"""The tensors among the arguments of a call, and back: what belongs to an argument, and what to an operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


class Operands:
    """Where the tensors of a call stand among its arguments.

    Args:
        arguments: All arguments of the call.

    Attributes:
        positions: The arguments that are tensors.
        plain: The arguments, None for the tensors.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.positions = [index for index, value in enumerate(arguments) if isinstance(value, Tensor)]
        self.plain = [None if isinstance(value, Tensor) else value for value in arguments]

    def __len__(self) -> int:
        return len(self.positions)

    def arguments(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of the call, with `operands` for the tensors."""
        every = [*self.plain]
        for position, operand in zip(self.positions, operands, strict=True):
            every[position] = operand
        return tuple(every)

    def by_argument(self, entries: Sequence[Any]) -> tuple[Any, ...]:
        """One entry for each argument, None for those that aren't tensors."""
        every = [None] * len(self.plain)
        for position, entry in zip(self.positions, entries, strict=True):
            every[position] = entry
        return tuple(every)

    def flags(self, needs: Sequence[bool]) -> tuple[bool, ...]:
        """One flag for each argument, out of one for each operand."""
        return tuple(map(bool, self.by_argument(needs)))

    def by_operand(self, entries: Sequence[Any], flags: Sequence[bool]) -> tuple[Any, ...]:
        """One entry for each operand, out of one for each argument; None where it has no flag."""
        return tuple(entries[position] if flags[position] else None for position in self.positions)
