"""A report that is clean must not mean that no derivative was looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pullback.battery.curves import curve_maker
from pullback.battery.leaves import is_float
from pullback.battery.numerics import flat, signs
from pullback.battery.repro import call_lines
from pullback.battery.repro_effects import untracked_lines
from pullback.battery.subject import Case, ForwardRaised, Subject
from pullback.finding import Finding

_REMEDY = (
    "Give samples with floating tensors on which forward's output depends; where forward takes no float64, give a "
    "reference too, or pass the module in float64."
)
_SHOWN = ('print("got:", output)', 'print("expected: an output whose gradient can be compared with a derivative")')


def nothing_judged(subject: Subject, reasons: Sequence[str]) -> Iterator[Finding]:
    """What to report where no sample's derivative could be judged: outputs cut off, or else that nothing was proved."""
    for case in subject.cases:
        cut_off = _cut_off(subject, case)
        if cut_off is not None:
            yield cut_off
            return
    case = next(iter(subject.cases))
    yield subject.finding(
        "PB121",
        case,
        f"no derivative could be looked at: {'; '.join(reasons)}",
        expected="at least one sample at which the gradient can be compared with forward's derivative",
        got="none",
        remedy=_REMEDY,
        repro="\n".join([*call_lines(subject, case), *_SHOWN]),
    )


def _cut_off(subject: Subject, case: Case) -> Finding | None:
    """An output that varies smoothly with an argument, where no output requires grad."""
    outputs = subject.call(subject.fresh(case))
    floats = tuple(position for position, output in enumerate(outputs) if is_float(output.tensor))
    if not case.exact or not floats or any(output.tensor.requires_grad for output in outputs):
        return None
    how = "detached" if subject.definition is None else "marked non-differentiable"
    cotangents = tuple(subject.cotangent(outputs[position].tensor) for position in floats)
    for leaf in subject.fresh(case).varying:
        direction = signs(flat(leaf.tensor).numel(), subject.random)
        try:
            slopes = curve_maker(subject, case, None, floats, cotangents)(leaf.name, direction)
        except ForwardRaised:
            continue
        moving = slopes.smooth & (slopes.values.abs() > slopes.errors)
        if bool(moving.any()):
            output = outputs[floats[int(moving.int().argmax())]]
            return subject.finding(
                "PB209",
                case,
                f"{output.name} varies smoothly with {leaf.name}, and no output requires grad: it is {how}",
                output=output.name,
                expected="an output that requires grad",
                got=f"{output.name}.requires_grad is False",
                remedy="Don't mark it: only outputs without a derivative, such as indices, are non-differentiable.",
                repro=untracked_lines(subject, case, output.name),
            )
    return None
