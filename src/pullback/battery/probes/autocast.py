"""Under autocast a float32 call gives the gradients of float64 to within what bfloat16 costs, and never raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from pullback.battery.budgets import Budgets, Shake
from pullback.battery.compare import Mismatch, compare, natural_scale
from pullback.battery.draws import draws
from pullback.battery.formula import formula_of
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.numerics import flat, unflat
from pullback.battery.observe import difference
from pullback.battery.oracle import in_double, largest, moved
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.repro_surroundings import autocast_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Output, Subject, one_line
from pullback.battery.tolerances import PRECISIONS, UNTOUCHED, Tolerance, for_gradients, for_values
from pullback.battery.trials import by_name
from pullback.finding import Finding

_LOW = torch.bfloat16
_NUDGES = 8
"""How many calls on arguments that are off by a rounding or two of bfloat16 show how far that moves a result."""

_CONFIRMED = 2
"""At how many other points a fault has to show, of twice as many: by chance it may be small at one."""

_ROOM = 4.0
"""A result may move this many times as far: forward and backward round what they compute on the way, too."""


@dataclass(frozen=True, eq=False)
class _Exact:
    """The truth for one case: float64 at the float32 values of the arguments.

    Attributes:
        case: That case.
        outputs: What the call returns.
        cotangents: One for each output.
        gradients: By argument.
        scales: The size that its gradient has where nothing cancels, by argument.
        room: How far roundings of the arguments move the elements of a result, by output or argument.
    """

    case: Case
    outputs: tuple[Output, ...]
    cotangents: tuple[torch.Tensor, ...]
    gradients: Mapping[str, torch.Tensor | None]
    scales: Mapping[str, float]
    room: Mapping[str, torch.Tensor]


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare each case, in float32 and under autocast, with float64."""
    refused: list[str] = []
    cases = telling(subject)
    for case in cases:
        low = moved(subject, case, lambda _, tensor: tensor.float() if tensor.is_floating_point() else tensor)
        try:
            plain = subject.call(subject.fresh(low))
        except ForwardRaised as raised:
            refused.append(f"{case.label}: forward refuses float32: {raised}")
            continue
        if draws(subject, case).backward:
            refused.append(f"{case.label}: backward draws random numbers")
            continue
        if not any(output.tensor.requires_grad for output in plain):
            refused.append(f"{case.label}: nothing is differentiated in float32")
            continue
        found = [result for result in _tried(subject, case, low)]
        if any(isinstance(result, Finding) for result in found) and not _everywhere(subject, case, low):
            yield Note(f"autocast, {case.label}: the gradient is another one at this point alone, as beside a kink")
            continue
        yield from found
    if len(refused) == len(cases):
        raise Skip(refused[0])
    yield from passed_over(subject)
    yield from (Note(f"refused: autocast, {text}") for text in refused)


def _everywhere(subject: Subject, case: Case, low: Case) -> bool:
    """Whether the fault shows at other points, too: what a rounding decides beside a kink is none."""
    if not case.may_vary("values"):
        return True
    shown = 0
    for _ in range(2 * _CONFIRMED):
        elsewhere = moved(subject, low, lambda _, tensor: _nudged(subject, tensor, 0.25))
        shown += any(isinstance(result, Finding) for result in _tried(subject, case, elsewhere))
        if shown == _CONFIRMED:
            return True
    return False


def _tried(subject: Subject, case: Case, low: Case) -> Iterator[Finding | Note]:
    inputs = subject.fresh(low)
    try:
        with torch.autocast("cpu", dtype=_LOW):
            outputs = subject.call(inputs)
    except ForwardRaised as raised:
        yield Note(f"refused: autocast, {case.label}: {raised}")
        return
    exact = _exact(subject, case, low)
    differs = _values(outputs, exact)
    if differs is not None:
        name, bad = differs
        told = case.may_vary("values") and subject.surrogate is None and not draws(subject, case).forward
        if bad is not None and told and _beyond_budget(subject, exact, outputs, name):
            yield _value_differs(subject, case, name, bad)
        else:
            yield Note(f"autocast, {case.label}: {name} already differs from float64, so gradients prove nothing")
        return
    untouched = all(
        torch.equal(one.tensor, other.tensor)
        for one, other in zip(subject.call(subject.fresh(low)), outputs, strict=True)
        if is_dense(one.tensor)
    )
    for inside in (False, True):
        if inside:
            inputs = subject.fresh(low)
            with torch.autocast("cpu", dtype=_LOW):
                outputs = subject.call(inputs)
        chosen = [output for output in outputs if output.tensor.requires_grad]
        if not chosen:
            yield Note(f"autocast, {case.label}: nothing is differentiated")
            return
        cotangents = [c.to(output.tensor.dtype) for c, output in zip(exact.cotangents, outputs, strict=True)]
        where = "inside the region, " if inside else ""
        try:
            with torch.autocast("cpu", dtype=_LOW, enabled=inside):
                gradients = subject.gradients(outputs, cotangents, inputs.varying)
        except BackwardRaised as raised:
            refused = _by_formula(subject, low, exact, inside=inside)
            if isinstance(refused, BackwardRaised) and str(refused) == str(raised):
                yield Note(f"refused: autocast, {case.label}: backward, as that of the plain formula: {refused}")
                return
            yield _raises(subject, case, raised.error, where, inside=inside)
            return
        for name, got in by_name(inputs.varying, gradients).items():
            room, scale = exact.room.get(name), exact.scales[name]
            usual = for_gradients(_LOW)
            if untouched and not inside:  # then what backward gets and what it computes in may be float32 alone
                usual, room = UNTOUCHED, None if room is None else room / _ROOM
            bad = _apart(exact.gradients[name], got, usual, room, scale)
            if bad is not None and _is_as_far(subject, low, exact, name, bad, inside=inside):
                yield Note(f"autocast, {case.label}: the gradient of {name} is as far off as that of the plain formula")
                return
            if bad is not None:
                yield _differs(subject, case, name, bad, where, inside=inside)
                return


