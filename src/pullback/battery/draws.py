"""Whether a call draws random numbers, and which layouts of a tensor get the same ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pullback.battery.randomness import names_of_states, states
from pullback.battery.subject import Case, Subject


@dataclass(frozen=True)
class Draws:
    """Who draws from a global generator: forward, backward; and from whose, as `names_of_states` has it."""

    forward: bool
    backward: bool
    generators: tuple[str, ...] = ()


_SEEDS = {"random": "random.seed", "numpy.random": "numpy.random.seed"}


def seed_lines(generators: Iterable[str], seed: int = 0) -> list[str]:
    """The lines that seed generators, called as `names_of_states` has them."""
    return list(dict.fromkeys(f"{_SEEDS.get(name, 'torch.manual_seed')}({seed})" for name in generators))


def draws(subject: Subject, case: Case) -> Draws:
    """Who draws in a call of this case; it is found once."""
    key = ("draws", case.index)
    if key not in subject.cache:
        inputs = subject.fresh(case)
        subject.reseed()
        seeded = states(subject.runs_on)
        outputs = subject.call(inputs)
        forward = _moved(seeded, subject)
        with subject.drawing_for(f"draws of sample {case.index}"):
            cotangents = [subject.cotangent(output.tensor) for output in outputs]
        subject.reseed(backward=True)
        seeded = states(subject.runs_on)
        subject.gradients(outputs, cotangents, inputs.varying)
        backward = _moved(seeded, subject)
        subject.cache[key] = Draws(bool(forward), bool(backward), tuple(dict.fromkeys((*forward, *backward))))
    found: Draws = subject.cache[key]
    return found


def _moved(seeded: tuple[object, ...], subject: Subject) -> tuple[str, ...]:
    """The generators that are in another state, by name."""
    now, names = states(subject.runs_on), names_of_states(subject.runs_on)
    if len(now) > len(seeded):  # NumPy has been imported since: what it has drawn can't be told
        names = names[: len(seeded)]
    return tuple(name for name, one, other in zip(names, seeded, now, strict=False) if one != other)


def same_draws(arranged: torch.Tensor) -> bool:
    """Whether ``rand_like`` puts its numbers where it does for a contiguous tensor: it fills in memory order."""
    return torch.empty_like(arranged).is_contiguous()
