"""Other values, zeros and very large ones: where forward is smooth and finite, the gradient is its derivative, not NaN.

At a kink nothing is asked, except that a gradient isn't NaN where the reference's is finite.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pullback.battery.away import FIRST_FEW, Fault, fault_at
from pullback.battery.compare import compare, number
from pullback.battery.curves import along, confirms
from pullback.battery.deadline import Deadline
from pullback.battery.leaves import is_float
from pullback.battery.literals import is_exact
from pullback.battery.nodes import low_precision_in_forward
from pullback.battery.numerics import flat, normals
from pullback.battery.observe import is_finite
from pullback.battery.oracle import by_autograd, is_continuous, oracle_of
from pullback.battery.ordinary import NOT_KNOWN, PassedOver, is_right
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import LeftOut, Note, Probe, Skip
from pullback.battery.redrawn import redrawn
from pullback.battery.repro import backward_lines, difference_lines, oracle_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Inputs, Output, Subject, with_tensors
from pullback.battery.tolerances import KINK, SPECIAL, for_gradients
from pullback.battery.truth import differentiable
from pullback.finding import Finding

_VALUES = (0.0, 1.0, -1.0, 1000.0, -1000.0)
"""Where formulas divide by nothing, change branch, underflow or overflow in exp (above 709 in float64)."""

_LARGE = 1000.0
"""From here on it is a matter of the range of numbers, and not of a point apart."""

_NO_NUMBER = re.compile(r"\b(nan|inf)\b")

_NOT_MEANT = (
    "If forward isn't meant for them, as where an iteration no longer converges, refuse them in forward, or keep to "
    'the values given: Sample((…), vary=("layout", "shape", "dtype", "repeat")).'
)

_NORMAL = "values from a normal distribution"

_SECONDS = 3.0
"""After this long the remaining points are left out, and counted."""

_FINER = 1000.0
"""A slope is believed when steps this many times smaller find a fault too."""

_SUMS = 16
"""How many random directions a slope is added to, to see whether slopes add up."""

_ELEMENTS = 2
"""How many elements of an argument are looked at one by one."""

_SHARES = (1.0, -0.7)
"""By what share of their sizes they are moved at once, which costs fewer calls and settles most points."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Put each special value into each argument: into its first element, and into all of them."""
    if subject.definition is not None and subject.definition.nonlinear_backward:
        raise Skip("backward is declared not to be linear, so forward's derivative doesn't tell what it should give")
    tried, left_out, redrawn_for = 0, 0, 0
    others = PassedOver()
    deadline = Deadline(_SECONDS)
    for case in subject.cases:
        if not (case.exact and case.may_vary("values")):
            continue
        if not is_right(subject, case):
            others.add(case, NOT_KNOWN)
            continue
        if low_precision_in_forward(subject, case) is not None:
            others.add(case, "forward computes below float64, where differences at such points are noise")
            continue
        if redrawn_for < FIRST_FEW:
            redrawn_for += 1
            yield from _elsewhere(subject, case)
        for leaf in subject.fresh(case).varying:
            if leaf.tensor.is_complex() or leaf.tensor.numel() == 0 or leaf.name != leaf.argument:
                continue
            for value in _VALUES if case in telling(subject) else _VALUES[:1]:
                tried += 1
                if deadline.passed():
                    left_out += 1
                    continue
                finding = _first_fault(subject, case, leaf.name, value)
                if finding is not None:
                    yield finding
                    break
    if left_out:
        yield LeftOut(f"{left_out} of {tried} values were left out, after {_SECONDS:g} s")
    if not tried:
        raise Skip(others.reason("no real float64 argument whose values may be varied"))
    yield from others.notes()
    yield from passed_over(subject, f"there {_VALUES[0]:g} alone was put in")


