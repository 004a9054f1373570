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

from pullback.battery.curves import Lines
from pullback.battery.numerics import certain_slopes, dense, flat, half, single_difference
from pullback.battery.raised import BackwardRaised
from pullback.battery.subject import Case, Leaf, Subject
from pullback.battery.tolerances import CERTAIN, CONFIRMED, EVERY_ELEMENT_UP_TO, SMALLEST_SHARE

Gradients = Mapping[tuple[str, int], "torch.Tensor | None"]
"""(leaf, place among the differentiable outputs) -> the gradient."""

Rows = Mapping[str, "list[torch.Tensor]"]
"""Leaf -> its gradients as vectors, one for each differentiable output."""

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
    lines = Lines(subject, point, oracle, positions, cotangents)
    rows = {
        leaf.name: [_elements(gradients[leaf.name, place], leaf) for place in range(len(positions))] for leaf in leaves
    }
    if not all(bool(row.isfinite().all()) for some in rows.values() for row in some):
        return {}
    if len(rows) > 1 and all(bool(row.any()) for some in rows.values() for row in some):
        # All leaves at once take as many calls as one: what is wrong in any of them shows, if it is large enough.
        if _confirmed(subject, lines, rows):
            return gradients
    return gradients if all(_confirmed(subject, lines, {name: some}) for name, some in rows.items()) else {}


def _confirmed(subject: Subject, lines: Lines, rows: Rows) -> bool:
    """Whether differences agree with the gradients of some leaves, along lines that move all their elements."""
    return all(_agrees(subject, lines, rows) for _ in range(_DENSE)) and _halves_agree(subject, lines, rows)


def _agrees(subject: Subject, lines: Lines, rows: Rows) -> bool:
    """Whether the slopes are those of the gradients, to within less than an element's own difference would allow."""
    directions = {name: lines.sizes[name] * dense(some[0].numel(), subject.random) for name, some in rows.items()}
    found = certain_slopes(lines.curve(directions), 1.0, lines.magnitude)
    if not bool(found.smooth.all()):
        return False
    for place in range(len(found.values)):
        terms = {name: some[place] * directions[name] for name, some in rows.items()}
        off = abs(sum(float(part.sum()) for part in terms.values()) - float(found.values[place]))
        allowed = min(_allowed(rows[name][place], lines.sizes[name], part) for name, part in terms.items())
        if not off + float(found.errors[place]) <= allowed:
            return False
    return True


def _allowed(row: torch.Tensor, size: float, terms: torch.Tensor) -> float:
    """How far a slope may be off for the gradient of one leaf, whose elements move by about `size`."""
    allowed = CERTAIN * float(row.abs().max()) * size if row.numel() else 0.0
    if row.numel() > EVERY_ELEMENT_UP_TO:  # there an element alone is not looked at
        allowed = max(allowed, SMALLEST_SHARE / 10 * float(terms.norm()))
    return allowed


def _halves_agree(subject: Subject, lines: Lines, rows: Rows) -> bool:
    """Whether the slopes along random halves of the elements are the sums of their gradients, too."""
    if sum(some[0].numel() for some in rows.values()) <= 1:
        return True
    for _ in range(_HALVES):
        directions = {name: lines.sizes[name] * half(some[0].numel(), subject.random) for name, some in rows.items()}
        found = single_difference(lines.curve(directions), 1.0, lines.magnitude)
        for place in range(len(found.values)):
            slope = sum(float((some[place] * directions[name]).sum()) for name, some in rows.items())
            least = min(float(some[place].abs().max()) * lines.sizes[name] for name, some in rows.items())
            if not abs(slope - float(found.values[place])) <= CONFIRMED * least + float(found.errors[place]):
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
