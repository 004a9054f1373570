"""Arguments that have a default: what is passed for them in a guess, and which stay at their default.

An optional tensor, a bias say, is None unless it is given. Left at that its gradient is never looked at, so a tensor is
tried for it as for any other argument; and what stays at None in every sample is named among what wasn't tested. A flag
is tried both ways.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator, Sequence
from typing import Literal, get_args, get_origin

from pullback.battery.guesses import TARGETS, Guess, Made, Shape, Slot, slot_of

_REDUCTIONS = ("mean", "sum", "none")

_WRITTEN = frozenset({"out"})
"""Names of tensors that are written to: none is guessed for them where they may be left out."""


def defaults_of(parameters: Sequence[inspect.Parameter], *, tensors: bool = False) -> tuple[Slot, ...]:
    """The slots of what has a default: that default.

    Args:
        parameters: Those of the signature.
        tensors: Whether tensors are to be guessed for those that may be one and are None by default.
    """
    found = []
    for parameter in parameters:
        if parameter.default is not inspect.Parameter.empty:
            optional = optional_tensor(parameter) if tensors else None
            by_name_alone = parameter.kind is inspect.Parameter.KEYWORD_ONLY
            found.append(optional or Slot(parameter.name, "value", parameter.default, by_name_alone))
    return tuple(found)


def optional_tensor(parameter: inspect.Parameter) -> Slot | None:
    """The slot of a parameter that may be a tensor, by its annotation and name, and is None by default."""
    if parameter.default is not None or parameter.name in _WRITTEN:
        return None
    slot = slot_of(parameter, 0, by_name=True)
    return slot if slot.kind in ("tensor", "any") else None


def choices(parameter: inspect.Parameter, value: object) -> list[object]:
    """What else a flag or a choice may be: the other flag, other members or literals, other ways to reduce."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, enum.Enum):
        return [member for member in type(value) if member is not value]
    listed = get_args(parameter.annotation) if get_origin(parameter.annotation) is Literal else ()
    if not listed and isinstance(value, str) and value in _REDUCTIONS:
        listed = _REDUCTIONS
    return [other for other in listed if other != value and isinstance(value, str)]


def fillings(guess: Guess, slot: Slot, outputs: Sequence[Shape]) -> Iterator[Made]:
    """The tensors to try for an optional one: a number for each column, or channel, or element of what is there."""
    result = next(iter(outputs), ())
    tensors = [entry.shape for entry in guess.entries if isinstance(entry, Made)]
    shapes = [result[-1:], result[1:2], *(shape[-1:] for shape in tensors), *tensors, result, ()]
    shapes.sort(key=lambda shape: not shape)  # one without dimensions fits nearly everywhere, and proves little
    if slot.name in TARGETS:
        yield from (Made(shape, "bool", grad=False) for shape in dict.fromkeys((result, guess.first)))
        yield from (Made(shape, "int", grad=False) for shape in dict.fromkeys((guess.first[:1], guess.first)))
    yield from (Made(shape) for shape in dict.fromkeys(shapes))