def _elsewhere(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """A fault at values from a normal distribution, whatever those of the sample are."""
    tried = 0
    for variant in redrawn(subject, case):
        tried += 1
        fault = fault_at(subject, case, variant)
        if fault is not None:
            yield _of_fault(subject, case, variant, fault)
            return
    if not tried:
        yield Note(f"refused: {_NORMAL}, {case.label}")


def _of_fault(subject: Subject, case: Case, variant: Case, fault: Fault) -> Finding:
    if fault.mismatch is None:
        return subject.finding(
            "PB125",
            case,
            f"with {_NORMAL}, forward gives a result and backward raises: {fault.error}",
            what=_NORMAL,
            expected="a gradient, or a refusal in forward",
            got=fault.error,
            repro=backward_lines(subject, variant),
        )
    if subject.surrogate is None:
        written = all(is_exact(tensor) for _, _, tensor in subject.named_tensors(variant.sample))
        # Of other numbers than these, one element alone may not show it.
        repro = difference_lines(subject, variant, fault.argument, fault.mismatch.index if written else ())
    else:
        repro = oracle_lines(subject, variant, fault.argument, "surrogate")
    whose = "forward's" if subject.surrogate is None else "the surrogate's"
    return subject.finding(
        "PB203",
        case,
        f"with {_NORMAL}, the gradient of {fault.argument} isn't {whose} derivative: only some values are right",
        argument=fault.argument,
        what=_NORMAL,
        expected=fault.mismatch.expected,
        got=fault.mismatch.got,
        remedy=f"Derive backward anew for such values. {_NOT_MEANT}" if subject.surrogate is None else "",
        evidence=fault.mismatch.evidence,
        repro=repro,
    )


@dataclass(frozen=True)
class Spot:
    """One special point of one argument.

    Attributes:
        subject: What is checked.
        case: The sample as it was given.
        point: The sample with the special value in it.
        name: The argument that has it.
        label: Where and what: ``one element 0``.
        value: The special value.
    """

    subject: Subject
    case: Case
    point: Case
    name: str
    label: str
    value: float


def _first_fault(subject: Subject, case: Case, name: str, value: float) -> Finding | None:
    for everywhere in (False, True):
        point = _point(subject, case, name, value, everywhere=everywhere)
        try:
            label = f"{'every element' if everywhere else 'one element'} {value:g}"
            finding = _at(Spot(subject, case, point, name, label, value))
        except ForwardRaised:
            continue
        if finding is not None:
            return finding
    return None


def _point(subject: Subject, case: Case, name: str, value: float, *, everywhere: bool) -> Case:
    """The case with `value` in the first element of an argument, or in all of them."""
    target = next(tensor for path, _, tensor in subject.named_tensors(case.sample) if path == name)

    def put(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is not target:
            return tensor
        filled = tensor.detach().clone(memory_format=torch.contiguous_format)
        filled.reshape(-1)[: None if everywhere else 1] = value
        return filled

    return replace(case, sample=with_tensors(case.sample, put))


def _at(spot: Spot) -> Finding | None:
    subject = spot.subject
    inputs = subject.fresh(spot.point)
    outputs = subject.call(inputs)
    floats = [output.tensor.detach() for output in outputs if is_float(output.tensor)]
    if not floats or not all(is_finite(tensor) for tensor in floats):
        return None
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    positions = differentiable(outputs)
    gradient = _gradient(spot, inputs, outputs, cotangents)
    if isinstance(gradient, str):
        expected, got = "a gradient", gradient
        return _finding(spot, expected, got, ())
    judge = _not_the_slope if subject.surrogate is None else _not_the_surrogates
    chosen = tuple(cotangents[position] for position in positions)
    return _not_finite(spot, gradient, cotangents) or judge(spot, gradient, positions, chosen)


def _remedy(spot: Spot, got: str) -> str:
    """What to do about it: by the size of the value, and by whether what came is a number. Empty for the rule's own."""
    if spot.subject.surrogate is not None or abs(spot.value) < _LARGE:
        return ""
    if _NO_NUMBER.search(got):
        return (
            "Backward overflows where forward doesn't: rearrange it, so that large numbers cancel before they are "
            "made (exp(x - y) for exp(x) / exp(y), softmax and logsumexp for quotients and sums of exp, the saved "
            "output for what is computed anew)."
        )
    return f"Find what backward loses for such numbers: a difference of large ones, a branch, a limit. {_NOT_MEANT}"


def _gradient(
    spot: Spot, inputs: Inputs, outputs: Sequence[Output], cotangents: list[torch.Tensor]
) -> torch.Tensor | str | None:
    """The gradient of the argument; the error's text where backward raises."""
    try:
        (gradient,) = spot.subject.gradients(outputs, cotangents, [inputs.leaf(spot.name)])
    except BackwardRaised as raised:
        return str(raised)
    return gradient


def _not_finite(
    spot: Spot,
    gradient: torch.Tensor | None,
    cotangents: list[torch.Tensor],
) -> Finding | None:
    """NaN or infinity where the reference's gradient is finite."""
    if gradient is None or is_finite(gradient) or oracle_of(spot.subject) is None:
        return None
    try:
        inputs = spot.subject.fresh(spot.point)
        right = _gradient(spot, inputs, spot.subject.call(inputs, oracle_of(spot.subject)), cotangents)
    except (ForwardRaised, ValueError):
        return None
    if not isinstance(right, torch.Tensor) or not is_finite(right):
        return None
    mismatch = compare(right, gradient, for_gradients(gradient.dtype))
    assert mismatch is not None
    return _finding(spot, mismatch.expected, mismatch.got, mismatch.index)


def _not_the_surrogates(
    spot: Spot,
    gradient: torch.Tensor | None,
    positions: tuple[int, ...],
    chosen: tuple[torch.Tensor, ...],
) -> Finding | None:
    """A point where the surrogate's gradient is continuous, and the gradient is another one."""
    subject, point = spot.subject, spot.point
    exact = by_autograd(subject, point, positions, chosen)
    if not is_continuous(subject, point, positions, chosen, exact):
        return None
    parts = [part for place in range(len(positions)) if (part := exact[spot.name, place]) is not None]
    right = torch.stack(parts).sum(0) if parts else None
    mismatch = compare(right, gradient, SPECIAL)
    if mismatch is None:
        return None
    return _finding(spot, mismatch.expected, mismatch.got, mismatch.index)


def _not_the_slope(
    spot: Spot,
    gradient: torch.Tensor | None,
    positions: tuple[int, ...],
    chosen: tuple[torch.Tensor, ...],
) -> Finding | None:
    """A smooth point where the gradient is not what finite differences converge to."""
    subject, point, name = spot.subject, spot.point, spot.name
    leaf = subject.fresh(point).leaf(name).tensor
    elements = flat(gradient) if gradient is not None else torch.zeros(leaf.numel(), dtype=torch.float64)
    if _confirms_all(spot, elements, leaf, positions, chosen):
        return None
    for element in range(min(_ELEMENTS, leaf.numel())):
        got, value = float(elements[element]), 0.0
        direction = torch.zeros(leaf.numel(), dtype=torch.float64)
        direction[element] = 1.0
        at = max(1.0, abs(float(flat(leaf)[element])))
        # Steps of one scale can be misled, by steps in forward that are smaller or by rounding that is larger.
        close = SPECIAL.rtol * abs(got) + SPECIAL.atol * max(1.0, abs(got))
        if confirms(subject, point, {name: direction}, positions, chosen, at, got, close):
            continue
        for size in (at, at / _FINER):
            slope = along(subject, point, {name: direction}, positions, chosen, size)
            if slope is None:
                break
            value, error = slope
            allowed = error + SPECIAL.rtol * max(abs(value), abs(got)) + SPECIAL.atol * max(1.0, abs(value))
            if abs(got - value) <= allowed:
                break
        else:
            if not _adds_up(subject, point, name, direction, positions, chosen, at):
                continue
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(element), leaf.shape))
            return _finding(spot, number(value), number(got), index)
    return None


