"""Whether the gradient is right at the sample itself: probes that vary the sample judge numbers only where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from pullback.battery.curves import confirms
from pullback.battery.numerics import flat, normals, size_of
from pullback.battery.probe import Note
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Leaf, Subject
from pullback.battery.tolerances import CONFIRMED
from pullback.battery.truth import differentiable, truth_of


def is_right(subject: Subject, case: Case) -> bool:
    """Whether there is a truth for the case, and backward agrees with it for every output and argument."""
    key = ("is_right", case.index)
    if key not in subject.cache:
        subject.cache[key] = _agrees(subject, case)
    return bool(subject.cache[key])


NOT_KNOWN = "the gradient isn't known to be right at ordinary points"
"""Why nothing is asked elsewhere."""


class PassedOver:
    """Samples that a probe of other points passed over, by the reason, so that each reason is said once."""

    def __init__(self) -> None:
        self._labels: dict[str, list[str]] = {}

    def add(self, case: Case, reason: str) -> None:
        """Remember why a case was passed over."""
        self._labels.setdefault(reason, []).append(case.label)

    def notes(self) -> Iterator[Note]:
        """A note for each reason, with its samples."""
        for reason, labels in self._labels.items():
            yield Note(f"{' and '.join(labels)}: {reason}")

    def reason(self, otherwise: str) -> str:
        """Why nothing was tried at all: what was remembered, or else what the caller says."""
        return "; ".join(self._labels) or otherwise


class Pulled(NamedTuple):
    """All gradients of a call.

    Attributes:
        leaves: What was differentiated by.
        gradients: One for each.
        positions: Those of the differentiable outputs.
        cotangents: One for each of these.
    """

    leaves: tuple[Leaf, ...]
    gradients: Sequence[torch.Tensor | None]
    positions: tuple[int, ...]
    cotangents: tuple[torch.Tensor, ...]


def pulled_at(subject: Subject, case: Case) -> Pulled:
    """All gradients of a case, for random cotangents.

    Raises:
        ForwardRaised: If forward raises.
        BackwardRaised: If backward does.
    """
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    positions = differentiable(outputs)
    chosen = [outputs[position] for position in positions]
    cotangents = tuple(subject.cotangent(output.tensor) for output in chosen)
    return Pulled(inputs.varying, subject.gradients(chosen, cotangents, inputs.varying), positions, cotangents)


def agree(subject: Subject, case: Case, pulled: Pulled) -> bool:
    """Whether all gradients at once agree with a difference along a random direction; if not, nothing is known.

    It takes two calls, where the truth takes eight for each of a small argument's elements.
    """
    if not case.exact or subject.surrogate is not None or not pulled.positions:
        return False
    direction = {
        leaf.name: size_of(leaf.tensor) * normals(flat(leaf.tensor).numel(), subject.random) for leaf in pulled.leaves
    }
    parts = [
        flat(gradient) * direction[leaf.name]
        for leaf, gradient in zip(pulled.leaves, pulled.gradients, strict=True)
        if gradient is not None
    ]
    terms = torch.cat([torch.zeros(1, dtype=torch.float64), *parts])
    close = CONFIRMED * float(terms.abs().sum())
    return confirms(subject, case, direction, pulled.positions, pulled.cotangents, 1.0, float(terms.sum()), close)


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
