"""What is wrong with values, tangents and second derivatives, in words: each is compared element by element.

`pullback.battery.facts` does the same for first derivatives. All of this runs only where a fault was found.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import torch

from pullback.battery.diagnosis import Facts, diagnose
from pullback.battery.leaves import is_float
from pullback.battery.numerics import flat, size_of, slopes, terms, unflat
from pullback.battery.oracle import in_double
from pullback.battery.raised import RAISED, BackwardRaised, ForwardRaised
from pullback.battery.second import Call, Weighted, curve_of, second_gradients
from pullback.battery.subject import Case, Subject
from pullback.battery.tolerances import DIFFERENCES, Tolerance, for_patterns
from pullback.battery.truth import Truth

_MOST = 128
"""Results of more elements than this are not found out element by element."""

_SECONDS = 2.0
"""Nor for longer than this, in seconds of the processor."""


def pattern_of(
    expected: torch.Tensor | None,
    got: torch.Tensor | None,
    tolerance: Tolerance,
    *,
    known: Mapping[str, torch.Tensor] | None = None,
) -> str:
    """The pattern of an error in one sentence without a full stop; empty where there is none.

    Args:
        expected: What should have come.
        got: What came.
        tolerance: How near what came must be to what a pattern makes of the right one.
        known: Other tensors that may have come in its place, by what they are called.
    """
    if expected is None or got is None or expected.shape != got.shape or not is_float(expected):
        return ""
    doubled = {name: in_double(tensor) for name, tensor in (known or {}).items() if is_float(tensor)}
    try:
        return diagnose(
            Facts(in_double(expected), in_double(got).to(in_double(expected).dtype), tolerance, known=doubled)
        )
    except RAISED:
        return ""  # a diagnosis is a help: that one can't be made must not hide the finding


def of_value(subject: Subject, case: Case, expected: torch.Tensor, got: torch.Tensor) -> str:
    """The pattern in an output that isn't the reference's."""
    named = [(name, tensor) for name, _, tensor in subject.named_tensors(case.sample)]
    dtypes = [tensor.dtype for _, tensor in (*named, ("", got)) if is_float(tensor)]
    known = {f"the argument {name} itself": tensor for name, tensor in named}
    return pattern_of(expected, got, for_patterns(dtypes), known=known)


def of_tangent(
    subject: Subject, point: Case, position: int, tangents: Mapping[str, torch.Tensor], got: torch.Tensor | None
) -> str:
    """The pattern in the tangent of an output, where backward's rows are taken as right."""
    if got is None or got.numel() > _MOST:
        return ""
    count, until = flat(got).numel(), time.process_time() + _SECONDS
    expected = torch.zeros(count, dtype=torch.float64)
    try:
        for element in range(count):
            if time.process_time() > until:
                return ""
            inputs = subject.fresh(point)
            output = subject.call(inputs)[position]
            row = unflat(_single(count, element), output.tensor.detach())
            gradients = subject.gradients([output], [row], inputs.varying)
            for leaf, gradient in zip(inputs.varying, gradients, strict=True):
                if gradient is not None and leaf.name in tangents:
                    expected[element] += terms(gradient, tangents[leaf.name]).sum()
    except (ForwardRaised, BackwardRaised):
        return ""
    known = {f"the tangent of {name} itself": tangent for name, tangent in tangents.items()}
    tolerance = for_patterns([got.dtype, *(tangent.dtype for tangent in tangents.values())])
    return pattern_of(unflat(expected, got.detach()), got, tolerance, known=known)


def of_second(subject: Subject, truth: Truth, call: Call, weighted: Weighted, gradient: str, variable: str) -> str:
    """The pattern in the derivative of one argument's gradient by a variable."""
    which = [leaf.name for leaf in call.inputs.varying].index(gradient)
    place = [leaf.name for leaf in call.variables()].index(variable)
    tensor = call.variables()[place].tensor.detach()
    count, until = flat(tensor).numel(), time.process_time() + _SECONDS
    if count > _MOST:
        return ""
    expected = torch.zeros(count, dtype=torch.float64)
    magnitude = weighted.magnitude(call.gradients)
    try:
        got = second_gradients(subject, call, weighted, which)[place]
        for element in range(count):
            if time.process_time() > until:
                return ""
            curve = curve_of(subject, truth, weighted, variable, _single(count, element))
            found = slopes(curve, size_of(tensor), magnitude)
            if not bool(found.smooth[which]):
                return ""
            expected[element] = found.values[which]
    except (ForwardRaised, BackwardRaised):
        return ""
    return pattern_of(unflat(expected, tensor), got, DIFFERENCES, known=_of_call(truth, call))


def _of_call(truth: Truth, call: Call) -> dict[str, torch.Tensor]:
    """What a second derivative may be by mistake."""
    names: Iterable[tuple[str, torch.Tensor | None]] = zip(
        (f"the gradient of {leaf.name} itself" for leaf in call.inputs.varying), call.gradients, strict=True
    )
    known = {name: gradient.detach() for name, gradient in names if gradient is not None}
    return {**known, "grad_output itself": truth.cotangents[0]}


def _single(count: int, place: int) -> torch.Tensor:
    direction = torch.zeros(count, dtype=torch.float64)
    direction[place] = 1.0
    return direction
