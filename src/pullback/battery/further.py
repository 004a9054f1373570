"""What else can be wrong at a variant of a sample, where first derivatives are right: values, and second derivatives.

A forward may have a branch of its own for long rows, and a backward one that cuts a saved tensor off there. Values are
compared with the reference's. Of second derivatives one number is asked, along a random direction over all arguments
and cotangents at once, which costs five calls; only where it looks wrong each is asked for apart.
"""

from __future__ import annotations

import torch

from pullback.battery.case import CotangentName
from pullback.battery.compare import Mismatch, compare
from pullback.battery.iterations import diverges
from pullback.battery.leaves import is_float
from pullback.battery.numerics import EPS, flat, normals, size_of, slopes
from pullback.battery.observe import is_finite
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro import value_lines
from pullback.battery.repro_second import cotangent_lines, penalty_lines
from pullback.battery.second import (
    Call,
    Weighted,
    Wrong,
    compare_second,
    differentiable_call,
    second_gradients,
    weights_for,
)
from pullback.battery.second_at_once import curve_along, gradients_along, kept_symmetric
from pullback.battery.subject import Case, Output, Subject
from pullback.battery.tolerances import CONFIRMED, KINK, NOTHING, STEPS, Tolerance, for_values
from pullback.battery.truth import Truth, differentiable, truth_of
from pullback.finding import Finding

_SUMS = 4
"""How many random directions a slope is added to, to see whether slopes add up."""


def further(
    subject: Subject, case: Case, variant: Case, what: str, *, second: bool = True, raising: bool = True
) -> Finding | None:
    """A finding for a numbered variant of a case, where its gradients are right; None where nothing else is wrong.

    Args:
        subject: Whose.
        case: The sample.
        variant: What was made of it, which forward takes.
        what: The words for it, after "with".
        second: Whether second derivatives are asked for.
        raising: Whether a second differentiation that raises is a fault there.
    """
    found = value_at(subject, case, variant, what)
    return found or (second_at(subject, case, variant, what, raising=raising) if second else None)


def value_at(subject: Subject, case: Case, variant: Case, what: str, near: Tolerance | None = None) -> Finding | None:
    """A finding if an output at a variant isn't the reference's, where it is at the sample itself."""
    if subject.reference is None or not case.exact:
        return None
    bad = _of_values(subject, variant, near)
    if bad is None or _of_values(subject, case, None) is not None:
        return None
    name, mismatch = bad
    return subject.finding(
        "PB219",
        case,
        f"with {what}, {name} differs from the reference",
        output=name,
        what=what,
        expected=mismatch.expected,
        got=mismatch.got,
        evidence=mismatch.evidence,
        repro=value_lines(subject, variant),
    )


def _of_values(subject: Subject, case: Case, near: Tolerance | None) -> tuple[str, Mismatch] | None:
    """The first output that isn't the reference's, where that is finite."""
    try:
        outputs = subject.call(subject.fresh(case, requires=()))
        expected = subject.call(subject.fresh(case, requires=()), subject.reference)
    except ForwardRaised:
        return None
    for output, wanted in zip(outputs, expected, strict=False):
        got, right = output.tensor, wanted.tensor.detach()
        if not is_float(got) or (got.shape == right.shape and not bool(right.isfinite().all())):
            continue
        bad = compare(right.to(got.dtype), got.detach(), near or for_values(got.dtype))
        if bad is not None:
            return output.name, bad
    return None


def second_at(subject: Subject, case: Case, variant: Case, what: str, *, raising: bool = True) -> Finding | None:
    """A finding if a second derivative at a variant is wrong or raises, where they are right at the sample itself."""
    if not case.exact or subject.orders < 2 or subject.surrogate is not None or not _is_right(subject, case):
        return None
    try:
        if _agrees(subject, variant) is not False:
            return None
        truth = truth_of(subject, variant)
        found = None if isinstance(truth, str) else _wrong(subject, case, truth, what)
        return None if found is not None and diverges(subject, case, variant) else found
    except ForwardRaised:
        return None
    except BackwardRaised as raised:
        if not raising or _reference_refuses(subject, variant):
            return None
        return subject.finding(
            "PB205",
            case,
            f"with {what}, differentiating the gradient raises {raised}",
            what=what,
            expected="the second derivative, as with the sample as it is",
            got=str(raised),
            evidence={"order": 2},
            repro=penalty_lines(subject, variant),
        )


def _reference_refuses(subject: Subject, variant: Case) -> bool:
    """Whether the reference, which a higher order may replay, takes less than forward does: that is no fault of it."""
    if subject.reference is None:
        return False
    try:
        subject.call(subject.fresh(variant, requires=()), subject.reference)
    except ForwardRaised:
        return True
    return False


def _is_right(subject: Subject, case: Case) -> bool:
    """Whether second derivatives can be had at the sample itself, and are right along a direction."""
    key = ("second is right", case.index)
    if key not in subject.cache:
        with subject.drawing_for(f"second derivatives of sample {case.index}"):
            try:
                subject.cache[key] = _agrees(subject, case) is True
            except (ForwardRaised, BackwardRaised):
                subject.cache[key] = False
    return bool(subject.cache[key])


