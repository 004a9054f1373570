"""Whether backward is right away from the samples: at a variant of one that nobody gave, which forward takes.

Nothing is asked where the sample's own gradient isn't known to be right, nor where there is no derivative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pullback.battery.compare import Mismatch
from pullback.battery.iterations import diverges
from pullback.battery.observe import is_finite
from pullback.battery.ordinary import Pulled, agree, is_right, pulled_at
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.subject import Case, Subject
from pullback.battery.tolerances import NOTHING
from pullback.battery.truth import differentiable, truth_of

FIRST_FEW = 2
"""Variants that are no special points are made of so many samples: one without a bias, say, beside one with it."""

_NUMBERS = 1000
"""Variants are numbered apart from the samples, since what is known of a case is remembered by its number."""


@dataclass(frozen=True)
class Fault:
    """What is wrong at a variant.

    Attributes:
        argument: Whose gradient is wrong; empty where backward raises.
        mismatch: By how much; None where backward raises.
        error: What it raises, in one line.
    """

    argument: str = ""
    mismatch: Mismatch | None = None
    error: str = ""


def numbered(case: Case, variant: Case, number: int) -> Case:
    """The variant with a number of its own: `number` is below 1000, and no other variant of the sample has it."""
    return replace(variant, index=(case.index + 1) * _NUMBERS + number)


def has_values(subject: Subject, variant: Case) -> bool:
    """Whether forward's outputs are finite there, and hold something.

    Raises:
        ForwardRaised: If forward refuses the variant.
    """
    outputs = subject.call(subject.fresh(variant, requires=()))
    return any(o.tensor.numel() for o in outputs) and all(is_finite(output.tensor) for output in outputs)


def fault_at(subject: Subject, case: Case, variant: Case) -> Fault | None:
    """What is wrong at a numbered variant of a case, if anything is.

    Raises:
        ForwardRaised: If forward refuses the variant.
    """
    inputs = subject.fresh(variant)
    outputs = subject.call(inputs)
    if not all(is_finite(output.tensor) for output in outputs):
        return None
    positions = differentiable(outputs)
    cotangents = tuple(subject.cotangent(outputs[position].tensor) for position in positions)
    try:
        gradients = subject.gradients([outputs[position] for position in positions], cotangents, inputs.varying)
    except BackwardRaised as raised:
        return Fault(error=str(raised))
    if subject.definition is not None and subject.definition.nonlinear_backward:
        return None
    if not is_right(subject, case):
        return None
    fault = wrong_at(subject, variant, Pulled(inputs.varying, gradients, positions, cotangents))
    return None if fault is not None and diverges(subject, case, variant) else fault


def wrong_at(subject: Subject, variant: Case, pulled: Pulled | None = None) -> Fault | None:
    """The first gradient at a numbered variant that isn't the derivative; None where there is no finite one.

    A forward that saturates gives 0 to the bit there, where the gradient is a tail too small to be seen in any value:
    so an error below `NOTHING` counts for none.

    Args:
        subject: Whose.
        variant: Where.
        pulled: The gradients there, if they are known.
    """
    if any(leaf.tensor.numel() == 0 for leaf in subject.fresh(variant).varying):
        return None
    try:
        if agree(subject, variant, pulled or pulled_at(subject, variant)):
            return None
        truth = truth_of(subject, variant)
        if isinstance(truth, str) or not all(exact is None or is_finite(exact) for exact in truth.exact.values()):
            return None
        for place, position in enumerate(truth.outputs):
            inputs = subject.fresh(truth.case)
            chosen = [subject.call(inputs)[position]]
            gradients = subject.gradients(chosen, [truth.cotangents[place]], inputs.varying)
            for leaf, gradient in zip(inputs.varying, gradients, strict=True):
                mismatch = truth.judge(leaf, place, gradient)
                if mismatch is not None and not mismatch.max_error < NOTHING:  # NaN counts
                    return Fault(leaf.name, mismatch)
    except (ForwardRaised, BackwardRaised):
        return None
    return None
