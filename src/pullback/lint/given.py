"""What backward returns for each argument, as far as it shows what the argument is."""

from __future__ import annotations

from typing import Literal

from pullback.lint.analysis import Analysis
from pullback.lint.values import Origin, Value

Gradient = Literal["some", "none", "unknown"]
"""Whether an argument gets a gradient on some path, on none, or nobody knows."""


def gradient_of(analysis: Analysis, name: str) -> Gradient:
    """Whether backward returns a gradient for an argument of forward, by the argument's name."""
    forward, backward = analysis.function.forward, analysis.backward
    names = [parameter.name for parameter in forward.positional] if forward else []
    if backward is None or name not in names:
        return "unknown"
    alone = len(names) == 1 and forward is not None and not forward.vararg
    entries = [_entry(one.value, names.index(name), alone=alone) for one in backward.returns]
    if not entries or any(entry is None for entry in entries):
        return "unknown"
    least = len(forward.required) if forward is not None else 0
    if any(one.value.items is not None and len(one.value.items) < least for one in backward.returns):
        return "unknown"  # one is missing, so that nobody knows whose the others are
    kinds = frozenset().union(*(entry.kinds for entry in entries if entry is not None))
    if kinds == {"none"}:
        return "none"
    return "some" if kinds & {"tensor", "unknown"} else "unknown"


def _entry(value: Value, index: int, *, alone: bool) -> Value | None:
    """What stands at a position of what was returned; None where that isn't known."""
    if value.items is not None:
        return value.items[index] if index < len(value.items) else None
    return value if alone and value.kinds <= {"tensor", "none", "unknown"} and value.family is None else None


def is_tensor(analysis: Analysis, value: Value) -> bool:
    """Whether a value of forward or setup_context surely is a tensor, or None in its place.

    An argument for which a gradient is returned is one, whatever else is known of it.
    """
    kinds = value.kinds - {"none", "unbound"}
    if kinds == {"tensor"}:
        return True
    names = {origin.name for origin in value.origins if origin.kind == "input"}
    return (
        kinds == {"unknown"}
        and value.surely("input")
        and all(origin.how == "same" for origin in value.origins)
        and all(gradient_of(analysis, name) == "some" for name in names)
    )


def returned(analysis: Analysis) -> frozenset[Origin]:
    """The origins of what forward gives back."""
    flow = analysis.forward
    found: set[Origin] = set()
    for one in flow.returns if flow is not None else ():
        for value in (one.value, *(one.value.items or ())):
            found |= value.origins
    return frozenset(found)
