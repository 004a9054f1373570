"""A backward declared once differentiable: a second differentiation raises, it is not lost in silence."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from pullback.battery.compare import compare
from pullback.battery.leaves import is_float
from pullback.battery.numerics import flat
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.raised import RAISED
from pullback.battery.repro_effects import once_lines
from pullback.battery.repro_second import needless_lines, penalty_lines
from pullback.battery.second import compare_second, differentiable_call, second_gradients, weights_for
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.battery.tolerances import SAME
from pullback.battery.truth import truth_of
from pullback.define.definition import describe, is_once_differentiable
from pullback.errors import PullbackError
from pullback.finding import Finding
from pullback.function import Function
from pullback.rules import Severity


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Differentiate the gradient, by the arguments and by grad_output."""
    if subject.definition is None or not subject.definition.once_differentiable:
        raise NotApplicable("once_differentiable isn't declared")
    found = False
    for case in subject.cases:
        for result in _twice(subject, case):
            found = found or isinstance(result, Finding)
            yield result
    if not found and subject.orders > 1:
        yield from _needless(subject)


def _needless(subject: Subject) -> Iterator[Finding]:
    """A hint where backward without the declaration has the right second derivative at every sample.

    A hint, since to refuse may be meant: a declaration is taken at its word, and it says so too where PyTorch's guard
    isn't on the way and the derivative is lost. backward itself has to be right: a replay of forward is forbidden, and
    no reference stands in for it.
    """
    bare = _undeclared(subject)
    if bare is None or not subject.cases:
        return
    for case in subject.cases:
        truth = truth_of(bare, case)
        if isinstance(truth, str) or not truth.case.exact:
            return
        try:
            call = differentiable_call(bare, truth)
            weighted = weights_for(bare, call)
            obtained = [second_gradients(bare, call, weighted, k) for k in range(len(call.gradients))]
        except (ForwardRaised, BackwardRaised):
            return
        connected = any(gradient is not None and gradient.requires_grad for gradient in call.gradients)
        if not connected or compare_second(bare, truth, call, weighted, obtained) != []:
            return
    case = subject.cases[0]
    lost = any(_is_lost(subject, bare, case) for case in subject.cases)
    yield subject.finding(
        "PB205",
        case,
        "backward is declared once differentiable, and without the declaration its derivative is right at every sample"
        + (
            "; with it torch.autograd.grad loses that in silence, since PyTorch's guard isn't on its way"
            if lost
            else ""
        ),
        severity=Severity.HINT,
        expected="a second derivative",
        got="a second derivative that lacks a part" if lost else "an error",
        remedy="Drop once_differentiable, unless a second derivative is to be refused.",
        evidence={"order": 2},
        repro=penalty_lines(subject, case) if lost else needless_lines(subject, case),
    )


def _is_lost(subject: Subject, bare: Subject, case: Case) -> bool:
    """Whether a second derivative by `torch.autograd.grad` is another with the declaration, and nothing raises."""
    truth = truth_of(bare, case)
    if isinstance(truth, str):
        return False
    for vary in (True, False):
        wanted = differentiable_call(bare, truth, cotangents_vary=vary)
        weighted = weights_for(bare, wanted)
        try:
            call = differentiable_call(subject, truth, cotangents_vary=vary)
            for which in range(len(call.gradients)):
                expected = second_gradients(bare, wanted, weighted, which)
                got = second_gradients(subject, call, weighted, which)
                arguments = range(len(call.inputs.varying))  # what is linear loses a part by grad_output alone
                if any(compare(expected[place], got[place], SAME) is not None for place in arguments):
                    return True
        except BackwardRaised:
            continue
    return False


def _undeclared(subject: Subject) -> Subject | None:
    """The same subject with backward as its author wrote it, without the decorator."""
    cls = subject.function
    name = "vjp" if subject.definition is not None and "vjp" in vars(cls) else "backward"
    inner = getattr(inspect.getattr_static(cls, name, None), "__wrapped__", None)
    while isinstance(inner, (staticmethod, classmethod)):
        inner = inner.__func__
    inner = getattr(inner, "__wrapped__", inner)
    if inner is None or is_once_differentiable(inner):
        return None
    declared = {"replayable": False} if issubclass(cls, Function) else {}
    try:
        bare = type(cls)(cls.__name__, (cls,), {name: staticmethod(inner), "reference": None, **declared})
        definition = describe(bare)
    except (PullbackError, TypeError):
        return None
    return replace(subject, function=bare, definition=definition, cache={}, said=[], found=set())


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
