"""forward gives the values of its reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from pullback.battery.budgets import Budgets, Shake
from pullback.battery.compare import compare
from pullback.battery.draws import draws
from pullback.battery.leaves import is_float
from pullback.battery.oracle import in_double, largest, moved
from pullback.battery.paths import telling
from pullback.battery.patterns import of_value
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.repro import rule_value_lines, value_dtype_lines, value_lines
from pullback.battery.subject import Case, ForwardRaised, Output, Subject, one_line, with_tensors
from pullback.battery.tolerances import LOWER, for_values, precision_of
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
            found = list(_compare(subject, case))
            if not any(isinstance(note, Finding) for note in found) and _is_raised(subject, case):
                found += _compare(subject, subject.as_given(case))  # a branch for float32, say
            if not found and case.exact and case.may_vary("dtype") and case in telling(subject):
                found += _in_lower(subject, case)
            yield from found


def _is_raised(subject: Subject, case: Case) -> bool:
    """Whether the sample came in lower dtypes than the case has."""
    given = [tensor.dtype for _, _, tensor in subject.named_tensors(subject.samples.samples[case.index])]
    return case.exact and given != [tensor.dtype for _, _, tensor in subject.named_tensors(case.sample)]


def _in_lower(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """The values in each lower dtype, at numbers that it holds; and their dtype, against the reference's there."""
    if draws(subject, case).forward:
        return  # in another dtype the same generator gives other numbers
    for dtype in LOWER:

        def down(_: str, tensor: torch.Tensor, dtype: torch.dtype = dtype) -> torch.Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        low = replace(moved(subject, case, down), exact=False)
        try:
            found = list(_compare(subject, low)) or list(_of_another_dtype(subject, low))
        except ForwardRaised:
            continue  # the probe of precision tells of what is refused
        if found:
            name = str(dtype).removeprefix("torch.")
            yield from (replace(f, message=f"in {name} {f.message}") if isinstance(f, Finding) else f for f in found)
            return


def _of_another_dtype(subject: Subject, low: Case) -> Iterator[Finding]:
    """The first output that has another dtype than the reference's, where the reference keeps to the lower one."""
    outputs = subject.call(subject.fresh(low))  # with a graph: a forward may take another path then
    expected = subject.call(subject.fresh(low), subject.reference)
    for output, wanted in zip(outputs, expected, strict=False):
        if is_float(output.tensor) and output.tensor.dtype != wanted.tensor.dtype:
            yield _wrong_dtype(subject, low, output, wanted.tensor.dtype)
            return


def _wrong_dtype(subject: Subject, case: Case, output: Output, wanted: torch.dtype) -> Finding:
    return subject.finding(
        "PB219",
        case,
        f"{output.name} has the dtype {output.tensor.dtype}, and the reference's has {wanted}",
        output=output.name,
        expected=str(wanted),
        got=str(output.tensor.dtype),
        repro=value_dtype_lines(subject, case, output.name),
    )


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
    floats = [t.dtype for _, _, t in subject.named_tensors(case.sample) if is_float(t)]
    budgets = _budgets(subject, double, [*floats, *(o.tensor.dtype for o in outputs if is_float(o.tensor))], expected)
    for place, (wanted, output) in enumerate(zip(expected, outputs, strict=True)):
        dtype = output.tensor.dtype
        got = in_double(output.tensor)
        if budgets is not None and is_float(got):
            bad = budgets.judge(place, got)
        else:
            bad = compare(wanted.tensor.to(got.dtype), got, for_values(dtype))
        if bad is None and case.exact and is_float(got) and dtype != wanted.tensor.dtype:
            yield _wrong_dtype(subject, case, output, wanted.tensor.dtype)
        if bad is not None:
            pattern = of_value(subject, case, wanted.tensor, output.tensor)
            yield subject.finding(
                "PB219",
                case,
                f"{output.name} differs from the reference{f': {pattern}' if pattern else ''}",
                output=output.name,
                expected=bad.expected,
                got=bad.got,
                evidence={**bad.evidence, **({"diagnosis": pattern} if pattern else {})},
                repro=value_lines(subject, case),
            )


def _budgets(
    subject: Subject, double: Case, dtypes: Iterable[torch.dtype], expected: Sequence[Output]
) -> Budgets | None:
    """What rounding may cost the reference's values; None where all is in float64."""
    low, precision = precision_of(dtypes)
    if low is torch.float64:
        return None
    tensors = tuple(in_double(output.tensor) for output in expected)

    def shaken(shake: Shake) -> tuple[torch.Tensor, ...]:
        rounded = moved(subject, double, lambda _, tensor: shake.rounded(tensor))
        inputs = subject.fresh(rounded, requires=())
        with shake.operators():
            return tuple(output.tensor for output in subject.call(inputs, subject.reference))

    return Budgets(precision, largest(subject, double, tensors), tensors, shaken, subject.random)


PROBE = Probe("values", "forward gives the values of its reference", run)
