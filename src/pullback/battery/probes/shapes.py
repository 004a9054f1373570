"""Sizes that nobody thinks of: empty, one, odd, larger, 0-d. What forward takes of them, backward must get right."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from pullback.battery.away import FIRST_FEW, fault_at, numbered
from pullback.battery.compare import Mismatch
from pullback.battery.deadline import Deadline
from pullback.battery.further import further
from pullback.battery.grown import grown, one_apart, stacked, with_a_long_axis, with_equal_sizes
from pullback.battery.indices import wraps_around
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.literals import is_exact
from pullback.battery.ordinary import is_right
from pullback.battery.paths import dealt, passed_over, telling
from pullback.battery.pointed import may_repeat, with_indices
from pullback.battery.probe import LeftOut, Note, Probe
from pullback.battery.repro import backward_lines, difference_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject, with_tensors
from pullback.finding import Finding
from pullback.rules import Severity

_SECONDS = 3.0
"""After this long the remaining variants are left out, and counted."""

_NUMBERS = "every tensor 0-d"
_ANOTHER_AXIS = "another axis in front of each tensor"

_LARGER, _ALONE, _EVEN, _STACKED = 500, 530, 600, 601
"""The numbers of variants: those in larger sizes, those where one size or argument alone is another, smaller even ones,
and the one with another axis."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Empty the batch of each case; make each size 1 wherever it occurs, even ones odd, tensors 0-d, all larger."""
    deadline = Deadline(_SECONDS)
    second = _asked_for_second(subject)
    for place, case in enumerate(subject.cases):
        if not case.may_vary("shape"):
            yield Note(f"{case.label}: shapes are not to be varied")
            continue
        asked = second.get(case, set())
        tied = _is_tied_to_its_sizes(subject, case)
        if tied:
            yield Note(f"{case.label}: holds integers or sparse tensors, so only sizes out of their reach were varied")
        found = list(_smaller(subject, case, deadline, asked))
        if not tied and not found and place == 0:
            found += _stacked(subject, case)
        if not _has_faults(found) and place < FIRST_FEW:
            found += _larger(subject, case, deadline)
        if place < FIRST_FEW and not _has_faults(found):
            found += _alone(subject, case, deadline, asked)
        if place == FIRST_FEW:
            found.append(Note("larger sizes were tried with samples 0 and 1 alone"))
        yield from found
    yield from passed_over(subject, "in other sizes only first derivatives were asked there")


def _has_faults(found: Sequence[Finding | Note]) -> bool:
    """Whether there is a finding that is more than a hint, after which nothing else is tried."""
    return any(isinstance(one, Finding) and one.severity is not Severity.HINT for one in found)


def _asked_for_second(subject: Subject) -> dict[Case, set[str]]:
    """The variants of each sample at which second derivatives are asked for: dealt out, as they take the longest."""
    labels: dict[Case, list[str]] = {}
    for case in telling(subject):
        if case.may_vary("shape"):
            labels[case] = [label for label, _ in _variants(subject, case)]
            if case in subject.cases[:FIRST_FEW]:
                labels[case] += [label for label, _ in _apart(subject, case)]
    return dealt(subject, labels)


def _smaller(subject: Subject, case: Case, deadline: Deadline, asked: Collection[str]) -> Iterator[Finding | Note]:
    for number, (label, variant) in enumerate(_variants(subject, case)):
        if deadline.passed():
            yield LeftOut(f"{case.label}: {label} was left out, after {_SECONDS:g} s")
            continue
        try:
            there, special = numbered(case, variant, number), not label.startswith("odd")
            finding = _try(subject, case, there, label, special=special, second=label in asked)
        except ForwardRaised as refused:
            yield Note(f"refused: {label} ({refused})")
            continue
        if finding is not None and wraps_around(subject, there) and not wraps_around(subject, case):
            yield Note(f"{case.label}: with {label} forward's indices are negative, and count from the end")
            continue
        if finding is not None:
            yield _of_odd_sizes(subject, case, finding) if label.startswith("odd") else finding
            return


