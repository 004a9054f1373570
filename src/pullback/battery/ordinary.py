"""Whether the gradient is right at the sample itself: probes that vary the sample judge numbers only where it is."""

from __future__ import annotations

from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.battery.truth import truth_of


def is_right(subject: Subject, case: Case) -> bool:
    """Whether there is a truth for the case, and backward agrees with it for every output and argument."""
    key = ("is_right", case.index)
    if key not in subject.cache:
        subject.cache[key] = _agrees(subject, case)
    return bool(subject.cache[key])


def _agrees(subject: Subject, case: Case) -> bool:
    try:
        truth = truth_of(subject, case)
        if isinstance(truth, str):
            return False
        for place, position in enumerate(truth.outputs):
            inputs = subject.fresh(truth.case)
            chosen = [subject.call(inputs)[position]]
            gradients = subject.gradients(chosen, [truth.cotangents[place]], inputs.varying)
            if any(truth.judge(leaf, place, g) for leaf, g in zip(inputs.varying, gradients, strict=True)):
                return False
    except (ForwardRaised, BackwardRaised):
        return False
    return True
