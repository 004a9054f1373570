"""A backward declared once differentiable: a second differentiation raises, it is not lost in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from pullback.battery.leaves import is_float
from pullback.battery.numerics import flat
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.raised import RAISED
from pullback.battery.repro_effects import once_lines
from pullback.battery.subject import BackwardRaised, Case, Subject
from pullback.finding import Finding


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Differentiate the gradient, by the arguments and by grad_output."""
    if subject.definition is None or not subject.definition.once_differentiable:
        raise NotApplicable("once_differentiable isn't declared")
    for case in subject.cases:
        yield from _twice(subject, case)


def _twice(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    cotangents = [
        subject.cotangent(output.tensor).requires_grad_(is_float(output.tensor) and output.tensor.requires_grad)
        for output in outputs
    ]
    try:
        gradients = subject.gradients(outputs, cotangents, inputs.varying, create_graph=True)
    except BackwardRaised:
        return  # it raises at once, which is as good as later
    nonzero = [gradient for gradient in gradients if gradient is not None and bool(flat(gradient).any())]
    tracked = [gradient for gradient in nonzero if gradient.requires_grad]
    if len(tracked) < len(nonzero):
        yield subject.finding(
            "PB207",
            case,
            "backward is declared once differentiable, and yet its result is a plain constant under create_graph: a "
            "second derivative is lost in silence",
            expected="an error when the gradient is differentiated",
            got="a gradient that doesn't require grad, though grad_output does",
            remedy="Put once_differentiable outermost, right below staticmethod, so that nothing strips its guard.",
            repro=once_lines(subject, case),
        )
        return
    if not tracked:
        return
    try:
        torch.autograd.backward(tracked, [torch.ones_like(gradient) for gradient in tracked])
    except RAISED:
        return  # the guard held
    yield Note(f"{case.label}: the gradient was differentiated all the same; the probe second_order judges the result")


PROBE = Probe("once", "a backward declared once differentiable raises when its gradient is differentiated", run)
