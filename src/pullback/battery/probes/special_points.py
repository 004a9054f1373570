"""Other values and numbers, zeros, very large ones: where forward is smooth and finite, so is backward, and right.

At a kink nothing is asked, except that a gradient isn't NaN where the reference's is finite.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from pullback.battery.away import FIRST_FEW, Fault, fault_at, numbered
from pullback.battery.deadline import Deadline
from pullback.battery.further import further
from pullback.battery.leaves import is_dense, is_symmetric
from pullback.battery.literals import is_exact
from pullback.battery.nodes import low_precision_in_forward
from pullback.battery.ordinary import NOT_KNOWN, PassedOver, is_right
from pullback.battery.other_numbers import with_other_numbers
from pullback.battery.paths import dealt, passed_over, telling
from pullback.battery.probe import LeftOut, Note, Probe, Skip
from pullback.battery.redrawn import OTHER_VALUES, redrawn, resized
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

_NUMBERS = 750
"""From where on variants with other numbers among the arguments are numbered."""

_SYMMETRIC = "an argument is a symmetric matrix, which other values would not be"

_SECONDS = 3.0
"""After this long the remaining points are left out, and counted."""

_SECONDS_MORE = 1.0
"""The same for small and large values, and other numbers, of one sample."""


class _Point(NamedTuple):
    """A value in the first element of an argument, or in all of them; where there is no name, in those of all."""

    name: str
    value: float
    everywhere: bool

    @property
    def label(self) -> str:
        """In words: ``one element 0``."""
        where = "every element" if self.everywhere else "one element"
        return f"{where}{'' if self.name else ' of every argument'} {self.value:g}"


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Put each special value into each argument: into its first element, and into all of them."""
    if subject.definition is not None and subject.definition.nonlinear_backward:
        raise Skip("backward is declared not to be linear, so forward's derivative doesn't tell what it should give")
    others = PassedOver()
    cases = [case for case in subject.cases if _may_be_tried(subject, case, others)]
    known = [case for case in cases if case in telling(subject)]
    # Formulas divide by 0 on each path; that a branch of one of them alone fails at another value is rare.
    hands = dealt(subject, {case: [str(point) for point in _points(subject, case)] for case in known})
    any_named, tried, left_out = False, 0, 0
    deadline = Deadline(_SECONDS)
    for place, case in enumerate(cases):
        if place < FIRST_FEW:
            yield from _elsewhere(subject, case)
        found = False
        mine = [point for point in _points(subject, case) if not point.value or str(point) in hands.get(case, ())]
        for name, points in itertools.groupby(mine, key=lambda point: point.name):
            if not name and (found or case not in known):
                continue
            any_named |= bool(name)
            for point in points:
                tried += 1
                if deadline.passed():
                    left_out += 1
                    continue
                finding = _fault(subject, case, point, second=not point.value and str(point) in hands.get(case, ()))
                if finding is not None:
                    found = True
                    yield finding
                    break
    if left_out:
        yield LeftOut(f"{left_out} of {tried} points were left out, after {_SECONDS:g} s")
    if not any_named:
        raise Skip(others.reason("no real float64 argument whose values may be varied"))
    yield from others.notes()
    yield from passed_over(subject, f"there {_VALUES[0]:g} alone was put in")


def _may_be_tried(subject: Subject, case: Case, others: PassedOver) -> bool:
    if not (case.exact and case.may_vary("values")):
        return False
    if not is_right(subject, case):
        others.add(case, NOT_KNOWN)
    elif subject.reference is not None and any(is_symmetric(leaf.tensor) for leaf in subject.fresh(case).varying):
        others.add(case, _SYMMETRIC)
    elif low_precision_in_forward(subject, case) is not None:
        others.add(case, "forward computes below float64, where differences at such points are noise")
    else:
        return True
    return False


def _points(subject: Subject, case: Case) -> Iterator[_Point]:
    """Each value in each argument that varies, and in all arguments: 0/0 takes two zeros, one of which may not vary."""
    for leaf in subject.fresh(case).varying:
        if leaf.tensor.is_complex() or leaf.name != leaf.argument:
            continue
        places = (False, True)[: leaf.tensor.numel()]
        yield from (_Point(leaf.name, value, everywhere) for value in _VALUES for everywhere in places)
    if _filled(subject, case):
        yield from (_Point("", value, True) for value in _ALL_VALUES)


