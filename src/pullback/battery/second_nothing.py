"""Second derivatives where grad_output is all zeros, or all ones: as anywhere, by grad_output.

A gradient is linear in grad_output, so its derivative by that is the same wherever it is taken. A shortcut for zeros
gives a constant, and a Hessian-vector product by double backward, which differentiates just there, loses it; so does
one that saves the product with ones. Of what is declared not to be linear no more is asked than a finite derivative,
where differences say that there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from pullback.battery.case import CotangentName
from pullback.battery.compare import Mismatch, compare, number
from pullback.battery.draws import draws
from pullback.battery.numerics import dense, flat, size_of, slopes
from pullback.battery.repro_second import special_cotangent_lines
from pullback.battery.second import differentiable_call, second_gradients, weights_for
from pullback.battery.second_at_once import curve_along
from pullback.battery.subject import BackwardRaised, Subject
from pullback.battery.tolerances import SAME
from pullback.battery.truth import Truth
from pullback.finding import Finding

_WHEN = ("as in a Hessian-vector product by double backward", "as in a penalty on the gradient of a sum")
"""When each is differentiated."""


def second_of_nothing(subject: Subject, truth: Truth) -> Iterator[Finding]:
    """A finding where a derivative by grad_output is another at zeros or at ones than elsewhere.

    Args:
        subject: Whose.
        truth: Where second derivatives are right for a random grad_output.
    """
    if draws(subject, truth.case).backward:
        return
    zeros = replace(truth, cotangents=tuple(torch.zeros_like(cotangent) for cotangent in truth.cotangents))
    if subject.definition is not None and subject.definition.nonlinear_backward:
        yield from _not_finite(subject, truth, zeros)
        return
    ones = replace(truth, cotangents=tuple(torch.ones_like(cotangent) for cotangent in truth.cotangents))
    try:
        plain = differentiable_call(subject, truth)
        weights = weights_for(subject, plain)
        calls = {value: differentiable_call(subject, point) for value, point in enumerate((zeros, ones))}
        for which, leaf in enumerate(plain.inputs.varying):
            known = second_gradients(subject, plain, weights, which)
            for value, call in calls.items():
                found = second_gradients(subject, call, weights, which)
                for variable, one, other in zip(plain.variables(), known, found, strict=True):
                    by_cotangent = isinstance(variable.name, CotangentName)
                    if value and not by_cotangent:
                        continue  # other numbers than for another grad_output
                    size = size_of(one) if one is not None and one.numel() else 0.0
                    bad = compare(one if by_cotangent else None, other, SAME, scale=size)
                    if bad is not None:
                        yield _another(subject, truth, leaf.name, variable.name, value, other, bad)
                        return
    except BackwardRaised:
        return  # told where it is differentiated elsewhere


def _another(
    subject: Subject, truth: Truth, name: str, by: str, value: int, found: torch.Tensor | None, bad: Mismatch
) -> Finding:
    where = ("zeros", "ones")[value]
    return subject.finding(
        "PB205",
        truth.case,
        f"the derivative of {name}'s gradient by {by} is another where grad_output is all {where}",
        argument=name,
        what=f"a grad_output of {where}",
        expected=f"{bad.expected}, as for any other" if isinstance(by, CotangentName) else bad.expected,
        got="0 (no path)" if found is None else bad.got,
        remedy=f"Leave out the shortcut for {where}, or whatever else gives a constant there: backward is "
        f"differentiated at {where} too, {_WHEN[value]}.",
        evidence={**bad.evidence, "by": str(by), "order": 2},
        repro=special_cotangent_lines(subject, truth.case, name, value),
    )


def _not_finite(subject: Subject, truth: Truth, zeros: Truth) -> Iterator[Finding]:
    """A finding where a derivative by grad_output isn't finite at zeros, and the gradient is smooth there."""
    try:
        call = differentiable_call(subject, zeros)
        weights = weights_for(subject, call)
        magnitude = weights.magnitude(differentiable_call(subject, truth).gradients)
        for which, leaf in enumerate(call.inputs.varying):
            found = second_gradients(subject, call, weights, which)
            for variable, one in zip(call.variables(), found, strict=True):
                by_cotangent = isinstance(variable.name, CotangentName)
                if one is None or not by_cotangent or bool(one.isfinite().all()):
                    continue
                direction = dense(flat(variable.tensor).numel(), subject.random)
                slope = slopes(curve_along(subject, zeros, weights, {variable.name: direction}), 1.0, magnitude)
                if not bool(slope.smooth[which]):
                    continue
                yield subject.finding(
                    "PB205",
                    truth.case,
                    f"the derivative of {leaf.name}'s gradient by {variable.name} isn't finite where grad_output is "
                    "all zeros, and the gradient is smooth there",
                    argument=leaf.name,
                    what="a grad_output of zeros",
                    expected=f"{number(float(slope.values[which]))} along a random direction",
                    got=number(flat(one)[int((~flat(one).isfinite()).int().argmax())]),
                    remedy="Divide by nothing that may be 0, nor take a root of it, in what torch.where leaves out "
                    "too: a derivative of 0 times an infinite one is NaN.",
                    evidence={"by": str(variable.name), "order": 2},
                    repro=special_cotangent_lines(subject, truth.case, leaf.name, 0),
                )
                return
    except BackwardRaised:
        return  # told where it is differentiated elsewhere
