"""Whether forward is another function in a lower dtype, where no reference says what it should be.

Its values in float64, at numbers that the lower dtype holds, stand for what is right. A value near a jump may fall on
its other side when rounded; so it counts only where the largest difference is far above what random roundings do to any
element, at the sample and at other values too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch

from pullback.battery.budgets import Shake
from pullback.battery.compare import Mismatch, compare
from pullback.battery.draws import draws
from pullback.battery.leaves import is_float
from pullback.battery.numerics import flat
from pullback.battery.oracle import in_double, moved
from pullback.battery.raised import ForwardRaised
from pullback.battery.redrawn import redrawn
from pullback.battery.repro_precision import lower_value_lines
from pullback.battery.subject import Case, Output, Subject
from pullback.battery.tolerances import EXACT, LOW_VALUES, PRECISIONS, for_values, has_room
from pullback.finding import Finding

_SHAKES = 6
"""How often everything is rounded at random: a jump that is near shows in one of them."""


def another_value(subject: Subject, case: Case, dtype: torch.dtype) -> Finding | None:
    """The finding for the first output that is far from float64's, at a sample and at other values of it."""
    if subject.reference is not None or draws(subject, case).forward or not case.may_vary("values"):
        return None
    found = _far_off(subject, case, dtype)
    if found is None or not all(_far_off(subject, other, dtype) for other in _others(subject, case)):
        return None
    name, bad = found
    short = str(dtype).removeprefix("torch.")
    return subject.finding(
        "PB219",
        case,
        f"in {short} {name} is another than in float64, by more than rounding explains",
        output=name,
        what=short,
        expected=f"{bad.expected}, as in float64",
        got=bad.got,
        remedy="Compute the same in every dtype that forward takes, or refuse the dtype.",
        evidence={**bad.evidence, "dtype": short},
        repro=lower_value_lines(subject, case, dtype),
    )


def _others(subject: Subject, case: Case) -> Iterator[Case]:
    """Other values of the case, that forward takes."""
    return (replace(variant, index=case.index) for variant in islice(redrawn(subject, case), 1))


def _far_off(subject: Subject, case: Case, dtype: torch.dtype) -> tuple[str, Mismatch] | None:
    """The output that differs from that in float64 by far more than any element does under random roundings."""

    def down(_: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    low = moved(subject, case, down)
    high = moved(subject, low, lambda _, tensor: in_double(tensor))
    try:
        came, wanted = _values(subject, low), _values(subject, high)
        shaken = [_shaken(subject, high, Shake(PRECISIONS[dtype].unit, subject.random)) for _ in range(_SHAKES)]
    except ForwardRaised:
        return None
    for place, (got, right) in enumerate(zip(came, wanted, strict=False)):
        if not is_float(got.tensor) or got.tensor.shape != right.tensor.shape or not got.tensor.numel():
            continue
        if compare(right.tensor, in_double(got.tensor), for_values(dtype)) is None:
            continue
        exact = flat(right.tensor)
        if not has_room(float(exact.abs().max()), dtype):
            continue  # what overflows there, on the way or at its end, does so for everybody
        moves = [float((flat(other[place].tensor) - exact).abs().max()) for other in shaken]
        off = float((flat(got.tensor) - exact).abs().max())
        rounded = PRECISIONS[dtype].unit * float(exact.abs().max()) + PRECISIONS[dtype].smallest
        if off > LOW_VALUES * (max(moves) + rounded):
            bad = compare(right.tensor, in_double(got.tensor), EXACT)
            return (got.name, bad) if bad is not None else None
    return None


def _values(subject: Subject, case: Case) -> tuple[Output, ...]:
    return subject.call(subject.fresh(case, requires=()))


def _shaken(subject: Subject, case: Case, shake: Shake) -> tuple[Output, ...]:
    rounded = moved(subject, case, lambda _, tensor: shake.rounded(tensor))
    inputs = subject.fresh(rounded, requires=())
    with shake.operators():
        return subject.call(inputs)