def _by_formula(
    subject: Subject, low: Case, exact: _Exact, *, inside: bool
) -> dict[str, torch.Tensor | None] | BackwardRaised:
    """What autograd makes of the plain formula under autocast; nothing where the formula isn't known to be one."""
    formula = formula_of(subject)
    if formula is None:
        return {}
    try:
        inputs = subject.fresh(exact.case)
        outputs = subject.call(inputs, formula)
        gradients = subject.gradients(outputs, list(exact.cotangents), inputs.varying)
        for name, gradient in by_name(inputs.varying, gradients).items():
            if difference(exact.gradients[name], gradient, scale=exact.scales[name]) is not None:
                return {}
        inputs = subject.fresh(low)
        with torch.autocast("cpu", dtype=_LOW):
            outputs = subject.call(inputs, formula)
    except (ForwardRaised, BackwardRaised, ValueError):
        return {}
    cotangents = [c.to(output.tensor.dtype) for c, output in zip(exact.cotangents, outputs, strict=True)]
    try:
        with torch.autocast("cpu", dtype=_LOW, enabled=inside):
            return by_name(inputs.varying, subject.gradients(outputs, cotangents, inputs.varying))
    except BackwardRaised as raised:
        return raised


def _is_as_far(subject: Subject, low: Case, exact: _Exact, name: str, bad: Mismatch, *, inside: bool) -> bool:
    """Whether the plain formula's gradient is off, too, and not by much less."""
    found = _by_formula(subject, low, exact, inside=inside)
    if isinstance(found, BackwardRaised) or name not in found:
        return False
    right, room, scale = exact.gradients[name], exact.room.get(name), exact.scales[name]
    other = _apart(right, found[name], for_gradients(_LOW), room, scale)
    return other is not None and bad.max_error <= _ROOM * other.max_error


def _exact(subject: Subject, case: Case, low: Case) -> _Exact:
    """The truth, and by how much it moves when the arguments are rounded to bfloat16."""
    high = low if not case.exact else moved(subject, low, lambda _, t: t.double() if t.is_floating_point() else t)
    outputs = subject.call(subject.fresh(high))
    # Cotangents that bfloat16 holds exactly: their rounding is none of the call's.
    cotangents = tuple(_held_by_bfloat16(subject.cotangent(output.tensor)) for output in outputs)
    start = _results(subject, high, cotangents)
    room: dict[str, torch.Tensor] = {}
    for _ in range(_NUDGES):
        nudged = moved(subject, high, lambda _, tensor: _nudged(subject, tensor))
        for name, there in _results(subject, nudged, cotangents).items():
            here = start[name]
            if here is not None and there is not None and here.shape == there.shape:
                change = (flat(here) - flat(there)).abs().nan_to_num(float("inf"))
                room[name] = torch.maximum(room.get(name, torch.zeros_like(change)), change)
    leaves = subject.fresh(high).varying
    tensors = [output.tensor.detach() for output in outputs]
    scales = {leaf.name: natural_scale(tensors, cotangents, leaf.tensor) for leaf in leaves}
    return _Exact(high, outputs, cotangents, {leaf.name: start[leaf.name] for leaf in leaves}, scales, room)


