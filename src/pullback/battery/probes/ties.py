"""At a tie, where forward has a kink, the gradient still is its derivative along each direction in which it is smooth.

Of two equal largest elements either may get the whole gradient of a maximum, or each a share: all these are right, and
whoever gives the whole to both is wrong. They differ along the direction that moves both together, and there the
maximum is smooth. So at points with equal elements, equal ones are moved together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from pullback.battery.compare import number
from pullback.battery.curves import along, confirms
from pullback.battery.deadline import Deadline
from pullback.battery.numerics import flat
from pullback.battery.observe import is_finite
from pullback.battery.oracle import moved
from pullback.battery.ordinary import NOT_KNOWN, PassedOver, is_right
from pullback.battery.paths import dealt, passed_over, telling
from pullback.battery.probe import LeftOut, Note, Probe, Skip
from pullback.battery.repro import tie_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.battery.tolerances import SPECIAL
from pullback.battery.truth import differentiable
from pullback.finding import Finding

Swap = Callable[[torch.Tensor], torch.Tensor]

_SECONDS = 3.0
"""After this long the remaining points are left out, and counted."""

_MOST_GROUPS = 6
"""How many groups of equal elements are moved at one point."""

_SCALES = (1.0, 1e-3)
"""A slope is believed when steps of both sizes find a fault."""


@dataclass(frozen=True, eq=False)
class _Tie:
    """A point with equal elements, and in words which."""

    label: str
    point: Case


_AS_GIVEN = "at the sample"
"""The point where nothing is changed, which each sample has for itself."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Make elements equal, within an argument and across arguments, and move equal ones together."""
    if subject.surrogate is not None or (subject.definition is not None and subject.definition.nonlinear_backward):
        raise Skip("backward isn't meant to be forward's derivative")
    tried, left_out = 0, 0
    others = PassedOver()
    deadline = Deadline(_SECONDS)
    ties: dict[Case, dict[str, dict[str, Swap]]] = {}
    for case in subject.cases:
        if case.exact and is_right(subject, case):
            ties[case] = dict(_ties(subject, case))
        elif case.exact:
            others.add(case, NOT_KNOWN)
    hands = dealt(subject, {case: some for case, some in ties.items() if case in telling(subject)})
    for case, some in ties.items():
        for label in (_AS_GIVEN, *(label for label in some if label in hands.get(case, ()))):
            tried += 1
            if deadline.passed():
                left_out += 1
                continue
            tie = _Tie(label, _changed(subject, case, some.get(label, {})))
            finding = _at(subject, case, tie)
            if finding is not None:
                yield finding
                break
    if left_out:
        yield LeftOut(f"{left_out} of {tried} points were left out, after {_SECONDS:g} s")
    if not tried:
        raise Skip(others.reason("no real float64 argument whose elements could be equal"))
    yield from others.notes()
    yield from passed_over(subject, "no elements were made equal there")


def _ties(subject: Subject, case: Case) -> Iterator[tuple[str, dict[str, Swap]]]:
    """In each argument the two largest, and all, elements equal; equal arguments; all equal."""
    if not case.may_vary("values"):
        return
    varying = [leaf for leaf in subject.fresh(case).varying if leaf.tensor.numel() and not leaf.tensor.is_complex()]
    for name in (leaf.name for leaf in varying if leaf.tensor.numel() > 1):
        yield f"with the two largest elements of {name} equal", {name: _tied_largest}
        yield f"with all elements of {name} equal", {name: _all_equal}
    for one, other in itertools.combinations(varying, 2):
        if one.tensor.shape == other.tensor.shape:
            value = one.tensor.detach()
            yield f"with {one.name} and {other.name} equal", {other.name: _always(value)}
    if len(varying) > 1:
        value = flat(varying[0].tensor)[0]
        yield "with all elements of all arguments equal", {leaf.name: _filled_with(value) for leaf in varying}


def _tied_largest(tensor: torch.Tensor) -> torch.Tensor:
    elements = tensor.reshape(-1).clone()
    first, second = elements.topk(2).indices.tolist()
    elements[second] = elements[first]
    return elements.view(tensor.shape)


