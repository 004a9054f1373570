"""Gradients that are off by one and the same small factor, which differences of single elements let pass.

A millionth that is added to a denominator, or a constant with too few digits, is less than what differences by single
elements can be asked for. An approximation may be off by as much, but by another share in each element. So only what is
off by one factor along every line is a fault, and only where nothing is iterated: a solver may stop early.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.battery.curves import Lines
from pullback.battery.nodes import low_precision_in, low_precision_in_forward
from pullback.battery.numerics import certain_slopes, flat
from pullback.battery.paths import instructions
from pullback.battery.repro import factor_lines
from pullback.battery.subject import Leaf, Subject
from pullback.battery.tolerances import COMMON_FACTOR
from pullback.battery.truth import Truth
from pullback.finding import Finding

_LINES = 4
_ELEMENTS = 3
"""Of so few elements or fewer any are off by one factor, nearly."""

_ALIKE = 0.05
"""The share by which the factors along two lines may differ in what they are off 1, and still be one."""


def off_by_a_factor(subject: Subject, truth: Truth) -> Iterator[Finding]:
    """A finding for the first argument whose gradient is off by a common factor of less than differences can see.

    Args:
        subject: Whose.
        truth: Where differences by single elements agree with the gradients.
    """
    if truth.source != "finite differences" or truth.exact or truth.confirmed or truth.partial:
        return
    inputs = subject.fresh(truth.case)
    outputs = subject.call(inputs)
    gradients = subject.gradients([outputs[place] for place in truth.outputs], truth.cotangents, inputs.varying)
    lines = Lines(subject, truth.case, None, truth.outputs, truth.cotangents)
    for leaf, gradient in zip(inputs.varying, gradients, strict=True):
        factor = _common(subject, lines, leaf, gradient)
        if factor is None or _computes_lower(subject, truth) or _repeats_itself(subject, truth):
            continue
        yield subject.finding(
            "PB203",
            truth.case,
            f"the gradient of {leaf.name} is off by a factor of 1 {'+' if factor > 0 else '-'} {abs(factor):.1g}, the "
            "same along each of some random lines",
            argument=leaf.name,
            expected="the slope of forward",
            got=f"{1 + factor:.10g} times that",
            remedy="Look for a number with too few digits, or one that is added so that nothing is divided by 0.",
            evidence={"max_error": abs(factor), "against": truth.source},
            repro=factor_lines(subject, truth.case, leaf.name),
        )
        return


def _common(subject: Subject, lines: Lines, leaf: Leaf, gradient: torch.Tensor | None) -> float | None:
    """By how much the factor is off 1, where it is one and the same along each line; None where it isn't, or is 1."""
    elements = flat(gradient) if gradient is not None else torch.zeros(0)
    if int((elements != 0).sum()) <= _ELEMENTS:
        return None
    known = None
    for _ in range(_LINES):
        sizes = torch.rand(elements.shape, generator=subject.random, dtype=torch.float64)
        direction = elements.sign() * sizes.square()  # so that nothing cancels, and some elements hardly move
        found = certain_slopes(lines.curve({leaf.name: lines.sizes[leaf.name] * direction}), 1.0, lines.magnitude)
        if not bool(found.smooth.all()):
            return None
        slope, error = float(found.values.sum()), float(found.errors.sum())
        claimed = float((elements * direction).sum()) * lines.sizes[leaf.name]
        off = claimed / slope - 1 if slope else 0.0
        if abs(off) < COMMON_FACTOR or error > _ALIKE * abs(off * slope):
            return None
        known = off if known is None else known
        if abs(off - known) > _ALIKE * abs(known):
            return None
    return known


def _computes_lower(subject: Subject, truth: Truth) -> bool:
    """Whether something is computed in a lower dtype, whose roundings may well be one number's."""
    low = low_precision_in(subject, truth.case, truth.cotangents, truth.outputs)
    return low is not None or low_precision_in_forward(subject, truth.case) is not None


class _Instructions(set[object]):
    """Those that ran, and whether any ran again."""

    again = False

    def add(self, instruction: object) -> None:
        """Note that an instruction runs."""
        self.again = self.again or instruction in self
        super().add(instruction)


def _repeats_itself(subject: Subject, truth: Truth) -> bool:
    """Whether a line of backward's runs more than once, as in a loop."""
    inputs = subject.fresh(truth.case)
    outputs = subject.call(inputs)
    with instructions(seen := _Instructions()):
        subject.gradients([outputs[place] for place in truth.outputs], truth.cotangents, inputs.varying)
    return seen.again