def _results(subject: Subject, case: Case, cotangents: Iterable[torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """Outputs and gradients of a call by name; empty where it is refused, or returns other shapes."""
    inputs = subject.fresh(case)
    try:
        outputs = subject.call(inputs)
        found = by_name(inputs.varying, subject.gradients(outputs, list(cotangents), inputs.varying))
    except (ForwardRaised, BackwardRaised, ValueError):
        return {}
    return {**{output.name: output.tensor.detach() for output in outputs}, **found}


def _held_by_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_LOW).to(tensor.dtype) if tensor.is_floating_point() else tensor


def _nudged(subject: Subject, tensor: torch.Tensor, by: float = 2 * torch.finfo(_LOW).eps) -> torch.Tensor:
    """The tensor with each element off by up to a share of it, two roundings of bfloat16 unless given."""
    if not is_float(tensor):
        return tensor
    count = flat(tensor).numel()
    steps = torch.rand(count, generator=subject.random, dtype=torch.float64) * 2 - 1
    return unflat(flat(tensor) * (1 + by * steps), tensor)


def _values(outputs: tuple[Output, ...], exact: _Exact) -> tuple[str, Mismatch | None] | None:
    """The output whose values keep the gradients from being compared, and how they differ where that can be told."""
    if len(outputs) != len(exact.outputs):
        return "the number of outputs", None
    for got, one in zip(outputs, exact.outputs, strict=True):
        if got.tensor.shape != one.tensor.shape:
            return one.name, None
        bad = (
            _apart(one.tensor, got.tensor, for_values(_LOW), exact.room.get(one.name), 0.0)
            if is_float(one.tensor)
            else None
        )
        if bad is not None:
            return one.name, bad
    return None


def _beyond_budget(subject: Subject, exact: _Exact, outputs: tuple[Output, ...], name: str) -> bool:
    """Whether an output is further off than it would be if each operator rounded to bfloat16: within, terms cancel."""
    known = tuple(output.tensor.detach() for output in exact.outputs)

    def shaken(shake: Shake) -> list[torch.Tensor | None]:
        with shake.operators():
            found = subject.call(subject.fresh(moved(subject, exact.case, lambda _, t: shake.rounded(t)), requires=()))
        return [output.tensor for output in found]

    terms = largest(subject, exact.case, known)
    budgets = Budgets(PRECISIONS[_LOW], terms, known, shaken, subject.random)
    place = next(place for place, output in enumerate(exact.outputs) if output.name == name)
    return budgets.judge(place, in_double(outputs[place].tensor)) is not None


def _value_differs(subject: Subject, case: Case, name: str, bad: Mismatch) -> Finding:
    return subject.finding(
        "PB517",
        case,
        f"under autocast {name} is further from float64 than bfloat16 explains (float32 arguments)",
        output=name,
        expected=f"{bad.expected}, as in float64",
        got=bad.got,
        remedy="Let forward compute the same under autocast, but for the rounding of what PyTorch casts.",
        repro=autocast_lines(subject, case, inside=False, value=name),
        evidence=bad.evidence,
    )


def _apart(
    expected: torch.Tensor | None,
    got: torch.Tensor | None,
    tolerance: Tolerance,
    room: torch.Tensor | None,
    scale: float,
) -> Mismatch | None:
    """The mismatch beyond the tolerance, if roundings of the arguments don't explain it either."""
    bad = compare(expected, got, tolerance, scale=scale)
    if bad is None or room is None or expected is None or bad.max_error == float("inf"):
        return bad
    came = flat(got) if got is not None else torch.zeros_like(room)
    beyond = (flat(expected) - came).abs() - _ROOM * room
    largest = max(scale, float(flat(expected).abs().nan_to_num(0.0, 0.0, 0.0).max()))
    allowed = tolerance.rtol * flat(expected).abs().nan_to_num(0.0, 0.0, 0.0) + tolerance.atol * largest
    return bad if bool((beyond > allowed).any()) else None


def _raises(subject: Subject, case: Case, error: BaseException, where: str, *, inside: bool) -> Finding:
    text = one_line(error)
    return subject.finding(
        "PB517",
        case,
        f"backward raises after a forward under autocast ({where}float32 arguments): {text}",
        expected="the gradients of float64, to within the rounding of bfloat16",
        got=text,
        repro=autocast_lines(subject, case, inside=inside),
        evidence={"raised": type(error).__name__},
    )


def _differs(subject: Subject, case: Case, name: str, bad: Mismatch, where: str, *, inside: bool) -> Finding:
    return subject.finding(
        "PB517",
        case,
        f"after a forward under autocast ({where}float32 arguments), the gradient of {name} is further from float64 "
        "than bfloat16 explains",
        argument=name,
        expected=f"{bad.expected}, as in float64",
        got=bad.got,
        repro=autocast_lines(subject, case, inside=inside),
        evidence=bad.evidence,
    )


PROBE = Probe("autocast", "under autocast, gradients are those of float64 to within the rounding of bfloat16", run)