def _all_equal(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, float(tensor.reshape(-1)[0]))


def _always(value: torch.Tensor) -> Swap:
    return lambda _: value.clone()


def _filled_with(value: torch.Tensor) -> Swap:
    return lambda tensor: torch.full_like(tensor, float(value))


def _changed(subject: Subject, case: Case, change: Mapping[str, Swap]) -> Case:
    if not change:
        return case

    def move(name: str, tensor: torch.Tensor) -> torch.Tensor:
        swap = change.get(name)
        return swap(tensor) if swap is not None else tensor

    return moved(subject, case, move)


def _at(subject: Subject, case: Case, tie: _Tie) -> Finding | None:
    try:
        inputs = subject.fresh(tie.point)
        outputs = subject.call(inputs)
        tracked = differentiable(outputs)
        if not tracked or not all(is_finite(outputs[position].tensor) for position in tracked):
            return None
        cotangents = tuple(subject.cotangent(outputs[position].tensor) for position in tracked)
        gradients = subject.gradients([outputs[position] for position in tracked], cotangents, inputs.varying)
    except (ForwardRaised, BackwardRaised):
        return None  # not the author's values; what raises there is for other probes
    names = [leaf.name for leaf in inputs.varying]
    came = {name: g for name, g in zip(names, gradients, strict=True) if g is not None}
    if not all(is_finite(gradient) for gradient in came.values()):
        return None
    values = {leaf.name: leaf.tensor.detach() for leaf in inputs.varying if not leaf.tensor.is_complex()}
    for shared, direction in _together(values):
        terms = torch.cat(
            [flat(came[name]) * direction[name] for name in direction if name in came] or [torch.zeros(1)]
        )
        got, size = float(terms.sum()), float(terms.abs().sum())
        close = SPECIAL.rtol * size + SPECIAL.atol * max(1.0, abs(got))
        if confirms(subject, tie.point, direction, tracked, cotangents, max(1.0, abs(shared)), got, close):
            continue  # a single difference settles it, where a slope with its error takes three times as long
        for scale in _SCALES:
            step = max(1.0, abs(shared)) * scale
            slope = along(subject, tie.point, direction, tracked, cotangents, step)
            if slope is None:
                break
            value, error = slope
            if abs(got - value) <= error + SPECIAL.rtol * max(abs(value), size) + SPECIAL.atol * max(1.0, abs(value)):
                break
        else:
            return _finding(subject, case, tie, direction, shared, value, got)
    return None


def _together(values: dict[str, torch.Tensor]) -> Iterator[tuple[float, dict[str, torch.Tensor]]]:
    """For each value that several elements have, the direction that moves them all."""
    elements = torch.cat([flat(tensor) for tensor in values.values()] or [torch.zeros(0)])
    found, counts = elements[elements.isfinite()].unique(return_counts=True)
    for value in found[counts > 1].flip(0)[:_MOST_GROUPS]:
        direction = {name: (flat(tensor) == value).to(torch.float64) for name, tensor in values.items()}
        yield float(value), {name: part for name, part in direction.items() if bool(part.any())}


def _finding(
    subject: Subject,
    case: Case,
    tie: _Tie,
    direction: dict[str, torch.Tensor],
    shared: float,
    value: float,
    got: float,
) -> Finding:
    names = list(direction)
    count = int(sum(float(part.sum()) for part in direction.values()))
    what = f"the {count} elements of {' and '.join(names)} that are {number(shared)}"
    return subject.finding(
        "PB506",
        case,
        f"{tie.label}, {what} together get another gradient than forward's derivative when they move together",
        argument=names[0],
        what=tie.label,
        expected=f"gradients that sum to {number(value)}",
        got=f"gradients that sum to {number(got)}",
        remedy="Give the whole gradient to one of the equal elements, or share it among them.",
        repro=tie_lines(subject, tie.point, names, shared),
    )


PROBE = Probe("ties", "where elements are equal, the gradient is the derivative along what moves them together", run)
