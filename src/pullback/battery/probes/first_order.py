"""Each argument's gradient, output by output, is that of the reference, the surrogate, or forward by differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from pullback.battery.advice import to_declare
from pullback.battery.away import FIRST_FEW
from pullback.battery.compare import Mismatch, compare
from pullback.battery.complexes import for_complex
from pullback.battery.curves import shifted
from pullback.battery.expected import against_expectation
from pullback.battery.factor import off_by_a_factor
from pullback.battery.facts import diagnosis
from pullback.battery.meant import if_meant
from pullback.battery.nodes import low_precision_in
from pullback.battery.nothing import nothing_judged
from pullback.battery.numerics import flat, signs, size_of
from pullback.battery.paths import telling
from pullback.battery.probe import Note, Probe
from pullback.battery.repro import difference_lines, oracle_lines
from pullback.battery.repro_precision import operator_lines
from pullback.battery.subject import ForwardRaised, Leaf, Subject
from pullback.battery.tolerances import SAME, for_gradients, real_dtype
from pullback.battery.truth import Truth, truth_of
from pullback.battery.unasked import unasked
from pullback.battery.verdict import with_remark
from pullback.finding import Finding

_FEW_ROUNDINGS = 32
"""An error of more roundings than this, of a number of the gradient's size, has another cause or cancels badly."""

