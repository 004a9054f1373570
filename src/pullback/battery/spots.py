"""What is wrong at a special point: a value, a gradient that isn't finite, or one that isn't forward's slope there.

At a kink nothing is asked, except that a gradient isn't NaN where the reference's is finite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pullback.battery.case import Leaf
from pullback.battery.compare import compare, natural_scale, number
from pullback.battery.curves import along, confirms
from pullback.battery.further import second_at, value_at
from pullback.battery.iterations import diverges
from pullback.battery.leaves import is_float
from pullback.battery.numerics import flat, normals
from pullback.battery.observe import is_finite
from pullback.battery.oracle import by_autograd, is_continuous, oracle_of
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro import difference_lines, oracle_lines
from pullback.battery.subject import Case, Output, Subject
from pullback.battery.tolerances import KINK, SPECIAL, for_gradients
from pullback.battery.truth import differentiable
from pullback.finding import Finding
from pullback.rules import RULES, Severity

NOT_MEANT = (
    "If forward isn't meant for them, as where an iteration no longer converges, refuse them in forward, or keep to "
    'the values given: Sample((…), vary=("layout", "shape", "dtype", "repeat")).'
)
"""What to do where forward takes values that it isn't meant for."""

_LARGE = 300.0
"""From here on it is a matter of the range of numbers, and not of a point apart."""

_NO_NUMBER = re.compile(r"\b(nan|inf)\b")

_FINER = 1000.0
"""A slope is believed when steps this many times smaller find a fault too."""

_SUMS = 16
"""How many random directions a slope is added to, to see whether slopes add up."""

_ELEMENTS = 2
"""How many elements of an argument are looked at one by one."""

_SHARES = (1.0, -0.7)
"""By what share of their sizes they are moved at once, which costs fewer calls and settles most points."""


@dataclass(frozen=True)
class Spot:
    """One special point of one argument.

    Attributes:
        subject: What is checked.
        case: The sample as it was given.
        point: The sample with the special value in it.
        name: The argument that has it; empty where all have.
        label: Where and what: ``one element 0``.
        value: The special value.
    """

    subject: Subject
    case: Case
    point: Case
    name: str
    label: str
    value: float


def fault_of(spot: Spot) -> Finding | None:
    """What is wrong at a point: a value, the gradient of the argument that has it, or that of another.

    Nothing where forward is an iteration that no longer converges.
    """
    finding = _any_fault_of(spot)
    return None if finding is not None and diverges(spot.subject, spot.case, spot.point) else finding


def _any_fault_of(spot: Spot) -> Finding | None:
    subject = spot.subject
    inputs = subject.fresh(spot.point)
    outputs = subject.call(inputs)
    floats = [output.tensor.detach() for output in outputs if is_float(output.tensor)]
    if not all(is_finite(tensor) for tensor in floats):  # no matter of the gradient; the reference may know a number
        return value_at(subject, spot.case, spot.point, spot.label, SPECIAL)
    if not floats:
        return None
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    positions = differentiable(outputs)
    leaves = [leaf for leaf in inputs.varying if not leaf.tensor.is_complex() and leaf.tensor.numel()]
    gradients = _gradients(spot, outputs, cotangents, leaves)
    if isinstance(gradients, BackwardRaised):
        # A singular matrix, which backward refuses aloud, as its author may mean it to.
        refused = isinstance(gradients.error, torch.linalg.LinAlgError)  # type: ignore[attr-defined]  # it is public
        return _finding(spot, "a gradient", str(gradients), (), severity=Severity.HINT if refused else None)
    chosen = tuple(cotangents[position] for position in positions)
    finite = all(gradient is None or is_finite(gradient) for gradient in gradients.values())
    if finite and spot.name == "" and abs(spot.value) >= _LARGE:
        pass  # products of large numbers lose digits in forward and backward alike: there only what overflows is told
    elif not (subject.surrogate is None and finite and _confirms_all(spot, leaves, gradients, positions, chosen)):
        judge = _not_the_slope if subject.surrogate is None else _not_the_surrogates
        for name in sorted(gradients, key=lambda other: other != spot.name):
            elsewhere = spot.name not in ("", name)
            there = replace(spot, name=name, label=f"{spot.label} in {spot.name}" if elsewhere else spot.label)
            finding = _not_finite(there, gradients[name], cotangents) or judge(
                there, gradients[name], positions, chosen
            )
            if finding is not None:
                return finding
    found = value_at(subject, spot.case, spot.point, spot.label, SPECIAL)
    if found is None and spot.point.index != spot.case.index:  # what is known of a point is remembered by its number
        found = second_at(subject, spot.case, spot.point, spot.label)
    return found


