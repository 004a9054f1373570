"""Second derivatives that a few differences confirm all at once, as `pullback.battery.certain` does it with first ones.

Differences by each element of each argument and cotangent take four calls for each. Right ones need few: along a line
that moves all of these at once, the slope of S_k is the sum of what each element adds. Where the slopes along two dense
lines, and along four that move about half of the elements, are all that autograd gave, every element is right. Where
anything disagrees, nothing is said: each is then looked at by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from pullback.battery.case import cotangent_names
from pullback.battery.leaves import is_own_transpose, is_symmetric
from pullback.battery.numerics import EPS, Curve, dense, flat, half, size_of, unflat
from pullback.battery.subject import Subject
from pullback.battery.tolerances import CONFIRMED, STEPS
from pullback.battery.truth import Truth

if TYPE_CHECKING:
    from pullback.battery.second import Call, Weighted

_DENSE, _HALVES = 2, 4

_WORTH = 8
"""Of fewer elements each is looked at by itself: that takes no more calls."""


def all_confirmed(
    subject: Subject,
    truth: Truth,
    call: Call,
    weighted: Weighted,
    obtained: Sequence[Sequence[torch.Tensor | None]],
) -> bool:
    """Whether differences agree with each second derivative that autograd gave.

    Args:
        subject: The subject.
        truth: Where, and with which cotangents.
        call: The call that was differentiated.
        weighted: The weights of S_k.
        obtained: For each k, for each variable, what autograd gave.
    """
    variables = call.variables()
    counts = {variable.name: flat(variable.tensor).numel() for variable in variables}
    if sum(counts.values()) < _WORTH:
        return False
    tensors = {variable.name: variable.tensor for variable in variables}
    sizes = {variable.name: size_of(variable.tensor) for variable in variables}
    rows = [
        {variable.name: flat(one) for variable, one in zip(variables, row, strict=True) if one is not None}
        for row in obtained
    ]
    h, magnitude = STEPS[1], weighted.magnitude(call.gradients)
    for made in (dense,) * _DENSE + (half,) * _HALVES:
        directions = {
            name: kept_symmetric(subject, tensors[name], sizes[name] * made(count, subject.random))
            for name, count in counts.items()
        }
        curve = curve_along(subject, truth, weighted, directions)
        found = (curve(h) - curve(-h)) / (2 * h)
        for k, row in enumerate(rows):
            came = sum(float((one * directions[name]).sum()) for name, one in row.items())
            allowed = CONFIRMED * _least(row, sizes) + 4 * EPS * float(magnitude[k]) / h
            if not abs(came - float(found[k])) <= allowed:
                return False
    return True


def _least(row: Mapping[str, torch.Tensor], sizes: Mapping[str, float]) -> float:
    """What the largest element of a derivative adds to a slope, for the variable for which that is least; but for 0."""
    largest = [float(one.abs().max()) * sizes[name] for name, one in row.items() if bool(one.any())]
    return min(largest, default=0.0)


def kept_symmetric(subject: Subject, tensor: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """The direction's symmetric part for an argument that stays symmetric, or is, where there is a reference.

    What ``cholesky`` or ``eigh`` makes of matrices beside the symmetric ones is nobody's concern.
    """
    kept = is_own_transpose(tensor) if subject.symmetric else subject.reference is not None and is_symmetric(tensor)
    if not kept:
        return direction
    square = direction.reshape(tensor.shape)
    return ((square + square.mT) / 2).reshape(-1)


def curve_along(subject: Subject, truth: Truth, weighted: Weighted, directions: Mapping[str, torch.Tensor]) -> Curve:
    """The S_k, with some variables moved along a direction each; NaN where an output has another size there."""

    def curve(t: float) -> torch.Tensor:
        found = gradients_along(subject, truth, directions, t)
        if found is None:
            return torch.full((len(weighted.weights),), float("nan"), dtype=torch.float64)
        return weighted.scalars(found)

    return curve


def gradients_along(
    subject: Subject, truth: Truth, directions: Mapping[str, torch.Tensor], t: float
) -> tuple[torch.Tensor | None, ...] | None:
    """The gradients with some variables moved by t times a direction each; None where an output has another size there.

    Args:
        subject: The subject.
        truth: Where, and with which cotangents.
        directions: By the names of arguments and cotangents, as they are called in findings.
        t: How far to go.
    """

    def move(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + unflat(t * directions[name], tensor) if name in directions else tensor

    inputs = subject.fresh(truth.case, change=move)
    outputs = subject.call(inputs)
    names = cotangent_names(len(truth.cotangents))
    cotangents = [move(name, cotangent) for name, cotangent in zip(names, truth.cotangents, strict=True)]
    chosen = [outputs[position] for position in truth.outputs]
    if any(output.tensor.shape != cotangent.shape for output, cotangent in zip(chosen, cotangents, strict=True)):
        return None
    return subject.gradients(chosen, cotangents, inputs.varying)
