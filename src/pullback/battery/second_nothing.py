"""Second derivatives where grad_output is all zeros: the gradient is 0 there, and its derivative by grad_output isn't.

A gradient is linear in grad_output, so its derivative by that is the same wherever it is taken. A shortcut for zeros
gives a constant, and a Hessian-vector product by double backward, which differentiates just there, loses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from pullback.battery.compare import compare
from pullback.battery.draws import draws
from pullback.battery.numerics import size_of
from pullback.battery.repro_second import nothing_lines
from pullback.battery.second import differentiable_call, second_gradients, weights_for
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
    nonlinear = subject.definition is not None and subject.definition.nonlinear_backward
    if nonlinear or draws(subject, truth.case).backward:
        return
    zeros = replace(truth, cotangents=tuple(torch.zeros_like(cotangent) for cotangent in truth.cotangents))
    try:
        plain, call = differentiable_call(subject, truth), differentiable_call(subject, zeros)
        weights = weights_for(subject, plain)
        for which, leaf in enumerate(plain.inputs.varying):
            known, found = (second_gradients(subject, made, weights, which) for made in (plain, call))
            for variable, one, other in zip(plain.variables(), known, found, strict=True):
                by_cotangent = variable.name.startswith("grad_output")
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
                        evidence={**bad.evidence, "by": variable.name, "order": 2},
                        repro=nothing_lines(subject, truth.case, leaf.name),
                    )
                    return
    except BackwardRaised:
        return  # told where it is differentiated elsewhere
