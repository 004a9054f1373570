"""Differentiating the gradients, through `autograd.grad` and through `backward`, gives their derivatives or raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from pullback.battery.advice import for_second_order, for_surrogate, is_pullback
from pullback.battery.case import CotangentName
from pullback.battery.compare import compare
from pullback.battery.curves import shifted
from pullback.battery.leaves import is_float
from pullback.battery.lower import Lowered, or_in_lower
from pullback.battery.nodes import Kept, cut_off, node_of
from pullback.battery.numerics import signs, size_of
from pullback.battery.ordinary import is_right
from pullback.battery.otherwise import second_otherwise
from pullback.battery.paths import passed_over, telling, tells
from pullback.battery.patterns import of_second
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.raised import RAISED
from pullback.battery.repro_second import accumulated_lines, cotangent_lines, penalty_lines
from pullback.battery.second import (
    Call,
    Weighted,
    Wrong,
    at_one_element,
    compare_second,
    differentiable_call,
    second_gradients,
    weights_for,
)
from pullback.battery.second_lower import second_in_lower
from pullback.battery.second_nothing import second_of_nothing
from pullback.battery.subject import BackwardRaised, Subject, one_line, text_of
from pullback.battery.tolerances import SAME
from pullback.battery.truth import Truth, truth_of
from pullback.errors import PullbackError
from pullback.finding import Finding

_REFUSALS = ("not implemented", "not differentiable", "differentiate twice", "double backward", "derivative for")


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Try the second derivative of every sample."""
    definition = subject.definition
    if definition is not None and definition.nonlinear_backward and definition.expected_backward is None:
        raise Skip("backward is declared not to be linear, and there is no expected_backward to go by")
    unjudged: set[int] = set()

    def in_lower(subject: Subject, low: Lowered) -> Iterator[Finding]:
        if low.index not in unjudged:
            yield from second_in_lower(subject, low)

    yield from or_in_lower(subject, _each(subject, unjudged), in_lower)
    yield from passed_over(subject, "there second derivatives were asked for in one way alone")


def _each(subject: Subject, unjudged: set[int]) -> Iterator[Finding | Note]:
    """The samples one by one; adds the numbers of those whose second derivatives aren't known to be right."""
    judged, reasons = 0, []
    tried: set[str] = set()
    unjudged.update(case.index for case in subject.cases)
    for case in subject.cases:
        truth = truth_of(subject, case)
        if isinstance(truth, str) or not truth.case.exact:
            reasons.append(truth if isinstance(truth, str) else f"{case.label}: float64 is refused")
            continue
        if subject.surrogate is not None and not is_right(subject, case):
            reasons.append(f"{case.label}: the gradient isn't the surrogate's to begin with")
            continue
        try:
            found = list(_judge(subject, truth))
        except _Refused as refused:
            reasons.append(f"{case.label}: {refused}")
            continue
        judged += 1
        yield from found
        if not found:
            unjudged.discard(case.index)
            otherwise = list(second_otherwise(subject, truth, tried))
            yield from otherwise
            if case in telling(subject) and not any(isinstance(result, Finding) for result in otherwise):
                yield from second_of_nothing(subject, truth)
    if not judged:
        raise Skip("; ".join(reasons))
    for reason in reasons:
        yield Note(reason)


class _Refused(Exception):
    """The second derivative isn't to be had, and says so."""


def _judge(subject: Subject, truth: Truth) -> Iterator[Finding | Note]:
    declared_once = subject.definition is not None and subject.definition.once_differentiable
    try:
        call = differentiable_call(subject, truth)
        weighted = weights_for(subject, call)
        if declared_once and _raises_on_backward(subject, truth, weighted):
            yield Note(f"{truth.case.label}: declared once differentiable, and a second differentiation raises")
            return
        obtained = [second_gradients(subject, call, weighted, k) for k in range(len(call.gradients))]
    except BackwardRaised as raised:
        yield _raised(subject, truth, raised.error, declared_once)
        return
    wrong = compare_second(subject, truth, call, weighted, obtained)
    if wrong is None:
        raise _Refused("the gradient isn't smooth there, so finite differences can't judge it")
    if wrong:
        yield _diagnosis(subject, truth, call, weighted, obtained, wrong)
        return
    if tells(subject, truth.case):
        yield from _through_backward(subject, truth, weighted, obtained)


