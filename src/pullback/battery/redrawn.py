"""A sample with other values: normal ones, of both signs and up to some six in size; or its own made small or large.

A formula that holds for positive numbers alone, or a table that ends at 2, is right on samples from [0, 1]. Near 0 a
series may stand for a quotient, and a clamp begins somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from pullback.battery.away import has_values, numbered
from pullback.battery.leaves import is_dense, is_float, is_symmetric
from pullback.battery.numerics import flat, normals, unflat
from pullback.battery.raised import ForwardRaised
from pullback.battery.subject import Case, Subject, with_tensors

OTHER_VALUES = "values from a normal distribution"
"""What a sample is said to have then."""

_SPREAD = 2.0
"""The standard deviation: twice that of most samples."""

_LEAST = 0.1
"""No number is smaller, so that quotients stay well conditioned."""

_SMALL = 8
"""Of so few numbers all may come out positive, or small."""

_NUMBER = 700
"""The variants are numbered from here on."""


_SIZES = ((2.0**-6, "values divided by 64"), (32.0, "values multiplied by 32"))
"""By how much a sample's own values are made smaller or larger, and what it is said to have then."""

_SIZED = 720
"""These variants are numbered from here on."""


def resized(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """The case with smaller and with larger values of what varies, as far as forward gives finite results for them."""
    varying = {id(t) for name, _, t in subject.named_tensors(case.sample) if name in case.varying and is_dense(t)}
    for place, (factor, label) in enumerate(_SIZES):

        def put(tensor: torch.Tensor, factor: float = factor) -> torch.Tensor:
            return tensor.detach() * factor if id(tensor) in varying else tensor

        variant = numbered(case, replace(case, sample=with_tensors(case.sample, put)), _SIZED + place)
        if _is_taken(subject, variant):
            yield label, variant


def redrawn(subject: Subject, case: Case) -> Iterator[Case]:
    """The case with the first values that forward takes and gives finite results for; none where it takes none.

    All floating tensors are drawn anew, but for symmetric matrices that don't vary, which a solver may be for alone;
    positive where forward refuses negative ones; else those alone that vary. For small tensors another variant follows,
    where each number has the other sign, and is large where it was small.
    """
    names = [(id(t), name) for name, _, t in subject.named_tensors(case.sample) if is_float(t) and is_dense(t)]
    varying = {key for key, name in names if name in case.varying}
    kept = {id(t) for _, _, t in subject.named_tensors(case.sample) if is_symmetric(t)}
    everything = {key for key, _ in names if key in varying or key not in kept}
    number = _NUMBER
    for chosen in (everything, varying) if everything != varying else (varying,):
        for positive in (False, True):
            drawn = _draw(subject, case, chosen)
            variant = numbered(case, _put(case, drawn, positive=positive), number)
            number += 1
            if not _is_taken(subject, variant):
                continue
            yield variant
            other = numbered(case, _put(case, _turned(drawn), positive=positive), number)
            if any(numbers.numel() <= _SMALL for numbers in drawn.values()) and _is_taken(subject, other):
                yield other
            return


def _is_taken(subject: Subject, variant: Case) -> bool:
    try:
        return has_values(subject, variant)
    except ForwardRaised:
        return False


def _draw(subject: Subject, case: Case, chosen: set[int]) -> dict[int, torch.Tensor]:
    """New numbers for each of some tensors, by its identity."""
    drawn = {}
    for _, _, tensor in subject.named_tensors(case.sample):
        if id(tensor) in chosen and id(tensor) not in drawn:
            numbers = _SPREAD * normals(flat(tensor).numel(), subject.random)
            drawn[id(tensor)] = numbers + torch.where(numbers < 0, -_LEAST, _LEAST)
    return drawn


def _turned(drawn: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Numbers of the other sign; those below the spread are moved beyond it, and the others are made small."""

    def turn(numbers: torch.Tensor) -> torch.Tensor:
        sizes = numbers.abs()
        return -numbers.sign() * torch.where(sizes <= _SPREAD, sizes + 1.25 * _SPREAD, _LEAST + sizes / 8)

    return {key: turn(numbers) for key, numbers in drawn.items()}


def _put(case: Case, drawn: dict[int, torch.Tensor], *, positive: bool) -> Case:
    def put(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in drawn:
            return tensor
        numbers = drawn[id(tensor)].abs() if positive else drawn[id(tensor)]
        return unflat(numbers.to(tensor.device), tensor.detach()).clone()

    return replace(case, sample=with_tensors(case.sample, put))
