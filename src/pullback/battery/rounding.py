"""A float64 gradient that was rounded to a lower dtype on the way, as its digits or its last digits tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pullback.battery.compare import compare
from pullback.battery.curves import Lines
from pullback.battery.leaves import is_float
from pullback.battery.nodes import low_precision_in, low_precision_in_forward
from pullback.battery.numerics import flat, sharp_slopes, signs
from pullback.battery.oracle import by_autograd
from pullback.battery.ordinary import is_right
from pullback.battery.repro_precision import operator_lines, rounded_lines
from pullback.battery.subject import Case, Leaf, Output, Subject
from pullback.battery.tolerances import LOWER, ROUNDED, for_gradients
from pullback.battery.truth import Truth, differentiable, truth_of
from pullback.finding import Finding
from pullback.rules import Severity

_ELEMENTS = 16
"""Arguments up to this size are looked at element by element, larger ones along a few dense directions."""

_DIRECTIONS = 4


def detours(subject: Subject, case: Case) -> Iterator[Finding]:
    """A finding for each argument whose gradient, made of float64 numbers, has the precision of a lower dtype."""
    outputs = subject.call(subject.fresh(case))
    positions = differentiable(outputs)
    if not positions:
        return
    cotangents = [subject.cotangent(outputs[position].tensor) for position in positions]
    inputs = subject.fresh(case)
    chosen = [subject.call(inputs)[position] for position in positions]
    gradients = subject.gradients(chosen, cotangents, inputs.varying)
    seen = low_precision_in(subject, case, cotangents, positions)
    if not _is_nearly_linear(subject, case, positions, cotangents, gradients):
        return  # clipped, signed or quantised: such numbers say nothing of precision
    found = set()
    for leaf, gradient in zip(inputs.varying, gradients, strict=True):
        low = _rounded_to(gradient, cotangents)
        alike = low is not None and _exact_in_lower(outputs, low)
        if low is None or (seen is None and alike):
            continue
        found.add(leaf.name)
        yield _finding(subject, case, leaf, low, f"numbers that {_short(low)} holds exactly", as_forward=alike)
    if seen is None or low_precision_in_forward(subject, case) is not None or not is_right(subject, case):
        return  # a forward that rounds has no sharp derivative
    truth = truth_of(subject, case)
    if isinstance(truth, Truth) and not truth.partial:
        for leaf, error in _blunt(subject, truth):
            if leaf.name not in found:
                yield _finding(subject, case, leaf, seen, f"an error of {error:.1g} in an element")


def _is_nearly_linear(
    subject: Subject,
    case: Case,
    positions: Sequence[int],
    cotangents: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
) -> bool:
    """Whether other multiples of the cotangents give those of the gradients, to within the roughest rounding.

    The last is a power of two, which commutes with every rounding of floating numbers, and not with that to whole ones.
    """
    for factor in (-3.0, 0.3, 2**-9):
        inputs = subject.fresh(case)
        outputs = subject.call(inputs)
        scaled = [factor * cotangent for cotangent in cotangents]
        there = subject.gradients([outputs[position] for position in positions], scaled, inputs.varying)
        for here, other in zip(gradients, there, strict=True):
            if compare(here * factor if here is not None else None, other, for_gradients(torch.bfloat16)) is not None:
                return False
    return True


def _blunt(subject: Subject, truth: Truth) -> Iterator[tuple[Leaf, float]]:
    """The arguments whose gradient is further from the truth than float64 explains, and how far."""
    inputs = subject.fresh(truth.case)
    outputs = subject.call(inputs)
    gradients = subject.gradients([outputs[p] for p in truth.outputs], truth.cotangents, inputs.varying)
    exact = by_autograd(subject, truth.case, truth.outputs, truth.cotangents)
    for leaf, gradient in zip(inputs.varying, gradients, strict=True):
        if gradient is None:
            continue
        if exact:
            parts = [part for place in range(len(truth.outputs)) if (part := exact[leaf.name, place]) is not None]
            bad = compare(torch.stack(parts).sum(0) if parts else None, gradient, ROUNDED)
            error = bad.max_error if bad is not None else 0.0
        else:
            error = _error_of(subject, truth, leaf, flat(gradient))
        if error:
            yield leaf, error


def _error_of(subject: Subject, truth: Truth, leaf: Leaf, elements: torch.Tensor) -> float:
    """The first error along a direction that sharp finite differences are sure of; 0 if there is none."""
    lines = Lines(subject, truth.case, None, truth.outputs, truth.cotangents)
    count = elements.numel()
    directions = list(torch.eye(count, dtype=torch.float64)) if count <= _ELEMENTS else []
    for direction in directions or [signs(count, subject.random) for _ in range(_DIRECTIONS)]:
        slopes = sharp_slopes(lines.curve({leaf.name: direction}), lines.sizes[leaf.name], lines.magnitude)
        value, bar = float(slopes.values.sum()), float(slopes.errors.sum())
        terms = elements * direction
        allowed = ROUNDED.rtol * max(abs(value), float(terms.norm())) + ROUNDED.atol * float(elements.abs().max())
        difference = abs(float(terms.sum()) - value)
        if difference > allowed + 2 * bar and bar < allowed:
            return difference
    return 0.0


def _rounded_to(gradient: torch.Tensor | None, cotangents: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The lower dtype that holds every element of the gradient exactly, where chance and the data can't explain it."""
    if gradient is None:
        return None
    elements = flat(gradient)
    elements = elements[elements != 0]
    if elements.numel() == 0 or not bool(elements.isfinite().all()):
        return None
    for dtype in sorted(LOWER, key=lambda lower: -torch.finfo(lower).eps):
        if _holds(elements, dtype) and all(not _holds(cotangent, dtype) for cotangent in cotangents):
            return dtype
    return None


def _holds(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    elements = flat(tensor)
    return bool((elements.to(dtype).to(torch.float64) == elements).all())


def _exact_in_lower(outputs: Sequence[Output], low: torch.dtype) -> bool:
    """Whether the outputs too are numbers of the lower dtype, as counts and signs are."""
    return all(_holds(output.tensor, low) for output in outputs if is_float(output.tensor))


def _finding(
    subject: Subject, case: Case, leaf: Leaf, low: torch.dtype, got: str, *, as_forward: bool = False
) -> Finding:
    """The finding; a hint where forward's results are as coarse: a kernel of one dtype, and nobody expects more."""
    who = "forward and backward compute" if as_forward else "backward computes"
    given = _short(leaf.tensor.dtype)
    return subject.finding(
        "PB214",
        case,
        f"the gradient of {leaf.name} is {given} and has the precision of {_short(low)}: {who} in it",
        argument=leaf.name,
        severity=Severity.HINT if as_forward else None,
        expected="the precision of float64",
        got=got,
        evidence={"dtype": _short(low)},
        repro=rounded_lines(subject, case, leaf.name, low)
        if got.startswith("numbers")
        else operator_lines(subject, case),
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
