"""Whether a call draws random numbers, and which layouts of a tensor get the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pullback.battery.randomness import states
from pullback.battery.subject import Case, Subject


@dataclass(frozen=True)
class Draws:
    """Who draws from a global generator: forward, backward."""

    forward: bool
    backward: bool


def draws(subject: Subject, case: Case) -> Draws:
    """Who draws in a call of this case; it is found once."""
    key = ("draws", case.index)
    if key not in subject.cache:
        inputs = subject.fresh(case)
        subject.reseed()
        seeded = states(subject.runs_on)
        outputs = subject.call(inputs)
        forward = states(subject.runs_on) != seeded
        with subject.drawing_for(f"draws of sample {case.index}"):
            cotangents = [subject.cotangent(output.tensor) for output in outputs]
        subject.gradients(outputs, cotangents, inputs.varying)
        subject.cache[key] = Draws(forward, backward=states(subject.runs_on) != seeded)
    found: Draws = subject.cache[key]
    return found


def same_draws(arranged: torch.Tensor) -> bool:
    """Whether ``rand_like`` puts its numbers where it does for a contiguous tensor: it fills in memory order."""
    return torch.empty_like(arranged).is_contiguous()