def _remedy(spot: Spot, got: str) -> str:
    """What to do about it: by the size of the value, and by whether what came is a number. Empty for the rule's own."""
    if spot.subject.surrogate is not None:
        return ""
    if abs(spot.value) < _LARGE:
        return f"{RULES['PB506'].remedy} {NOT_MEANT}" if _is_outside(spot) else ""
    if _NO_NUMBER.search(got):
        return (
            "Backward overflows where forward doesn't: rearrange it, so that large numbers cancel before they are "
            "made (exp(x - y) for exp(x) / exp(y), softmax and logsumexp for quotients and sums of exp, the saved "
            "output for what is computed anew)."
        )
    return f"Find what backward loses for such numbers: a difference of large ones, a branch, a limit. {NOT_MEANT}"


def _is_outside(spot: Spot) -> bool:
    """Whether the value is larger than any in the sample's argument that has it: forward may not be meant for it."""
    given, there = (spot.subject.named_tensors(case.sample) for case in (spot.case, spot.point))
    pairs = [(before, after) for (_, _, before), (_, _, after) in zip(given, there, strict=True)]
    changed = [before for before, after in pairs if is_float(before) and not torch.equal(before, after)]
    return any(before.numel() and float(before.detach().abs().max()) < abs(spot.value) for before in changed)


def _gradients(
    spot: Spot, outputs: Sequence[Output], cotangents: list[torch.Tensor], leaves: Sequence[Leaf]
) -> dict[str, torch.Tensor | None] | BackwardRaised:
    """The gradients by argument; the error where backward raises."""
    try:
        found = spot.subject.gradients(outputs, cotangents, leaves)
    except BackwardRaised as raised:
        return raised
    return {leaf.name: gradient for leaf, gradient in zip(leaves, found, strict=True)}


def _not_finite(
    spot: Spot,
    gradient: torch.Tensor | None,
    cotangents: list[torch.Tensor],
) -> Finding | None:
    """NaN or infinity where the reference's gradient is finite."""
    if gradient is None or is_finite(gradient) or oracle_of(spot.subject) is None:
        return None
    try:
        inputs = spot.subject.fresh(spot.point)
        outputs = spot.subject.call(inputs, oracle_of(spot.subject))
        found = _gradients(spot, outputs, cotangents, [inputs.leaf(spot.name)])
    except (ForwardRaised, ValueError):
        return None
    right = found[spot.name] if isinstance(found, dict) else None
    if right is None or not is_finite(right):
        return None
    mismatch = compare(right, gradient, for_gradients(gradient.dtype))
    assert mismatch is not None
    return _finding(spot, mismatch.expected, mismatch.got, mismatch.index)


def _not_the_surrogates(
    spot: Spot,
    gradient: torch.Tensor | None,
    positions: tuple[int, ...],
    chosen: tuple[torch.Tensor, ...],
) -> Finding | None:
    """A point where the surrogate's gradient is continuous, and the gradient is another one."""
    subject, point = spot.subject, spot.point
    exact = by_autograd(subject, point, positions, chosen)
    if not is_continuous(subject, point, positions, chosen, exact):
        return None
    parts = [part for place in range(len(positions)) if (part := exact[spot.name, place]) is not None]
    right = torch.stack(parts).sum(0) if parts else None
    inputs = subject.fresh(point)
    outputs = subject.call(inputs, subject.surrogate)
    scale = natural_scale([outputs[p].tensor for p in positions], chosen, inputs.leaf(spot.name).tensor)
    mismatch = compare(right, gradient, SPECIAL, scale=scale)
    if mismatch is None:
        return None
    return _finding(spot, mismatch.expected, mismatch.got, mismatch.index)