def _stacked(subject: Subject, case: Case) -> Iterator[Finding]:
    """One more axis, where all shapes so far were taken, and one number is made of whatever comes: so of any shape."""
    label = _ANOTHER_AXIS
    variant = numbered(case, stacked(subject, case), _STACKED)
    try:
        outputs = [*subject.call(subject.fresh(case)), *subject.call(subject.fresh(variant))]
        finding = None
        if all(output.tensor.dim() == 0 for output in outputs):
            finding = _try(subject, case, variant, label, special=False)
    except ForwardRaised:
        return
    if finding is not None:
        yield finding


def _larger(subject: Subject, case: Case, deadline: Deadline) -> Iterator[Finding | Note]:
    """The first of some larger variants that forward takes."""
    refusal = ""
    for number, (label, variant) in enumerate(grown(subject, case), _LARGER + 1):
        if deadline.passed():
            yield LeftOut(f"{case.label}: {label} was left out, after {_SECONDS:g} s")
            return
        try:
            finding = _try(subject, case, numbered(case, variant, number), label, special=False)
        except ForwardRaised as refused:
            refusal = refusal or f"refused: {label} ({refused})"
            continue
        if finding is not None:
            yield finding
        return
    if refusal:
        yield Note(refusal)


def _apart(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Two sizes made one; and some sizes alone, one more axis, and one argument's shape alone, where nothing is tied.

    Where there are indices, one size at a time, as far as they allow.

    Only where the sample itself is right.
    """
    if not (case.exact and is_right(subject, case)):
        return
    yield from with_equal_sizes(subject, case)
    if not _is_tied_to_its_sizes(subject, case):
        yield from with_a_long_axis(subject, case)
        yield _ANOTHER_AXIS, stacked(subject, case)
        yield from one_apart(subject, case)
    else:
        yield from with_indices(subject, case)


def _alone(subject: Subject, case: Case, deadline: Deadline, asked: Collection[str]) -> Iterator[Finding | Note]:
    """The variants that nobody may have thought of; what is refused or raises is no fault there."""
    for number, (label, variant) in enumerate(_apart(subject, case), _ALONE):
        if deadline.passed() or number >= _EVEN:
            yield LeftOut(f"{case.label}: {label} was left out, after {_SECONDS:g} s")
            return
        there = numbered(case, variant, number)
        try:
            fault = fault_at(subject, case, there)
        except ForwardRaised:
            continue
        if fault is not None and fault.mismatch is None:
            continue
        if fault is not None and fault.mismatch is not None:
            yield _wrong(subject, case, there, label, fault.argument, fault.mismatch, special=False)
            return
        finding = further(subject, case, there, label, second=label in asked, raising=False)
        if finding is not None:
            yield finding
            return


def _of_odd_sizes(subject: Subject, case: Case, finding: Finding) -> Finding:
    """The finding, with the word that only odd sizes are wrong, where other even ones are right."""
    sizes = {size for _, _, tensor in subject.named_tensors(case.sample) for size in tensor.shape}
    even = sorted(size for size in sizes if size > 2 and size % 2 == 0)
    if any(size % 2 and size > 1 for size in sizes):
        return finding  # odd ones are among those of the sample, which is right
    smaller = numbered(case, _resized_by(case, even, 2), _EVEN)
    try:
        if _try(subject, case, smaller, "even sizes", special=False) is not None:
            return finding
    except ForwardRaised:
        return finding
    pattern = f"only for odd sizes, as with {_less(even, 2)} it is right"
    message = f"{finding.message}: {pattern}"
    return replace(finding, message=message, evidence={**finding.evidence, "diagnosis": pattern})


def _is_tied_to_its_sizes(subject: Subject, case: Case) -> bool:
    """Whether there are indices: they could point out of a smaller tensor, where a kernel doesn't look."""
    tensors = [tensor for _, _, tensor in subject.named_tensors(case.sample)]
    return any(not is_dense(t) or (not is_float(t) and t.dtype != torch.bool) for t in tensors)


def _variants(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """An empty batch, each size made 1, even sizes made odd, and every tensor 0-d; with indices what these allow."""
    if _is_tied_to_its_sizes(subject, case):
        yield from _beside_indices(subject, case)
        return
    named = list(subject.named_tensors(case.sample))
    tensors = [tensor for _, _, tensor in named]
    numbers = {value for value in (*case.sample.args, *case.sample.kwargs.values()) if isinstance(value, int)}
    batch = next((t.shape[0] for name, _, t in named if name in case.varying and t.dim() and t.shape[0]), None)
    if batch is not None and batch not in numbers:
        # The leading size of the first argument is the one that runs empty in use; inner sizes don't.
        first = next(t for name, _, t in named if name in case.varying and t.dim() and t.shape[0])
        yield "an empty first argument", _resized(case, lambda t, dim, old: dim == 0 and t is first, 0)
        yield "an empty batch", _resized(case, lambda t, dim, old: dim == 0 and old == batch, 0)
    sizes = sorted({size for tensor in tensors for size in tensor.shape if size > 1} - numbers)
    for size in sizes:
        yield f"size {size} made 1", _resized(case, _of_size(size), 1)
    even = [size for size in sizes if size > 2 and size % 2 == 0]
    if even:
        yield f"odd sizes ({_less(even, 1)})", _resized_by(case, even, 1)
    if any(tensor.dim() for tensor in tensors) and all(tensor.numel() for tensor in tensors) and not numbers:
        yield _NUMBERS, replace(case, sample=with_tensors(case.sample, _first_element))


def _beside_indices(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Each size made 1 that some indices are too large to point into; that of a sole index tensor made 1 and 0 as well.

    Its own only where an index may come twice: bounds and lengths of segments speak of how many there are.
    """
    tensors = [tensor for _, _, tensor in subject.named_tensors(case.sample)]
    indices = [tensor for tensor in tensors if is_dense(tensor) and not is_float(tensor) and tensor.dtype != torch.bool]
    if not all(is_dense(tensor) for tensor in tensors) or any(tensor.numel() == 0 for tensor in indices):
        return
    numbers = {value for value in (*case.sample.args, *case.sample.kwargs.values()) if isinstance(value, int)}
    reach = min(int(tensor.max()) for tensor in indices)
    fixed = numbers | {size for tensor in indices for size in tensor.shape}
    for size in sorted({size for tensor in tensors for size in tensor.shape if 1 < size <= reach} - fixed):
        yield f"size {size} made 1", _resized(case, _of_size(size), 1)
    for size in sorted(set(indices[0].shape) - numbers - {0, 1}) if len(indices) == 1 else ():
        holders = [tensor for tensor in tensors if size in tensor.shape]
        if (size <= reach or len(holders) == 1) and _any_number(subject, case, size):
            for new in (1, 0) if len(holders) == 1 else (1,):  # no indices, and not no columns beside them
                yield f"size {size} made {new}", _resized(case, _of_size(size), new)


def _any_number(subject: Subject, case: Case, size: int) -> bool:
    """Whether there may be any number of indices along each axis of that size."""
    return all(
        may_repeat(subject, case, argument, tensor, axis)
        for _, argument, tensor in subject.named_tensors(case.sample)
        for axis in range(tensor.dim())
        if not is_float(tensor) and tensor.dtype != torch.bool and tensor.shape[axis] == size
    )


def _less(sizes: Sequence[int], by: int) -> str:
    """``4 made 3, 6 made 5``."""
    return ", ".join(f"{size} made {size - by}" for size in sizes)


def _resized_by(case: Case, sizes: Sequence[int], by: int) -> Case:
    """The case with each of these sizes made smaller, wherever it occurs."""

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        resized = tensor.detach()
        for dim, old in enumerate(tensor.shape):
            resized = resized.narrow(dim, 0, old - by) if old in sizes else resized
        return resized.clone()

    return replace(case, sample=with_tensors(case.sample, resize))


def _resized(case: Case, chosen: Callable[[torch.Tensor, int, int], bool], new: int) -> Case:
    """The case with each chosen dimension (of a tensor, at a position, of a size) cut to `new`."""

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        resized = tensor.detach()
        for dim, old in enumerate(tensor.shape):
            if chosen(tensor, dim, old):
                resized = resized.narrow(dim, 0, new)
        return resized.clone()

    return replace(case, sample=with_tensors(case.sample, resize))


def _of_size(size: int) -> Callable[[torch.Tensor, int, int], bool]:
    return lambda _, __, old: old == size


def _first_element(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[0].clone()


def _try(
    subject: Subject, case: Case, variant: Case, label: str, *, special: bool, second: bool = True
) -> Finding | None:
    """A finding if backward fails where forward did not, or gives other numbers than the derivative."""
    outputs = subject.call(subject.fresh(variant))
    if outputs and all(output.tensor.numel() == 0 for output in outputs):
        return _nothing_from_nothing(subject, case, variant, label)
    fault = fault_at(subject, case, variant)
    if fault is None:
        return further(subject, case, variant, label, second=second) if case in telling(subject) else None
    if fault.mismatch is not None:
        return _wrong(subject, case, variant, label, fault.argument, fault.mismatch, special=special)
    return _raises(subject, case, variant, label, fault.error, special=special)


def _raises(subject: Subject, case: Case, variant: Case, label: str, error: str, *, special: bool) -> Finding:
    return subject.finding(
        "PB505" if special else "PB125",
        case,
        f"with {label}, forward gives a result and backward raises: {error}",
        what=label,
        # Most are written for tensors that have axes, and whoever has a number sees that it raises.
        severity=Severity.HINT if label == _NUMBERS else None,
        expected="a gradient of the argument's shape, or a refusal in forward",
        got=error,
        repro=backward_lines(subject, variant),
    )


def _nothing_from_nothing(subject: Subject, case: Case, variant: Case, label: str) -> Finding | None:
    """Empty outputs depend on nothing, so every gradient is 0."""
    inputs = subject.fresh(variant)
    outputs = subject.call(inputs)
    try:
        gradients = subject.gradients(outputs, [subject.cotangent(o.tensor) for o in outputs], inputs.varying)
    except BackwardRaised as raised:
        return _raises(subject, case, variant, label, str(raised), special=True)
    if subject.definition is not None and subject.definition.nonlinear_backward:
        return None
    for leaf, gradient in zip(inputs.varying, gradients, strict=True):
        if gradient is not None and gradient.layout is torch.strided and not bool((gradient == 0).all()):
            worst = gradient.detach().reshape(-1)[int((gradient != 0).reshape(-1).int().argmax())]
            mismatch = Mismatch("0", str(worst.item()), float("inf"))
            return _wrong(subject, case, variant, label, leaf.name, mismatch, special=True)
    return None


def _wrong(
    subject: Subject, case: Case, variant: Case, label: str, argument: str, mismatch: Mismatch, *, special: bool
) -> Finding:
    written = all(is_float(tensor) or is_exact(tensor) for _, _, tensor in subject.named_tensors(variant.sample))
    index = mismatch.index if written else ()  # of other indices than these, one element alone may not show it
    return subject.finding(
        "PB505" if special else "PB203",  # an odd or a larger size is no special one
        case,
        f"with {label}, the gradient of {argument} is wrong",
        argument=argument,
        what=label,
        expected=mismatch.expected,
        got=mismatch.got,
        repro=difference_lines(subject, variant, argument, index),
        evidence=mismatch.evidence,
    )


PROBE = Probe(
    "shapes", "what forward takes of empty, size-1, odd, larger and 0-d tensors, backward takes and gets right", run
)
