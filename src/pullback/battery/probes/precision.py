"""Gradients have the dtype of their arguments and its precision, from bfloat16 to float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from pullback.battery.compare import compare, natural_scale
from pullback.battery.leaves import is_float
from pullback.battery.nodes import call_backward, low_precision_in, node_of
from pullback.battery.numerics import flat
from pullback.battery.probe import Note, Probe
from pullback.battery.repro import gradient_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Inputs, Output, Subject
from pullback.battery.tolerances import LOWER, for_gradients, for_values, real_dtype
from pullback.battery.truth import differentiable
from pullback.finding import Finding

_ROOM = 8.0
"""How far within a dtype's range a gradient must lie to be compared in it."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Look at the dtype that backward returns, and compare each lower dtype with float64."""
    for case in subject.cases:
        yield from _returned_dtypes(subject, case)
        if case.exact:
            if not _nonlinear(subject):  # clipped and quantised gradients are round numbers on purpose
                yield from _detours(subject, case)
            if case.may_vary("dtype"):
                for dtype in LOWER:
                    yield from _in_lower(subject, case, dtype)


def _nonlinear(subject: Subject) -> bool:
    return subject.definition is not None and subject.definition.nonlinear_backward


def _returned_dtypes(subject: Subject, case: Case) -> Iterator[Finding]:
    """What backward itself returns; the engine casts it before anyone else sees it."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    node = node_of(subject, outputs)
    if node is None:
        return
    try:
        entries = call_backward(subject, node, outputs).entries
    except BackwardRaised:
        return
    names = [*subject.argument_names[: len(inputs.args)], *inputs.kwargs]
    for name, argument, entry in zip(names, [*inputs.args, *inputs.kwargs.values()], entries, strict=False):
        if not (isinstance(entry, torch.Tensor) and isinstance(argument, torch.Tensor) and argument.requires_grad):
            continue
        if entry.dtype != argument.dtype and entry.is_complex() == argument.is_complex():
            yield subject.finding(
                "PB215",
                case,
                f"backward returns {_short(entry.dtype)} for {name}, which is {_short(argument.dtype)}",
                argument=name,
                expected=_short(argument.dtype),
                got=_short(entry.dtype),
                repro=gradient_lines(subject, case, name),
            )


def _detours(subject: Subject, case: Case) -> Iterator[Finding]:
    """A float64 gradient that was rounded to a lower dtype on the way."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    positions = differentiable(outputs)
    if not positions:
        return
    cotangents = [subject.cotangent(outputs[position].tensor) for position in positions]
    gradients = subject.gradients([outputs[position] for position in positions], cotangents, inputs.varying)
    seen = low_precision_in(subject, case, cotangents, positions)
    for leaf, gradient in zip(inputs.varying, gradients, strict=True):
        low = _rounded_to(gradient, cotangents, inputs)
        if low is None or (seen is None and _exact_in_lower(outputs, low)):
            continue
        yield subject.finding(
            "PB214",
            case,
            f"the gradient of {leaf.name} is float64 and has the precision of {_short(low)}: backward computes in it",
            argument=leaf.name,
            expected="the precision of float64",
            got=f"numbers that {_short(low)} holds exactly",
            evidence={"dtype": _short(low)},
            repro=gradient_lines(subject, case, leaf.name),
        )


def _rounded_to(
    gradient: torch.Tensor | None, cotangents: Sequence[torch.Tensor], inputs: Inputs
) -> torch.dtype | None:
    """The lower dtype that holds every element of the gradient exactly, where chance and the data can't explain it."""
    if gradient is None:
        return None
    elements = flat(gradient)
    elements = elements[elements != 0]
    if elements.numel() == 0 or not bool(elements.isfinite().all()):
        return None
    for dtype in sorted(LOWER, key=lambda lower: -torch.finfo(lower).eps):
        held = bool((elements.to(dtype).to(torch.float64) == elements).all())
        if held and all(not _holds(cotangent, dtype) for cotangent in cotangents):
            return dtype
    return None


def _holds(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    elements = flat(tensor)
    return bool((elements.to(dtype).to(torch.float64) == elements).all())


def _exact_in_lower(outputs: Sequence[Output], low: torch.dtype) -> bool:
    """Whether the outputs too are numbers of the lower dtype, as counts and signs are."""
    return all(_holds(output.tensor, low) for output in outputs if is_float(output.tensor))


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
        yield Note(f"refused: {_short(dtype)}, {case.label}: {refused}")
        return
    positions = [p for p in differentiable(high_outputs) if p < len(low_outputs)]
    pairs = [(low_outputs[p], high_outputs[p]) for p in positions]
    if not pairs or any(real_dtype(low.tensor.dtype) is not dtype for low, _ in pairs):
        return  # forward promotes: the lower dtype isn't one that it works in
    if any(compare(high.tensor, _up(low.tensor), for_values(dtype)) is not None for low, high in pairs):
        yield Note(
            f"{_short(dtype)}, {case.label}: the outputs already differ from float64, so gradients prove nothing"
        )
        return
    cotangents = [subject.cotangent(low.tensor) for low, _ in pairs]
    try:
        got = subject.gradients([low for low, _ in pairs], cotangents, low_inputs.varying)
    except BackwardRaised as raised:
        yield subject.finding(
            "PB125", case, f"backward raises in {_short(dtype)}: {raised}", what=_short(dtype), got=str(raised)
        )
        return
    high_cotangents = [c.to(high.tensor.dtype) for c, (_, high) in zip(cotangents, pairs, strict=True)]
    expected = subject.gradients([high for _, high in pairs], high_cotangents, high_inputs.varying)
    for leaf, one, other in zip(low_inputs.varying, expected, got, strict=True):
        if one is not None and not _in_range(one, dtype):
            yield Note(f"{_short(dtype)}, {case.label}: the gradient of {leaf.name} is beyond its range")
            continue
        scale = natural_scale([high.tensor for _, high in pairs], high_cotangents, leaf.tensor)
        bad = compare(one, _up(other), for_gradients(dtype), scale=scale)
        if bad is not None:
            yield subject.finding(
                "PB214",
                case,
                f"in {_short(dtype)} the gradient of {leaf.name} is further from float64 than rounding explains",
                argument=leaf.name,
                what=_short(dtype),
                expected=bad.expected,
                got=bad.got,
                evidence={**bad.evidence, "dtype": _short(dtype)},
            )


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
