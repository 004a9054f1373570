"""Gradients have the dtype of their arguments and its precision, from bfloat16 to float64."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from pullback.battery.away import FIRST_FEW
from pullback.battery.budgets import Budgets, Shake
from pullback.battery.compare import compare, natural_scale
from pullback.battery.digits import as_forward, losing_digits
from pullback.battery.draws import draws
from pullback.battery.low_values import another_value
from pullback.battery.mixed import one_lowered
from pullback.battery.nodes import call_backward, node_of
from pullback.battery.numerics import flat
from pullback.battery.observe import passed
from pullback.battery.oracle import largest, moved, rounded_by_autograd
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import Note, Probe
from pullback.battery.randomness import own_seed
from pullback.battery.repro import value_lines
from pullback.battery.repro_precision import dtype_lines, lower_lines
from pullback.battery.rounding import detours
from pullback.battery.slips import is_slip
from pullback.battery.subject import BackwardRaised, Case, Change, ForwardRaised, Subject, text_of
from pullback.battery.tolerances import LOWER, PRECISIONS, for_gradients, for_values, real_dtype
from pullback.battery.truth import differentiable
from pullback.finding import Finding

_LACKING = re.compile(r"not implemented for '\w+'|[Ll]ow precision dtypes not supported")

_ROOM = 8.0
"""How far within a dtype's range a gradient must lie to be compared in it."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Look at the dtype that backward returns, and compare each lower dtype with float64."""
    for place, case in enumerate(subject.cases):
        found = list(_returned_dtypes(subject, case, case))
        yield from found or _returned_dtypes(subject, case, subject.as_given(case))
        if case.exact:
            if not _nonlinear(subject):  # clipped and quantised gradients are round numbers on purpose
                yield from detours(subject, case)
            if case.may_vary("dtype"):
                one = LOWER[own_seed(subject.seed, case.label) % len(LOWER)]
                dtypes = LOWER if case in telling(subject) else (one,)
                lower = [note for dtype in dtypes for note in _in_lower(subject, case, dtype)]
                yield from lower
                told = any(isinstance(note, Finding) for note in lower)
                if place < FIRST_FEW and not told and not _nonlinear(subject):
                    yield from one_lowered(subject, case)
    yield from passed_over(subject, "tried in one lower dtype alone")


def _nonlinear(subject: Subject) -> bool:
    return subject.definition is not None and subject.definition.nonlinear_backward


def _returned_dtypes(subject: Subject, case: Case, variant: Case) -> Iterator[Finding]:
    """What backward itself returns for a variant; the engine casts it before anyone else sees it."""
    inputs = subject.fresh(variant)
    outputs = subject.call(inputs)
    node = node_of(subject, outputs)
    if node is None:
        return
    try:
        entries = call_backward(subject, node, inputs, outputs).by_name()
    except BackwardRaised:
        return
    arguments = passed(subject, inputs)
    for name, entry in entries.items():
        argument = arguments.get(name)
        if not isinstance(entry, torch.Tensor) or argument is None or not argument.requires_grad:
            continue
        if entry.dtype != argument.dtype and entry.is_complex() == argument.is_complex():
            yield subject.finding(
                "PB215",
                case,
                f"backward returns {_short(entry.dtype)} for {name}, which is {_short(argument.dtype)}",
                argument=name,
                expected=_short(argument.dtype),
                got=_short(entry.dtype),
                repro=dtype_lines(subject, variant, name),
            )


