"""forward gives the values of its reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from pullback.battery.compare import compare
from pullback.battery.leaves import is_float
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.repro import rule_value_lines, value_lines
from pullback.battery.subject import Case, ForwardRaised, Subject, one_line, with_tensors
from pullback.battery.tolerances import for_values
from pullback.custom.decorated import decorated
from pullback.finding import Finding


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare each output of each sample with that of the reference, in float64."""
    made_for = decorated(subject.function)
    if subject.reference is None and made_for is None:
        raise Skip("no reference is known")
    for case in subject.cases:
        if made_for is not None:
            yield from _compare_rule(subject, case)
        if subject.reference is not None:
            yield from _compare(subject, case)


def _compare_rule(subject: Subject, case: Case) -> Iterator[Finding]:
    """A decorated function runs its rule where something is differentiated, and itself elsewhere."""
    alone, ruled = (subject.call(subject.fresh(case, requires=requires)) for requires in ((), None))
    for wanted, output in zip(alone, ruled, strict=False):
        bad = compare(in_double(wanted.tensor), in_double(output.tensor), for_values(output.tensor.dtype))
        if bad is not None or len(alone) != len(ruled):
            what = f"{output.name} is another" if bad is not None else "the number of tensors in the result is another"
            yield subject.finding(
                "PB219",
                case,
                f"{what} where something is differentiated, so that the rule runs in the place of the function",
                output=output.name,
                expected=bad.expected if bad is not None else str(len(alone)),
                got=bad.got if bad is not None else str(len(ruled)),
                remedy="Return the function's own result from its rule.",
                evidence=bad.evidence if bad is not None else {},
                repro=rule_value_lines(subject, case),
            )
            return


def _compare(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    outputs = subject.call(subject.fresh(case, requires=()))
    double = Case(case.index, with_tensors(case.sample, in_double), case.varying)
    try:
        expected = subject.call(subject.fresh(double, requires=()), subject.reference)
    except ForwardRaised as raised:
        yield subject.finding(
            "PB219",
            case,
            f"the reference raises: {one_line(raised.error)}",
            got=one_line(raised.error),
            repro=value_lines(subject, case),
        )
        return
    if len(outputs) != len(expected):
        yield subject.finding(
            "PB219",
            case,
            "forward returns another number of tensors than the reference",
            expected=str(len(expected)),
            got=str(len(outputs)),
            repro=value_lines(subject, case),
        )
        return
    for wanted, output in zip(expected, outputs, strict=True):
        dtype = output.tensor.dtype
        got = in_double(output.tensor)
        bad = compare(wanted.tensor.to(got.dtype), got, for_values(dtype))
        if bad is not None:
            yield subject.finding(
                "PB219",
                case,
                f"{output.name} differs from the reference",
                output=output.name,
                expected=bad.expected,
                got=bad.got,
                evidence=bad.evidence,
                repro=value_lines(subject, case),
            )


def in_double(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 or complex128; integers and bools as they are."""
    tensor = tensor.detach()
    return (
        tensor.to(torch.complex128) if tensor.is_complex() else tensor.to(torch.float64) if is_float(tensor) else tensor
    )


PROBE = Probe("values", "forward gives the values of its reference", run)
