"""Other values, zeros and very large ones: where forward is smooth and finite, the gradient is its derivative, not NaN.

At a kink nothing is asked, except that a gradient isn't NaN where the reference's is finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from pullback.battery.away import FIRST_FEW, Fault, fault_at, numbered
from pullback.battery.deadline import Deadline
from pullback.battery.further import further
from pullback.battery.leaves import is_dense, is_symmetric
from pullback.battery.literals import is_exact
from pullback.battery.nodes import low_precision_in_forward
from pullback.battery.ordinary import NOT_KNOWN, PassedOver, is_right
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import LeftOut, Note, Probe, Skip
from pullback.battery.redrawn import OTHER_VALUES, redrawn
from pullback.battery.repro import backward_lines, difference_lines, oracle_lines
from pullback.battery.spots import NOT_MEANT, Spot, fault_of
from pullback.battery.subject import Case, ForwardRaised, Subject, with_tensors
from pullback.finding import Finding

_VALUES = (0.0, 1.0, -1.0, 1000.0, -1000.0, 1e-5)
"""Where formulas divide by nothing, change branch, underflow or overflow in exp (above 709 in float64)."""

_ALL_VALUES = (0.0, 1.0, -1.0, 300.0, 1000.0, 1e-5)
"""What all arguments are filled with at once: 0/0, 1 - 1, products that overflow, squares that underflow."""

_ZEROS, _SECOND_OF = 850, 16
"""From where on points with zeros are numbered, and for how many arguments: second derivatives are asked for there."""

_SYMMETRIC = "an argument is a symmetric matrix, which other values would not be"

_SECONDS = 3.0
"""After this long the remaining points are left out, and counted."""


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
        if subject.reference is not None and any(is_symmetric(leaf.tensor) for leaf in subject.fresh(case).varying):
            others.add(case, _SYMMETRIC)
            continue
        if low_precision_in_forward(subject, case) is not None:
            others.add(case, "forward computes below float64, where differences at such points are noise")
            continue
        if redrawn_for < FIRST_FEW:
            redrawn_for += 1
            yield from _elsewhere(subject, case)
        found = False
        for place, leaf in enumerate(subject.fresh(case).varying):
            if leaf.tensor.is_complex() or leaf.tensor.numel() == 0 or leaf.name != leaf.argument:
                continue
            for value in _VALUES if case in telling(subject) else _VALUES[:1]:
                tried += 1
                if deadline.passed():
                    left_out += 1
                    continue
                finding = _first_fault(subject, case, place, leaf.name, value)
                if finding is not None:
                    found = True
                    yield finding
                    break
        if not found:
            yield from _all_at_once(subject, case, deadline)
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
        finding = further(subject, case, variant, OTHER_VALUES)
        if finding is not None:
            yield finding
            return
    if not tried:
        yield Note(f"refused: {OTHER_VALUES}, {case.label}")


def _of_fault(subject: Subject, case: Case, variant: Case, fault: Fault) -> Finding:
    if fault.mismatch is None:
        return subject.finding(
            "PB125",
            case,
            f"with {OTHER_VALUES}, forward gives a result and backward raises: {fault.error}",
            what=OTHER_VALUES,
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
        f"with {OTHER_VALUES}, the gradient of {fault.argument} isn't {whose} derivative: only some values are right",
        argument=fault.argument,
        what=OTHER_VALUES,
        expected=fault.mismatch.expected,
        got=fault.mismatch.got,
        remedy=f"Derive backward anew for such values. {NOT_MEANT}" if subject.surrogate is None else "",
        evidence=fault.mismatch.evidence,
        repro=repro,
    )


def _first_fault(subject: Subject, case: Case, place: int, name: str, value: float) -> Finding | None:
    for everywhere in (False, True):
        point = _point(subject, case, [name], value, everywhere=everywhere)
        if value == 0.0 and place < _SECOND_OF and case in telling(subject):
            point = numbered(case, point, _ZEROS + 1 + 2 * place + everywhere)
        try:
            label = f"{'every element' if everywhere else 'one element'} {value:g}"
            finding = fault_of(Spot(subject, case, point, name, label, value))
        except ForwardRaised:
            continue
        if finding is not None:
            return finding
    return None


def _all_at_once(subject: Subject, case: Case, deadline: Deadline) -> Iterator[Finding]:
    """Fill all arguments with one value: 0/0 needs two zeros, and one of them may be of a tensor that doesn't vary."""
    floats = [(name, t) for name, _, t in subject.named_tensors(case.sample) if t.is_floating_point() and is_dense(t)]
    names = [name for name, tensor in floats if tensor.numel()]
    if not names or case not in telling(subject):
        return
    for value in _ALL_VALUES:
        if deadline.passed():
            return
        point = _point(subject, case, names, value, everywhere=True)
        point = numbered(case, point, _ZEROS) if value == 0.0 else point
        try:
            finding = fault_of(Spot(subject, case, point, "", f"every element of every argument {value:g}", value))
        except ForwardRaised:
            continue
        if finding is not None:
            yield finding
            return


def _point(subject: Subject, case: Case, names: Sequence[str], value: float, *, everywhere: bool) -> Case:
    """The case with `value` in the first element of some arguments, or in all of them."""
    targets = [tensor for path, _, tensor in subject.named_tensors(case.sample) if path in names]

    def put(tensor: torch.Tensor) -> torch.Tensor:
        if not any(tensor is target for target in targets):
            return tensor
        filled = tensor.detach().clone(memory_format=torch.contiguous_format)
        filled.reshape(-1)[: None if everywhere else 1] = value
        return filled

    return replace(case, sample=with_tensors(case.sample, put))


PROBE = Probe(
    "special_points",
    "at other values, zeros and very large ones, smooth and finite, the gradient is the derivative",
    run,
)
