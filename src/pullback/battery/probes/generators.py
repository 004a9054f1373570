"""The global generators of random numbers belong to the program: a call draws from them, and sets none of them.

After a call that seeds one, the same numbers are drawn in every step, wherever in the program. So the calls are made
from two states: a generator that ends in one and the same state was set on the way. Numbers that are to repeat, such as
those of a dropout mask in backward, come from a `torch.Generator` of one's own, or within `torch.random.fork_rng`. A
forward that draws and puts the generator back where it was has the next call draw the same, too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pullback.battery.draws import draws
from pullback.battery.observe import difference
from pullback.battery.probe import Note, Probe
from pullback.battery.randomness import names_of_states, states
from pullback.battery.repro_effects import seeded_lines
from pullback.battery.repro_standing import drawn_lines, redrawn_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.finding import Finding
from pullback.rules import Severity

_SEEDS = (0, 1, 2, 3)
"""A mask of a few elements may be drawn twice by chance, and not four times."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Run forward, and then backward alone, from two states of the generators."""
    for case in subject.cases:
        seeds = (subject.seed, subject.seed ^ 1)
        try:
            ends = [_ends(subject, case, seed) for seed in seeds]
        except (ForwardRaised, BackwardRaised) as refused:
            yield Note(f"refused: {case.label} once more ({refused})")
            continue
        for method, one, other in zip(("forward", "backward"), *(left for _, left in ends), strict=True):
            names = names_of_states(subject.runs_on)
            kept = [name for name, first, second in zip(names, one, other, strict=True) if first == second]
            if kept:
                yield _finding(subject, case, method, kept)
                return
        values = [found for found, _ in ends]
        if not draws(subject, case).forward and _differ(*values) and _put_back(subject, case):
            yield _draws_the_same(subject, case)
            return
        if draws(subject, case).backward and _draws_for_nothing(subject, case):
            yield _needless(subject, case)
            return


def _draws_for_nothing(subject: Subject, case: Case) -> bool:
    """Whether no gradient depends on the numbers that backward draws: it is the same from several states."""
    first: tuple[torch.Tensor | None, ...] | None = None
    for seed in _SEEDS:
        inputs = subject.fresh(case)
        outputs = subject.call(inputs)
        given = [torch.ones_like(output.tensor) for output in outputs]
        found = replace(subject, seed=subject.seed ^ seed).gradients(outputs, given, inputs.varying)
        first = found if first is None else first
        if any(difference(one, other) is not None for one, other in zip(first, found, strict=True)):
            return False
    return True


def _put_back(subject: Subject, case: Case) -> bool:
    """Whether forward depends on how far the generators are, though it doesn't move them: one by a seed doesn't."""

    def later(*args: Any, **kwargs: Any) -> Any:
        torch.rand(())
        random.random()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.rand()
        return subject.callable(*args, **kwargs)

    at_once, moved, again = (
        [output.tensor.detach() for output in subject.call(subject.fresh(case), function)]
        for function in (None, later, None)
    )
    return _differ(at_once, moved) and not _differ(at_once, again)  # or it is the calls that it depends on


def _differ(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return any(difference(one, other) is not None for one, other in zip(ones, others, strict=False))


def _ends(
    subject: Subject, case: Case, seed: int
) -> tuple[list[torch.Tensor], tuple[tuple[object, ...], tuple[object, ...]]]:
    """What forward gives that began with `seed`, and the states after it, and after a backward that did."""
    other = replace(subject, seed=seed)
    values = [output.tensor.detach() for output in other.call(other.fresh(case))]
    forward = states(subject.runs_on)
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    other.reseed()  # also where there is nothing to differentiate
    other.gradients(outputs, [torch.ones_like(output.tensor) for output in outputs], inputs.varying)
    return values, (forward, states(subject.runs_on))


def _needless(subject: Subject, case: Case) -> Finding:
    names = draws(subject, case).generators
    return subject.finding(
        "PB522",
        case,
        f"backward draws random numbers from {' and '.join(names)}, and no gradient depends on them: whatever is drawn "
        "after it is another",
        what="backward",
        severity=Severity.WARNING,
        expected="generators left where they were, by a backward that needs no numbers of theirs",
        got="generators that have moved on",
        remedy="Leave the draw out, or draw from a torch.Generator of your own.",
        repro=drawn_lines(subject, case),
    )


def _draws_the_same(subject: Subject, case: Case) -> Finding:
    return subject.finding(
        "PB522",
        case,
        "forward draws random numbers and puts the generator back where it was: the next call draws the same",
        what="forward",
        expected="a generator that goes on from where it was",
        got="one that was put back",
        remedy="Leave the generator where the draw has moved it: what backward needs of it can be saved.",
        repro=redrawn_lines(subject, case),
    )


def _finding(subject: Subject, case: Case, method: str, names: list[str]) -> Finding:
    return subject.finding(
        "PB522",
        case,
        f"after {method} the generator of {' and of '.join(names)} is in the same state, whatever it was in before",
        what=method,
        expected="a generator that goes on from where it was",
        got="one that was set",
        repro=seeded_lines(subject, case, names[0], method),
    )


PROBE = Probe("generators", "a call sets no global generator of random numbers", run)