def _in_lower(subject: Subject, case: Case, dtype: torch.dtype) -> Iterator[Finding | Note]:
    """Values and gradients in `dtype` against those in float64 at the same, rounded, arguments."""

    def down(_: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex64) if dtype is torch.float32 else tensor
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def up(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return down(name, tensor).to(tensor.dtype)

    try:
        low_inputs, high_inputs = subject.fresh(case, change=down), subject.fresh(case, change=up)
        low_outputs, high_outputs = subject.call(low_inputs), subject.call(high_inputs)
    except ForwardRaised as refused:
        if is_slip(refused.error) and _reference_takes(subject, case, down):
            yield _slipped(subject, case, dtype, refused)
        else:
            yield Note(f"refused: {_short(dtype)}, {case.label}: {refused}")
        return
    positions = [p for p in differentiable(high_outputs) if p < len(low_outputs)]
    pairs = [(low_outputs[p], high_outputs[p]) for p in positions]
    if not pairs or any(real_dtype(low.tensor.dtype) is not dtype for low, _ in pairs):
        return  # forward promotes: the lower dtype isn't one that it works in
    if any(compare(high.tensor, _up(low.tensor), for_values(dtype)) is not None for low, high in pairs):
        finding = another_value(subject, case, dtype)
        if finding is not None:
            yield finding
            return
        yield Note(
            f"{_short(dtype)}, {case.label}: the outputs already differ from float64, so gradients prove nothing"
        )
        return
    if draws(subject, case).backward:
        yield Note(f"{_short(dtype)}, {case.label}: backward draws random numbers, which are others in another dtype")
        return
    cotangents = [subject.cotangent(low.tensor) for low, _ in pairs]
    try:
        got = subject.gradients([low for low, _ in pairs], cotangents, low_inputs.varying)
    except BackwardRaised as raised:
        yield _backward_raises(subject, case, dtype, raised, down)
        return
    high_cotangents = [c.to(high.tensor.dtype) for c, (_, high) in zip(cotangents, pairs, strict=True)]
    highs = [high for _, high in pairs]
    expected = subject.gradients(highs, high_cotangents, high_inputs.varying)
    budgets = _budgets(subject, _Lowered(case, up, tuple(positions)), dtype, high_cotangents, expected)
    scales = [
        natural_scale([high.tensor for high in highs], high_cotangents, leaf.tensor) for leaf in low_inputs.varying
    ]
    told = False
    for place, (leaf, other) in enumerate(zip(low_inputs.varying, got, strict=True)):
        judged = list(_judged(subject, case, dtype, leaf.name, budgets, place, other, scales[place]))
        told = told or any(isinstance(note, Finding) for note in judged)
        yield from judged
    in_range = all(exact is None or _in_range(exact, dtype) for exact in expected)
    if not told and in_range:
        point = moved(subject, case, up)
        yield from losing_digits(subject, case, point, dtype, tuple(positions), high_cotangents, expected, got)


def _backward_raises(
    subject: Subject, case: Case, dtype: torch.dtype, raised: BackwardRaised, down: Change
) -> Finding | Note:
    if _is_pytorchs_lack(raised.error) and not _reference_takes(subject, case, down, backward=True):
        return Note(f"refused: {_short(dtype)}, {case.label}: backward needs what PyTorch lacks there: {raised}")
    return subject.finding(
        "PB125",
        case,
        f"backward raises in {_short(dtype)}: {raised}",
        what=_short(dtype),
        got=str(raised),
        repro=lower_lines(subject, case, min(case.varying), dtype),
    )


def _reference_takes(subject: Subject, case: Case, down: Change, *, backward: bool = False) -> bool:
    """Whether there is a reference, and it gives a result, or a gradient too, for what the function refused."""
    if subject.reference is None:
        return False
    inputs = subject.fresh(case, requires=None if backward else (), change=down)
    try:
        outputs = subject.call(inputs, subject.reference)
        if backward:
            subject.gradients(outputs, [subject.cotangent(output.tensor) for output in outputs], inputs.varying)
    except (ForwardRaised, BackwardRaised):
        return False
    return True


def _is_pytorchs_lack(error: BaseException) -> bool:
    """Whether PyTorch says that it has no such operator in a dtype: ``"lu_cpu" not implemented for 'BFloat16'``."""
    return isinstance(error, RuntimeError) and bool(_LACKING.search(text_of(error)))


def _slipped(subject: Subject, case: Case, dtype: torch.dtype, refused: ForwardRaised) -> Finding:
    lines = value_lines(subject, moved(subject, case, lambda _, t: t.to(dtype) if t.is_floating_point() else t))
    return subject.finding(
        "PB219",
        case,
        f"in {_short(dtype)} forward raises, in an operator that gets the wrong shapes, and the reference doesn't: "
        f"{refused}",
        what=_short(dtype),
        expected=f"the reference's result, or a refusal of {_short(dtype)}",
        got=str(refused),
        repro=lines,
    )


def _judged(
    subject: Subject,
    case: Case,
    dtype: torch.dtype,
    name: str,
    budgets: Budgets,
    place: int,
    got: torch.Tensor | None,
    scale: float,
) -> Iterator[Finding | Note]:
    """One gradient in `dtype` against that in float64."""
    exact = budgets.exact[place]
    if exact is not None and not _in_range(exact, dtype):
        yield Note(f"{_short(dtype)}, {case.label}: the gradient of {name} is beyond its range")
        return
    if exact is None or got is None or exact.shape != got.shape:
        bad = compare(exact, _up(got), for_gradients(dtype), scale=scale)
    else:
        bad = budgets.judge(place, _up(got))
        if bad is not None and as_forward(subject, case, dtype, exact, bad.max_error):
            return
    if bad is not None:
        yield subject.finding(
            "PB214",
            case,
            f"in {_short(dtype)} the gradient of {name} is further from float64 than rounding explains",
            argument=name,
            what=_short(dtype),
            expected=bad.expected,
            got=bad.got,
            evidence={**bad.evidence, "dtype": _short(dtype)},
            repro=lower_lines(subject, case, name, dtype),
        )


class _Lowered(NamedTuple):
    """A case whose numbers are those of a lower dtype, in float64: how they are rounded, and its outputs."""

    case: Case
    rounding: Change
    positions: tuple[int, ...]


def _budgets(
    subject: Subject,
    lowered: _Lowered,
    dtype: torch.dtype,
    cotangents: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor | None],
) -> Budgets:
    """What rounding to `dtype` may cost each gradient: by the oracle, or else by the function itself."""
    point = moved(subject, lowered.case, lowered.rounding)

    def by_oracle(shake: Shake) -> list[torch.Tensor | None]:
        exact = rounded_by_autograd(subject, point, lowered.positions, tuple(cotangents), shake)
        if not exact:
            return by_itself(shake)
        found: list[torch.Tensor | None] = []
        for leaf in subject.fresh(point).varying:
            parts = [exact[leaf.name, place] for place in range(len(cotangents))]
            known = [part for part in parts if part is not None]
            found.append(torch.stack(known).sum(0) if known else None)
        return found

    def by_itself(shake: Shake) -> list[torch.Tensor | None]:
        inputs = subject.fresh(moved(subject, point, lambda _, tensor: shake.rounded(tensor)))
        shaken = [shake.rounded(cotangent) for cotangent in cotangents]
        with shake.operators():
            outputs = subject.call(inputs)
            chosen = [outputs[position] for position in lowered.positions]
            return list(subject.gradients(chosen, shaken, inputs.varying))

    terms = largest(subject, lowered.case, cotangents)
    return Budgets(PRECISIONS[dtype], terms, tuple(expected), by_oracle, subject.random)


def _in_range(gradient: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether `dtype` can hold the gradient, with some room for the terms of a sum that make it."""
    elements, info = flat(gradient).abs(), torch.finfo(dtype)
    largest = float(elements.max()) if elements.numel() else 0.0
    return largest == 0.0 or _ROOM * info.tiny < largest < info.max / _ROOM


def _up(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None:
        return None
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


PROBE = Probe("precision", "gradients have their argument's dtype and its precision, from bfloat16 to float64", run)
