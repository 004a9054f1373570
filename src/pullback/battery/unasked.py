"""Arguments that no sample differentiates by, though backward returns a gradient for them: it has to be right too.

An argument whose sample doesn't require grad may well be a constant to its author, so None is right for it, and so are
zeros; another gradient is a promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pullback.battery.away import Fault, numbered, wrong_at
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.numerics import flat
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro import difference_lines, subset_lines
from pullback.battery.subject import Case, Subject
from pullback.battery.written import written_only
from pullback.finding import Finding

_ALONE, _TOGETHER = 800, 801
"""The numbers of the variants."""


def unasked(subject: Subject, case: Case) -> Iterator[Finding]:
    """What is wrong with the gradients of arguments that don't require grad in the sample; one finding at most."""
    names = _with_gradients(subject, case)
    if not names:
        return
    alone = numbered(case, replace(case, varying=frozenset(names)), _ALONE)
    together = numbered(case, replace(case, varying=case.varying | names), _TOGETHER)
    inputs = subject.fresh(alone)
    outputs = subject.call(inputs)
    try:
        subject.gradients(outputs, [subject.cotangent(output.tensor) for output in outputs], inputs.varying)
    except BackwardRaised as raised:
        fault = wrong_at(subject, together)  # a formula that is wrong, before a flag that is
        if fault is None or fault.argument not in names:
            yield _raises(subject, case, together, min(names), names, raised)
            return
    written = written_only(subject, case, inputs, _only(names), names)
    if written is not None:
        yield written
        return
    for variant in (alone, together):
        fault = wrong_at(subject, variant)
        if fault is not None and fault.argument in names:
            yield _wrong(subject, case, variant, fault)
            return


def _with_gradients(subject: Subject, case: Case) -> frozenset[str]:
    """The arguments that could require grad, don't in the sample, and get a gradient other than zeros if they do."""
    nondiff = subject.definition.nondiff_argnames if subject.definition is not None else ()
    others = {
        name
        for name, argument, tensor in subject.named_tensors(case.sample)
        if name not in case.varying and argument not in nondiff and is_float(tensor) and is_dense(tensor)
    }
    if not others:
        return frozenset()
    inputs = subject.fresh(case, requires=case.varying | others)
    try:
        outputs = subject.call(inputs)
        cotangents = [subject.cotangent(output.tensor) for output in outputs]
        gradients = subject.gradients(outputs, cotangents, inputs.varying)
    except (ForwardRaised, BackwardRaised):
        return frozenset()  # which an author may do for what he takes for a constant
    return frozenset(
        leaf.name
        for leaf, gradient in zip(inputs.varying, gradients, strict=True)
        if leaf.name in others and gradient is not None and bool(flat(gradient).any())
    )


def _wrong(subject: Subject, case: Case, variant: Case, fault: Fault) -> Finding:
    assert fault.mismatch is not None
    which = "alone" if len(variant.varying) == 1 else "too"
    return subject.finding(
        "PB203",
        case,
        f"backward returns a gradient for {fault.argument}, which doesn't require grad in the sample, and it isn't the "
        f"derivative where it {which} does",
        argument=fault.argument,
        expected=fault.mismatch.expected,
        got=fault.mismatch.got,
        remedy="Derive backward anew for the argument named, or return None for it and declare it in nondiff_argnames.",
        evidence={**fault.mismatch.evidence, "requires_grad": sorted(variant.varying)},
        repro=difference_lines(subject, variant, fault.argument, fault.mismatch.index),
    )


def _only(names: frozenset[str]) -> str:
    return f"only {' and '.join(sorted(names))} require{'s' if len(names) == 1 else ''} grad"


def _raises(
    subject: Subject, case: Case, together: Case, argument: str, names: frozenset[str], raised: BackwardRaised
) -> Finding:
    return subject.finding(
        "PB208",
        case,
        f"backward raises when {_only(names)}: {raised}",
        argument=argument,
        expected="the gradient that comes when all require grad",
        got=str(raised),
        repro=subset_lines(subject, together, argument, tuple(sorted(names))),
    )