def _raises_on_backward(subject: Subject, truth: Truth, weighted: Weighted) -> bool:
    """Whether `.backward()` on the gradients raises, as `once_differentiable` promises."""
    call = differentiable_call(subject, truth)
    total = _total(call, weighted)
    if total is None:
        return False
    try:
        total.backward()
    except RAISED:
        return True
    return False


def _total(call: Call, weighted: Weighted) -> torch.Tensor | None:
    terms = [
        (torch.view_as_real(gradient.resolve_conj()) * torch.view_as_real(weight)).sum()
        if gradient.is_complex()
        else (gradient * weight.to(gradient.dtype)).sum()
        for gradient, weight in zip(call.gradients, weighted.weights, strict=True)
        if gradient is not None and gradient.requires_grad
    ]
    return torch.stack(terms).sum() if terms else None


def _raised(subject: Subject, truth: Truth, error: BaseException, declared_once: bool) -> Finding | Note:
    """A second differentiation that raised: respected where it was declared, a finding where it is a fault."""
    text = one_line(error)
    if declared_once:
        return Note(f"{truth.case.label}: declared once differentiable, and a second differentiation raises")
    repro = penalty_lines(subject, truth.case)
    if isinstance(error, PullbackError):
        if error.rule == "PB203" and error.rule in subject.found:
            raise _Refused("the gradient isn't the reference's to begin with, as PB203 tells")
        remedy = for_second_order(subject, error.rule, error.message) or error.remedy
        return subject.finding(
            error.rule, truth.case, error.message, expected=error.expected, got=text, remedy=remedy, repro=repro
        )
    author_wrote_it = subject.definition is not None and subject.definition.double_backward is not None
    if not author_wrote_it and any(word in text_of(error).lower() for word in _REFUSALS):
        raise _Refused(f"a second differentiation raises {text}")
    return subject.finding("PB205", truth.case, f"differentiating the gradient raises {text}", got=text, repro=repro)


def _diagnosis(
    subject: Subject,
    truth: Truth,
    call: Call,
    weighted: Weighted,
    obtained: Sequence[Sequence[torch.Tensor | None]],
    wrong: list[Wrong],
) -> Finding:
    """The rule that names why second derivatives are wrong: cut-off tensors, an opaque backward, or the formula."""
    worst = max(wrong, key=lambda w: w.mismatch.max_error)
    first = at_one_element(subject, truth, call, weighted, obtained, worst)
    cut = _varying_cut_off(subject, truth)
    written = is_pullback(subject) and getattr(subject.definition, "double_backward", None) is not None
    opaque = all(gradient is None or gradient.grad_fn is None for gradient in call.gradients)
    tensor = ""
    of = f"the derivative of {first.gradient}'s gradient by {first.variable}"
    if written:
        rule, message = "PB205", f"{of} is wrong"
    elif cut and any(w.missing or w.variable in _names(call) for w in wrong):
        declared = [kept for kept in cut if kept.declared]
        tensor = " and ".join(kept.name for kept in declared or cut)
        verb = "varies" if len(declared or cut) == 1 else "vary"
        rule, message = "PB206", f"{tensor} {verb} with the arguments and came back as constants: {of} is wrong"
        if declared:
            rule, message = "PB217", f"{tensor} {verb} with the arguments and was declared constant: {of} is wrong"
    elif opaque:
        rule, message = "PB207", f"backward's result has no graph behind it: {of} is lost"
    elif first.missing:
        rule, message = "PB207", f"a part of backward has no graph behind it: {of} is lost"
    else:
        rule, message = "PB205", f"{of} is wrong"
    pattern = of_second(subject, truth, call, weighted, first.gradient, first.variable) if rule == "PB205" else ""
    by_cotangent = isinstance(first.variable, CotangentName)
    index, output = first.mismatch.index, first.variable.replace("grad_", "", 1)
    if by_cotangent:
        repro = cotangent_lines(subject, truth.case, first.gradient, index, output)
    else:
        repro = penalty_lines(subject, truth.case, first.variable, index)
    return subject.finding(
        rule,
        truth.case,
        f"{message}: {pattern}" if pattern else message,
        argument=first.gradient,
        expected=first.mismatch.expected,
        got="0 (no path)" if first.missing else first.mismatch.got,
        remedy=for_surrogate(subject, rule) or for_second_order(subject, rule, tensor),
        evidence={
            **first.mismatch.evidence,
            "by": str(first.variable),
            "tensor": tensor,
            "order": 2,
            "diagnosis": pattern,
        },
        repro=repro,
    )