_BOTH = (
    "Compute backward in the dtype of the arguments, or a higher one (a mask times a Python number is float32, for "
    "one), and see whether the gradient is right then; if not, derive it anew."
)


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare every gradient of every sample with the truth."""
    if subject.definition is not None and subject.definition.nonlinear_backward:
        yield from against_expectation(subject)
        return
    judged = 0
    for case in subject.cases:
        truth = truth_of(subject, case)
        if isinstance(truth, str):
            yield Note(truth)
            continue
        judged += 1
        if not truth.case.exact and truth.source == "finite differences":
            yield Note(f"{case.label}: float64 is refused and there is no reference, so that gross errors alone show")
        if truth.case.moved:
            yield Note(f"sample {case.index} lies on a kink of forward: a point nearby was taken")
        if truth.partial:
            yield Note(f"{case.label} holds NaN or infinities: only what they don't reach was compared")
        yield from _judge(subject, truth)
    for case in subject.cases[:FIRST_FEW]:
        yield from unasked(subject, case)
    for case in dict.fromkeys((*subject.cases[:FIRST_FEW], *telling(subject))):
        yield from for_complex(subject, case)
    if not judged:
        yield from nothing_judged(subject, [str(truth_of(subject, case)) for case in subject.cases])


def gradients_by_output(subject: Subject, truth: Truth) -> Iterator[tuple[int, list[tuple[Leaf, torch.Tensor | None]]]]:
    """For each differentiable output alone (zeros for the others), the gradient of each leaf."""
    for place in range(len(truth.outputs)):
        inputs = subject.fresh(truth.case)
        outputs = subject.call(inputs)
        chosen = [outputs[position] for position in truth.outputs]
        cotangents = [c if i == place else torch.zeros_like(c) for i, c in enumerate(truth.cotangents)]
        gradients = subject.gradients(chosen, cotangents, inputs.varying)
        yield place, list(zip(inputs.varying, gradients, strict=True))


def _judge(subject: Subject, truth: Truth) -> Iterator[Finding]:
    found: dict[str, Finding] = {}
    for place, gradients in gradients_by_output(subject, truth):
        wrong = [(leaf, got, bad) for leaf, got in gradients if (bad := truth.judge(leaf, place, got)) is not None]
        if wrong and len(truth.outputs) > 1 and all(_is_nothing(got) for _, got in gradients):
            yield ignored_output(subject, truth, place, wrong[0][0], wrong[0][2])
            continue
        for leaf, got, bad in wrong:
            found.setdefault(leaf.name, _wrong(subject, truth, place, leaf, got, bad))
    yield from if_meant(subject, truth, found)
    if not found:
        yield from off_by_a_factor(subject, truth)


def ignored_output(subject: Subject, truth: Truth, place: int, leaf: Leaf, bad: Mismatch) -> Finding:
    """PB209: what comes back for one output is dropped."""
    position = truth.outputs[place]
    name = subject.output_name(truth.case, position)
    return subject.finding(
        "PB209",
        truth.case,
        f"{name} varies with {leaf.name}, and backward ignores the gradient that comes back for it",
        output=name,
        expected=f"a gradient of {leaf.name}: {bad.expected}",
        got="zeros" if bad.got != "None" else "None",
        evidence=bad.evidence,
        repro=difference_lines(subject, truth.case, leaf.name, bad.index, output=position),
    )


def _is_nothing(gradient: torch.Tensor | None) -> bool:
    return gradient is None or not bool(flat(gradient).any())


def _wrong(subject: Subject, truth: Truth, place: int, leaf: Leaf, got: torch.Tensor | None, bad: Mismatch) -> Finding:
    """The rule that names the cause of one wrong gradient."""
    of = f"the gradient of {leaf.name}"
    against = {"finite differences": "finite differences of forward"}.get(truth.source, f"the {truth.source}")
    evidence: dict[str, object] = {**bad.evidence, "against": truth.source}
    remedy = ""
    if got is None:
        rule, message = "PB204", f"backward returns None for {leaf.name}, and the output depends on it"
    elif truth.source != "surrogate" and _is_piecewise_constant(subject, truth, leaf, place):
        rule = "PB216"
        message = f"forward's derivative by {leaf.name} is 0 almost everywhere, and backward returns a gradient"
        remedy = to_declare(subject, rule)
    else:
        low = low_precision_in(subject, truth.case, truth.cotangents, truth.outputs)
        if low is not None and _is_rounding(subject, truth, leaf, place, got, low):
            rule, message = "PB214", f"{of} has the precision of {low}: backward computes in that dtype"
            evidence["dtype"] = str(low).removeprefix("torch.")
            if bad.max_error > _FEW_ROUNDINGS * torch.finfo(low).eps * size_of(got):
                message = (
                    f"{of} is off by {bad.max_error:.1g}, by more than a few roundings: backward computes in {low}"
                )
                message, remedy = f"{message}, and its formula may be wrong too", _BOTH
        else:
            rule, message = "PB203", f"{of} differs from {against}, for a random grad_output"
            pattern = diagnosis(truth, place, leaf, got)
            if pattern:
                message, evidence["diagnosis"] = f"{message}: {pattern}", pattern
            if truth.source == "surrogate":
                remedy = "Derive backward anew from the surrogate, or mend the surrogate: one of the two is wrong."
    output = subject.output_name(truth.case, truth.outputs[place]) if len(truth.outputs) > 1 else ""
    return subject.finding(
        rule,
        truth.case,
        message,
        argument=leaf.name,
        what=output,
        expected=bad.expected,
        got=bad.got,
        remedy=remedy,
        evidence=evidence,
        repro=_repro(subject, truth, place, leaf, rule, bad),
    )


def _repro(subject: Subject, truth: Truth, place: int, leaf: Leaf, rule: str, bad: Mismatch) -> str:
    """The lines that show the gradient beside the one that it was compared with."""
    position = truth.outputs[place]
    if rule == "PB214":
        return operator_lines(subject, truth.case)
    if truth.source == "finite differences":
        lines = difference_lines(subject, truth.case, leaf.name, bad.index, output=position)
        return with_remark(lines) if rule == "PB216" else lines
    return oracle_lines(subject, truth.case, leaf.name, truth.source, output=position)


def _is_piecewise_constant(subject: Subject, truth: Truth, leaf: Leaf, place: int) -> bool:
    """Whether forward has no slope by `leaf` and yet depends on it: it moves in jumps, as rounding does."""
    if not all(truth.is_zero(leaf.name, other) for other in range(len(truth.outputs))):
        return False
    start = subject.call(subject.fresh(truth.case, requires=()))
    count = flat(leaf.tensor).numel()
    for stride in (1.0, 10.0):
        try:
            inputs = shifted(
                subject, truth.case, leaf.name, signs(count, subject.random), stride * size_of(leaf.tensor)
            )
            there = subject.call(inputs)
        except ForwardRaised:
            continue
        if any(compare(a.tensor, b.tensor, SAME) is not None for a, b in zip(start, there, strict=True)):
            return True
    return False


def _is_rounding(subject: Subject, truth: Truth, leaf: Leaf, place: int, got: torch.Tensor, low: torch.dtype) -> bool:
    """Whether the gradient is right to within the tolerance of the dtype `low`."""
    if truth.exact:
        budgets = truth.budgets(real_dtype(low))
        return budgets.judge(list(truth.exact).index((leaf.name, place)), got) is None
    if truth.confirmed:
        return compare(truth.confirmed[leaf.name, place], got, for_gradients(low)) is None
    allowed = for_gradients(low).rtol
    for projection in truth.projections[leaf.name]:
        terms = flat(got) * projection.direction
        error = abs(float(terms.sum()) - float(projection.slopes.values[place]))
        if error > allowed * float(terms.norm()):
            return False
    return True


PROBE = Probe("first_order", "each gradient is the derivative of the reference, the surrogate, or forward", run)