def _not_the_slope(
    spot: Spot,
    gradient: torch.Tensor | None,
    positions: tuple[int, ...],
    chosen: tuple[torch.Tensor, ...],
) -> Finding | None:
    """A smooth point where the gradient is not what finite differences converge to."""
    subject, point, name = spot.subject, spot.point, spot.name
    leaf = subject.fresh(point).leaf(name).tensor
    elements = flat(gradient) if gradient is not None else torch.zeros(leaf.numel(), dtype=torch.float64)
    for element in range(min(_ELEMENTS, leaf.numel())):
        got, value = float(elements[element]), 0.0
        direction = torch.zeros(leaf.numel(), dtype=torch.float64)
        direction[element] = 1.0
        own = abs(float(flat(leaf)[element]))
        at = max(1.0, own)
        # Steps of one scale can be misled, by steps in forward that are smaller or by rounding that is larger.
        close = SPECIAL.rtol * abs(got) + SPECIAL.atol * max(1.0, abs(got))
        finite = math.isfinite(got)
        if finite and confirms(subject, point, {name: direction}, positions, chosen, at, got, close):
            continue
        scale = own or at if not finite else at  # smooth within its own size, forward has a finite slope
        for size in (scale, scale / _FINER):
            slope = along(subject, point, {name: direction}, positions, chosen, size)
            if slope is None:
                break
            value, error = slope
            allowed = error + SPECIAL.rtol * max(abs(value), abs(got)) + SPECIAL.atol * max(1.0, abs(value))
            if finite and abs(got - value) <= allowed:
                break
        else:
            if not _adds_up(subject, point, name, direction, positions, chosen, scale):
                continue
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(element), leaf.shape))
            return _finding(spot, number(value), number(got), index)
    return None


def _confirms_all(
    spot: Spot,
    leaves: Sequence[Leaf],
    gradients: dict[str, torch.Tensor | None],
    positions: tuple[int, ...],
    chosen: tuple[torch.Tensor, ...],
) -> bool:
    """Whether the elements that are looked at agree with one difference along all of them, each by another step."""
    directions, got, least = {}, 0.0, float("inf")
    for place, leaf in enumerate(leaves):
        gradient = gradients[leaf.name]
        values = flat(leaf.tensor)[:_ELEMENTS].tolist()
        slopes = flat(gradient)[:_ELEMENTS].tolist() if gradient is not None else [0.0] * len(values)
        sizes = [max(1.0, abs(value)) for value in values]
        steps = [size * share / (place + 1) for size, share in zip(sizes, _SHARES, strict=False)]
        directions[leaf.name] = torch.zeros(leaf.tensor.numel(), dtype=torch.float64)
        directions[leaf.name][:_ELEMENTS] = torch.tensor(steps, dtype=torch.float64)
        got += sum(slope * step for slope, step in zip(slopes, steps, strict=True))
        share = min(map(abs, _SHARES)) / (place + 1)
        known = zip(slopes, sizes, strict=True)
        least = min([least, *(share * (SPECIAL.rtol * abs(slope) * size + SPECIAL.atol) for slope, size in known)])
    return confirms(spot.subject, spot.point, directions, positions, chosen, 1.0, got, least)


def _adds_up(
    subject: Subject,
    point: Case,
    name: str,
    direction: torch.Tensor,
    positions: tuple[int, ...],
    chosen: tuple[torch.Tensor, ...],
    size: float,
) -> bool:
    """Whether there is a derivative at all: slopes along sums of directions are the sums of slopes.

    Where all elements are equal, a median is smooth along each single one, and has no derivative.
    """
    for _ in range(_SUMS):
        other = normals(direction.numel(), subject.random)
        found = [
            along(subject, point, {name: vector}, positions, chosen, size)
            for vector in (direction, other, direction + other)
        ]
        slopes = [slope for slope in found if slope is not None]
        if len(slopes) < len(found):
            return False
        (one, e1), (two, e2), (both, e3) = slopes
        if abs(one + two - both) > KINK * (abs(one) + abs(two) + abs(both)) + e1 + e2 + e3:
            return False
    return True


def _finding(
    spot: Spot,
    expected: str,
    got: str,
    index: tuple[int, ...],
    *,
    severity: Severity | None = None,
) -> Finding:
    subject, case, name, label = spot.subject, spot.case, spot.name, spot.label
    whose = "forward's" if subject.surrogate is None else "the surrogate's"
    if subject.surrogate is None:
        repro = difference_lines(subject, spot.point, name, index)
    else:
        repro = oracle_lines(subject, spot.point, name, "surrogate")
    return subject.finding(
        "PB506",
        case,
        f"with {label}, the gradient of {name} isn't {whose} derivative",
        argument=name,
        what=label,
        severity=severity,
        expected=expected,
        got=got,
        remedy=_remedy(spot, got),
        repro=repro,
        evidence={"index": list(index)},
    )