def _names(call: Call) -> set[str]:
    return {leaf.name for leaf in call.inputs.varying}


def _varying_cut_off(subject: Subject, truth: Truth) -> list[Kept]:
    """The kept tensors that autograd takes for constants, and that change smoothly with the arguments."""
    inputs = subject.fresh(truth.case)
    outputs = subject.call(inputs)
    node = node_of(subject, outputs)
    if node is None:
        return []
    kept = list(cut_off(node, inputs, outputs))
    varying: dict[str, Kept] = {}
    for leaf in inputs.varying:
        direction = signs(leaf.tensor.numel() * (2 if leaf.tensor.is_complex() else 1), subject.random)
        step = 1e-4 * size_of(leaf.tensor)
        there = (
            subject.fresh(truth.case)
            if not kept
            else shifted(subject, truth.case, leaf.name, direction, step, track=True)
        )
        moved_outputs = subject.call(there)
        moved_node = node_of(subject, moved_outputs)
        moved = {other.name: other.tensor for other in cut_off(moved_node, there, moved_outputs)} if moved_node else {}
        for one in kept:
            other = moved.get(one.name)
            if other is not None and is_float(other) and compare(one.tensor, other, SAME) is not None:
                varying[one.name] = one
    return list(varying.values())


def _through_backward(
    subject: Subject, truth: Truth, weighted: Weighted, obtained: list[tuple[torch.Tensor | None, ...]]
) -> Iterator[Finding]:
    """The same second derivatives by `backward(create_graph=True)` and `backward()` on what it left in `.grad`."""
    inputs = subject.fresh(truth.case)
    outputs = subject.call(inputs)
    cotangents = tuple(c.detach().clone().requires_grad_() for c in truth.cotangents)
    variables = Call(inputs, cotangents, ()).variables()
    subject.reseed(backward=True)
    try:
        torch.autograd.backward(
            [outputs[position].tensor for position in truth.outputs],
            [c.clone() for c in cotangents],
            create_graph=True,
        )
        gradients = tuple(leaf.tensor.grad for leaf in inputs.varying)
        for leaf in inputs.varying:
            leaf.tensor.grad = None  # .grad holds its graph, which holds the leaf
        total = _total(Call(inputs, cotangents, gradients), weighted)
        if total is not None:
            total.backward()
    except RAISED as error:
        found = _raised(subject, truth, error, declared_once=False)
        if isinstance(found, Finding):
            yield found
        return
    for place, variable in enumerate(variables):
        terms = [row[place] for row in obtained if row[place] is not None]
        expected = torch.stack([term for term in terms if term is not None]).sum(0) if terms else None
        bad = compare(expected, variable.tensor.grad, SAME)
        variable.tensor.grad = None
        if bad is not None:
            yield subject.finding(
                "PB205",
                truth.case,
                f"backward(create_graph=True) leads to another second derivative by {variable.name} than autograd.grad",
                argument=variable.name,
                expected=bad.expected,
                got=bad.got,
                evidence={**bad.evidence, "order": 2},
                repro=accumulated_lines(subject, truth.case, variable.name),
            )
            return


PROBE = Probe("second_order", "differentiating each gradient is right, or raises where that was declared", run, order=2)