def _elsewhere(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """A fault at values from a normal distribution, whatever those of the sample are; what is left is tried then."""
    tried = 0
    for variant in redrawn(subject, case):
        tried += 1
        fault = fault_at(subject, case, variant)
        if fault is not None:
            yield _of_fault(subject, case, variant, OTHER_VALUES, fault)
            return
        finding = further(subject, case, variant, OTHER_VALUES)
        if finding is not None:
            yield finding
            return
    if not tried:
        yield Note(f"refused: {OTHER_VALUES}, {case.label}")
    yield from _unthought_of(subject, case)


def _unthought_of(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """The first fault at small or large values, or with a number, flag or choice that nobody gave.

    What is refused or raises is none there.
    """
    deadline = Deadline(_SECONDS_MORE)
    sized = ((what, variant, True) for what, variant in resized(subject, case))
    for what, variant, within in itertools.chain(sized, _with_another_number(subject, case)):
        if deadline.passed():
            yield LeftOut(f"{case.label}: {what} was left out, after {_SECONDS_MORE:g} s")
            return
        try:
            fault = fault_at(subject, case, variant)
        except ForwardRaised:
            continue
        if fault is not None and fault.mismatch is not None:
            yield _of_fault(subject, case, variant, what, fault)
            return
        finding = further(subject, case, variant, what, raising=False) if fault is None and within else None
        if finding is not None:
            yield finding
            return


def _with_another_number(subject: Subject, case: Case) -> Iterator[tuple[str, Case, bool]]:
    """Variants with another number, and whether it is surely within its domain: 0 is where something is divided by."""
    for place, (name, value, sample) in enumerate(with_other_numbers(subject, case.sample)):
        within = not (isinstance(value, float) and value == 0)
        yield f"{name}={value!r}", numbered(case, replace(case, sample=sample), _NUMBERS + place), within


def _of_fault(subject: Subject, case: Case, variant: Case, what: str, fault: Fault) -> Finding:
    if fault.mismatch is None:
        return subject.finding(
            "PB125",
            case,
            f"with {what}, forward gives a result and backward raises: {fault.error}",
            what=what,
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
        f"with {what}, the gradient of {fault.argument} isn't {whose} derivative: only some values are right",
        argument=fault.argument,
        what=what,
        expected=fault.mismatch.expected,
        got=fault.mismatch.got,
        remedy=f"Derive backward anew for such values. {NOT_MEANT}" if subject.surrogate is None else "",
        evidence=fault.mismatch.evidence,
        repro=repro,
    )


def _fault(subject: Subject, case: Case, point: _Point, *, second: bool) -> Finding | None:
    there = _put(subject, case, point)
    if second:  # what is known of a point is remembered by its number
        names = ["", *(leaf.name for leaf in subject.fresh(case).varying[:_SECOND_OF])]
        if point.name in names:
            there = numbered(case, there, _ZEROS + 2 * names.index(point.name) + point.everywhere)
    try:
        return fault_of(Spot(subject, case, there, point.name, point.label, point.value))
    except ForwardRaised:
        return None


def _filled(subject: Subject, case: Case) -> list[str]:
    """The tensors that are filled where all are, those that don't vary among them."""
    return [
        name
        for name, _, tensor in subject.named_tensors(case.sample)
        if tensor.is_floating_point() and is_dense(tensor) and tensor.numel()
    ]


def _put(subject: Subject, case: Case, point: _Point) -> Case:
    """The case with the value in its place."""
    names = [point.name] if point.name else _filled(subject, case)
    targets = [tensor for path, _, tensor in subject.named_tensors(case.sample) if path in names]

    def put(tensor: torch.Tensor) -> torch.Tensor:
        if not any(tensor is target for target in targets):
            return tensor
        filled = tensor.detach().clone(memory_format=torch.contiguous_format)
        filled.reshape(-1)[: None if point.everywhere else 1] = point.value
        return filled

    return replace(case, sample=with_tensors(case.sample, put))


PROBE = Probe(
    "special_points",
    "at other values, zeros and very large ones, smooth and finite, the gradient is the derivative",
    run,
)
