"""Gradients that a few dense directions confirm, more sharply than differences by single elements would.

Differences by each element take six calls for each; a right gradient needs few. Along a direction of all elements at
once, none of them near 0, the slope of <cotangent, output> is the sum of what each element adds. Sharp differences know
that slope to some eleven digits, so that an error shows which is a tenth of what a difference by its own element would
let pass. Where it doesn't show along two such directions, nor along random halves of the elements, every element is
right. Where anything disagrees, isn't smooth, or is known too coarsely, nothing is confirmed: the truth is then found
element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pullback.battery.curves import CurveMaker, curve_maker
from pullback.battery.numerics import Slopes, certain_slopes, flat, signs, single_difference
from pullback.battery.raised import BackwardRaised
from pullback.battery.subject import Case, Leaf, Subject
from pullback.battery.tolerances import CERTAIN, CONFIRMED, EVERY_ELEMENT_UP_TO, SMALLEST_SHARE

Gradients = Mapping[tuple[str, int], "torch.Tensor | None"]
"""(leaf, place among the differentiable outputs) -> the gradient."""

_DENSE = 2
_HALVES = 4
"""At a tie, as of a median, each line is smooth, and a wrong gradient may be that of one or two by chance."""


def confirmed_gradients(
    subject: Subject,
    point: Case,
    oracle: Callable[..., Any] | None,
    positions: tuple[int, ...],
    cotangents: tuple[torch.Tensor, ...],
) -> Gradients:
    """The gradients at a point, where the oracle is smooth there and its differences agree with all of them.

    Empty where it isn't, or anything is in doubt.

    Args:
        subject: Whose.
        point: Where.
        oracle: What is differentiated by differences; forward itself if None.
        positions: Those of the differentiable outputs.
        cotangents: One for each of them.

    Raises:
        ForwardRaised: If forward refuses what lies beside the point.
    """
    try:
        gradients, leaves = _gradients(subject, point, positions, cotangents)
    except BackwardRaised:
        return {}
    sharp, rough = (
        curve_maker(subject, point, oracle, positions, cotangents, differentiate)
        for differentiate in (certain_slopes, single_difference)
    )
    for leaf in leaves:
        rows = [_elements(gradients[leaf.name, place], leaf) for place in range(len(positions))]
        if not all(bool(row.isfinite().all()) for row in rows):
            return {}
        for _ in range(_DENSE):
            direction = _dense(rows[0].numel(), subject)
            found = sharp(leaf.name, direction)
            if not bool(found.smooth.all()) or not _agree(rows, direction, found):
                return {}
        if not _halves_agree(subject, leaf, rows, rough):
            return {}
    return gradients


def _halves_agree(subject: Subject, leaf: Leaf, rows: list[torch.Tensor], rough: CurveMaker) -> bool:
    """Whether the slopes along random halves of a leaf's elements are the sums of their gradients, too."""
    count = rows[0].numel()
    for _ in range(_HALVES if count > 1 else 0):
        direction = _dense(count, subject) * (signs(count, subject.random) > 0)
        found = rough(leaf.name, direction)
        for place, row in enumerate(rows):
            terms = row * direction
            off = abs(float(terms.sum()) - float(found.values[place]))
            if not off <= CONFIRMED * float(row.abs().max()) + float(found.errors[place]):
                return False
    return True


def _gradients(
    subject: Subject, point: Case, positions: tuple[int, ...], cotangents: tuple[torch.Tensor, ...]
) -> tuple[dict[tuple[str, int], torch.Tensor | None], tuple[Leaf, ...]]:
    gradients: dict[tuple[str, int], torch.Tensor | None] = {}
    leaves: tuple[Leaf, ...] = ()
    for place in range(len(positions)):
        inputs = subject.fresh(point)
        outputs = subject.call(inputs)
        given = [c if other == place else torch.zeros_like(c) for other, c in enumerate(cotangents)]
        leaves = inputs.varying
        found = subject.gradients([outputs[position] for position in positions], given, leaves)
        for leaf, gradient in zip(leaves, found, strict=True):
            gradients[leaf.name, place] = gradient
    return gradients, leaves


def _elements(gradient: torch.Tensor | None, leaf: Leaf) -> torch.Tensor:
    return torch.zeros_like(flat(leaf.tensor)) if gradient is None else flat(gradient)


def _dense(count: int, subject: Subject) -> torch.Tensor:
    """A direction along which no element is near 0, and no two are alike."""
    return signs(count, subject.random) * (torch.rand(count, generator=subject.random, dtype=torch.float64) + 0.5)


def _agree(rows: list[torch.Tensor], direction: torch.Tensor, found: Slopes) -> bool:
    """Whether the slopes are those of the gradients, to within less than an element's own difference would allow."""
    for place, row in enumerate(rows):
        terms = row * direction
        allowed = CERTAIN * float(row.abs().max()) if row.numel() else 0.0
        if row.numel() > EVERY_ELEMENT_UP_TO:  # there an element alone is not looked at
            allowed = max(allowed, SMALLEST_SHARE / 10 * float(terms.norm()))
        off = abs(float(terms.sum()) - float(found.values[place]))
        if not off + float(found.errors[place]) <= allowed:
            return False
    return True