def _agrees(subject: Subject, case: Case) -> bool | None:
    """Whether the derivative of a weighted sum of all gradients agrees with a difference along a random direction.

    None where there is nothing to differentiate, or what forward gives isn't finite.

    Raises:
        ForwardRaised: If forward raises.
        BackwardRaised: If a differentiation does.
    """
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    positions = differentiable(outputs)
    leaves = inputs.varying
    if not positions or not leaves or any(leaf.tensor.numel() == 0 for leaf in leaves):
        return None
    if not any(o.tensor.numel() for o in outputs) or not all(is_finite(output.tensor) for output in outputs):
        return None
    chosen = [outputs[position] for position in positions]
    cotangents = tuple(subject.cotangent(output.tensor) for output in chosen)
    point = Truth(subject, case, positions, cotangents, "", {}, {}, {}, {})
    varying = tuple(cotangent.clone().requires_grad_() for cotangent in cotangents)
    arriving = [cotangent.clone() for cotangent in varying]  # never leaves in a real graph
    call = Call(inputs, varying, subject.gradients(chosen, arriving, leaves, create_graph=True))
    weighted = weights_for(subject, call)
    direction = {
        leaf.name: kept_symmetric(subject, leaf.tensor, size_of(leaf.tensor) * made)
        for leaf in call.variables()
        for made in [normals(flat(leaf.tensor).numel(), subject.random)]
    }
    tracked = [place for place, one in enumerate(call.gradients) if one is not None and one.requires_grad]
    slopes = [torch.zeros(1, dtype=torch.float64)]
    if tracked:
        gradients = [Output("gradient", one) for place in tracked if (one := call.gradients[place]) is not None]
        weights = [weighted.weights[place].to(gradients[i].tensor.dtype) for i, place in enumerate(tracked)]
        found = subject.gradients(gradients, weights, call.variables())
        pairs = zip(call.variables(), found, strict=True)
        slopes += [flat(one) * direction[leaf.name] for leaf, one in pairs if one is not None]
    claimed = torch.cat(slopes)
    h = STEPS[1]
    sides = [_terms_at(subject, point, weighted, direction, t) for t in (h, -h)]
    rounding = 4 * EPS * float(sum(side.abs().sum() for side in sides)) / h
    difference = float(sides[0].sum() - sides[1].sum()) / (2 * h)
    return abs(difference - float(claimed.sum())) <= CONFIRMED * float(claimed.abs().sum()) + rounding


def _terms_at(
    subject: Subject, point: Truth, weighted: Weighted, direction: dict[str, torch.Tensor], t: float
) -> torch.Tensor:
    """The terms of the weighted sum of gradients, with arguments and cotangents moved by t times the direction."""
    found = gradients_along(subject, point, direction, t)
    if found is None:
        return torch.full((1,), float("nan"), dtype=torch.float64)  # no derivative where sizes depend on values
    pairs = zip(found, weighted.weights, strict=True)
    return torch.cat([torch.zeros(1, dtype=torch.float64), *(flat(g) * flat(w) for g, w in pairs if g is not None)])


def _wrong(subject: Subject, case: Case, truth: Truth, what: str) -> Finding | None:
    """The finding for the second derivative that is furthest off; None where each is right, or there is a kink."""
    call = differentiable_call(subject, truth)
    weighted = weights_for(subject, call)
    obtained = [second_gradients(subject, call, weighted, which) for which in range(len(call.gradients))]
    wrong = compare_second(subject, truth, call, weighted, obtained)
    first = max(wrong or (), key=lambda one: one.mismatch.max_error, default=None)
    if first is None or first.mismatch.max_error < NOTHING or not _adds_up(subject, truth, call, weighted, first):
        return None
    if isinstance(first.variable, CotangentName):
        output = first.variable.replace("grad_", "", 1)
        repro = cotangent_lines(subject, truth.case, first.gradient, first.mismatch.index, output)
    else:
        repro = penalty_lines(subject, truth.case, first.variable, first.mismatch.index)
    return subject.finding(
        "PB205",
        case,
        f"with {what}, the derivative of {first.gradient}'s gradient by {first.variable} is wrong, and with the sample "
        "as it is it is right",
        argument=first.gradient,
        what=what,
        expected=first.mismatch.expected,
        got="0 (no path)" if first.missing else first.mismatch.got,
        evidence={**first.mismatch.evidence, "by": str(first.variable), "order": 2},
        repro=repro,
    )


def _adds_up(subject: Subject, truth: Truth, call: Call, weighted: Weighted, wrong: Wrong) -> bool:
    """Whether the gradient has a derivative at all: slopes along sums of directions are the sums of slopes.

    Where several elements tie for a minimum, another is taken than at the point itself once a single one moves.
    """
    k = [leaf.name for leaf in call.inputs.varying].index(wrong.gradient)
    tensor = next(leaf.tensor for leaf in call.variables() if leaf.name == wrong.variable)
    count, size, magnitude = flat(tensor).numel(), size_of(tensor), weighted.magnitude(call.gradients)
    one = wrong.direction
    if one is None:
        at = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        at[wrong.mismatch.index] = 1.0
        one = kept_symmetric(subject, tensor, flat(at))
    for _ in range(_SUMS):
        other = kept_symmetric(subject, tensor, normals(count, subject.random))
        found = [
            slopes(curve_along(subject, truth, weighted, {wrong.variable: direction}), size, magnitude)
            for direction in (one, other, one + other)
        ]
        if not all(bool(slope.smooth[k]) for slope in found):
            return False
        first, second, both = (float(slope.values[k]) for slope in found)
        bars = float(torch.stack([slope.errors[k] for slope in found]).sum())
        if abs(first + second - both) > KINK * (abs(first) + abs(second) + abs(both)) + bars:
            return False
    return True