def _confirms_all(
    spot: Spot, elements: torch.Tensor, leaf: torch.Tensor, positions: tuple[int, ...], chosen: tuple[torch.Tensor, ...]
) -> bool:
    """Whether the elements that are looked at agree with one difference along all of them, each by another step."""
    sizes = [max(1.0, abs(value)) for value in flat(leaf)[:_ELEMENTS].tolist()]
    direction = torch.zeros(leaf.numel(), dtype=torch.float64)
    direction[:_ELEMENTS] = torch.tensor([size * share for size, share in zip(sizes, _SHARES, strict=False)])
    got = float((elements * direction).sum())
    least = min((abs(value) * size for value, size in zip(elements.tolist(), sizes, strict=False)), default=0.0)
    close = min(map(abs, _SHARES)) * (SPECIAL.rtol * least + SPECIAL.atol)
    return confirms(spot.subject, spot.point, {spot.name: direction}, positions, chosen, 1.0, got, close)


def _adds_up(
    subject: Subject,
    point: Case,
    name: str,
    direction: torch.Tensor,
    positions: tuple[int, ...],
    chosen: tuple[torch.Tensor, ...],
    size: float,
) -> bool:
    """Whether there is a derivative at all: slopes along sums of directions are the sums of slopes.

    Where all elements are equal, a median is smooth along each single one, and has no derivative.
    """
    for _ in range(_SUMS):
        other = normals(direction.numel(), subject.random)
        found = [
            along(subject, point, {name: vector}, positions, chosen, size)
            for vector in (direction, other, direction + other)
        ]
        slopes = [slope for slope in found if slope is not None]
        if len(slopes) < len(found):
            return False
        (one, e1), (two, e2), (both, e3) = slopes
        if abs(one + two - both) > KINK * (abs(one) + abs(two) + abs(both)) + e1 + e2 + e3:
            return False
    return True


def _finding(
    spot: Spot,
    expected: str,
    got: str,
    index: tuple[int, ...],
) -> Finding:
    subject, case, name, label = spot.subject, spot.case, spot.name, spot.label
    whose = "forward's" if subject.surrogate is None else "the surrogate's"
    if subject.surrogate is None:
        repro = difference_lines(subject, spot.point, name, index)
    else:
        repro = oracle_lines(subject, spot.point, name, "surrogate")
    return subject.finding(
        "PB506",
        case,
        f"with {label}, the gradient of {name} isn't {whose} derivative",
        argument=name,
        what=label,
        expected=expected,
        got=got,
        remedy=_remedy(spot, got),
        repro=repro,
        evidence={"index": list(index)},
    )


PROBE = Probe(
    "special_points",
    "at other values, zeros and very large ones, smooth and finite, the gradient is the derivative",
    run,
)
