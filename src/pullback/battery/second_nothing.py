"""Second derivatives where grad_output is all zeros: the gradient is 0 there, and its derivative by grad_output isn't.

A gradient is linear in grad_output, so its derivative by that is the same wherever it is taken. A shortcut for zeros
gives a constant, and a Hessian-vector product by double backward, which differentiates just there, loses it. Of one
that is declared not to be linear no more is asked than a finite derivative, where differences say that there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from pullback.battery.case import CotangentName
from pullback.battery.compare import compare, number
from pullback.battery.draws import draws
from pullback.battery.numerics import dense, flat, size_of, slopes
from pullback.battery.repro_second import nothing_lines
from pullback.battery.second import differentiable_call, second_gradients, weights_for
from pullback.battery.second_at_once import curve_along
from pullback.battery.subject import BackwardRaised, Subject
from pullback.battery.tolerances import SAME
from pullback.battery.truth import Truth
from pullback.finding import Finding


def second_of_nothing(subject: Subject, truth: Truth) -> Iterator[Finding]:
    """A finding where a derivative by grad_output is another at zeros than elsewhere.

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
    try:
        plain, call = differentiable_call(subject, truth), differentiable_call(subject, zeros)
        weights = weights_for(subject, plain)
        for which, leaf in enumerate(plain.inputs.varying):
            known, found = (second_gradients(subject, made, weights, which) for made in (plain, call))
            for variable, one, other in zip(plain.variables(), known, found, strict=True):
                by_cotangent = isinstance(variable.name, CotangentName)
                expected = one if by_cotangent else None
                size = size_of(one) if one is not None and one.numel() else 0.0
                bad = compare(expected, other, SAME, scale=size)
                if bad is not None:
                    yield subject.finding(
                        "PB205",
                        truth.case,
                        f"the derivative of {leaf.name}'s gradient by {variable.name} is another where grad_output is "
                        "all zeros",
                        argument=leaf.name,
                        what="a grad_output of zeros",
                        expected=f"{bad.expected}, as for any other" if by_cotangent else bad.expected,
                        got="0 (no path)" if other is None else bad.got,
                        remedy="Leave out the shortcut for zeros, or whatever else gives a constant there: backward is "
                        "differentiated at zeros too, as in a Hessian-vector product by double backward.",
                        evidence={**bad.evidence, "by": str(variable.name), "order": 2},
                        repro=nothing_lines(subject, truth.case, leaf.name),
                    )
                    return
    except BackwardRaised:
        return  # told where it is differentiated elsewhere


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
                    repro=nothing_lines(subject, truth.case, leaf.name),
                )
                return
    except BackwardRaised:
        return  # told where it is differentiated elsewhere
