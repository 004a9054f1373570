"""A batch through vmap gives what a loop over its entries gives: values, and gradients outside and inside of vmap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from textwrap import shorten

import torch

from pullback.battery.batches import Batch, Loop, batchable, batches, by_loop, by_vmap, inside_vmap, own_results
from pullback.battery.compare import compare, natural_scale
from pullback.battery.deadline import Deadline
from pullback.battery.draws import draws
from pullback.battery.lower import Lowered, or_in_lower
from pullback.battery.own import Own
from pullback.battery.paths import dealt, passed_over, telling
from pullback.battery.probe import REASON, LeftOut, NotApplicable, Note, Probe, Skip
from pullback.battery.repro_transforms import batched_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Output, Subject, one_line
from pullback.battery.tolerances import for_gradients, for_values
from pullback.battery.truth import differentiable, truth_of
from pullback.errors import PullbackError
from pullback.finding import Finding
from pullback.function import Function

_SECONDS = 3.0
"""After this long the remaining ways to batch are left out, and counted."""


class _Refused(Exception):
    """Something isn't to be had under vmap, for a reason that is no fault."""


class _NotImplemented(_Refused):
    """The class's own vmap refuses a way to batch, as it may, unless it refuses them all."""

    def __init__(self, batch: Batch, error: BaseException) -> None:
        self.batch, self.error = batch, error
        super().__init__(f"{batch.label}: {one_line(error)}")


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare vmap with a loop for each sample and each way to batch its arguments."""
    _demand_vmap(subject)
    results = _each(subject)
    yield from or_in_lower(subject, results, _in_lower) if _own_vmap(subject) else results


def _in_lower(subject: Subject, low: Lowered) -> Iterator[Finding | Note]:
    """All arguments batched along the first dimension, where the class's own vmap computes in another dtype."""
    if subject.in_place or draws(subject, low).forward:
        return
    with suppress(_Refused):
        found = list(_compared(subject, next(iter(batches(subject, low)))))
        yield from (one for one in found if isinstance(one, Finding) and "raised" not in one.evidence)


def _each(subject: Subject) -> Iterator[Finding | Note]:
    """The samples one by one, each in some ways."""
    deadline = Deadline(_SECONDS)
    compared, refusals = 0, list[str]()
    unwritten: list[_NotImplemented] = []
    ways = _ways(subject)
    for case in subject.cases:
        if subject.in_place:
            refusals.append(f"{case.label}: forward writes to its argument, which a whole batch may share")
            continue
        if not batchable(subject.fresh(case)):
            refusals.append(f"{case.label}: there is no dense tensor among the arguments to batch")
            continue
        for batch in ways.get(case, ()):
            if deadline.passed():
                yield LeftOut(f"{case.label}: {batch.label} was left out, after {_SECONDS:g} s")
                continue
            try:
                result = _random(subject, batch) if draws(subject, case).forward else _compared(subject, batch)
                notes = [*result]
            except _Refused as refused:
                refusals.append(str(refused))
                unwritten += [refused] if isinstance(refused, _NotImplemented) else []
                continue
            compared += 1
            yield from notes
            if any(isinstance(note, Finding) for note in notes):
                break
    if unwritten and not compared and len(unwritten) == len(refusals):
        yield _never_works(subject, unwritten)
        return
    if not compared:
        raise Skip(refusals[0] if refusals else "nothing was batched")
    yield from (Note(f"refused: {refusal}") for refusal in refusals)
    yield from passed_over(subject, "batched in one way at most")


def _ways(subject: Subject) -> dict[Case, list[Batch]]:
    """All ways to batch for samples that together take every path; the last one alone for the others.

    A class without a vmap of its own has a forward that sees nothing of them: but for the last one, they are dealt out,
    and the others are passed over. One that has is given a batch of one as well.
    """
    seen = _own_vmap(subject) or not isinstance(subject.function, type)
    ways = {case: list(batches(subject, case)) for case in (subject.cases if seen else telling(subject))}
    names = {case: [batch.way for batch in ways[case][:-1]] for case in telling(subject)}
    hands = {case: set(some) for case, some in names.items()} if seen else dealt(subject, names)
    chosen = {case: [b for b in some if b is some[-1] or b.way in hands.get(case, ())] for case, some in ways.items()}
    for case in hands if _own_vmap(subject) else ():
        chosen[case] += [replace(batch, size=1) for batch in chosen[case][:1]]
    return chosen


def _demand_vmap(subject: Subject) -> None:
    """Skip a class that PyTorch has no vmap of."""
    cls = subject.function
    if not isinstance(cls, type) or issubclass(cls, Function):
        return
    if not claims_batching(subject):
        raise NotApplicable("there is no vmap and no generate_vmap_rule, and PyTorch batches no Function without")
    if subject.definition is not None and subject.definition.style == "ctx":
        raise Skip("PyTorch batches no Function whose forward takes ctx: write setup_context, or use pullback.Function")


def claims_batching(subject: Subject) -> bool:
    """Whether the author says that the class can be batched, by a vmap of its own or by generate_vmap_rule."""
    cls = subject.function
    if not isinstance(cls, type):
        return False
    return _own_vmap(subject) or bool(getattr(cls, "generate_vmap_rule", False))


def _own_vmap(subject: Subject) -> bool:
    """Whether the class has a vmap that its author wrote."""
    cls = subject.function
    return isinstance(cls, type) and getattr(cls, "vmap", None) is not torch.autograd.Function.vmap


def _compared(subject: Subject, batch: Batch) -> Iterator[Finding | Note]:
    """The first difference in values, in gradients outside of vmap, and in those inside, if any."""
    try:
        loop = by_loop(subject, batch)
    except ForwardRaised as refused:
        raise _Refused(f"{batch.label}: forward alone: {refused}") from refused
    try:
        through = by_vmap(subject, batch)
    except ForwardRaised as raised:
        yield _raises(subject, batch, raised.error)
        return
    finding = _values(subject, batch, loop, through.outputs)
    if finding is not None:
        yield finding
        return
    positions = _differentiable(subject, batch.case)
    if not positions or not through.leaves:
        return
    cotangents = loop.cotangents(subject, positions)
    wanted = loop.gradients(subject, batch, positions)
    chosen = [through.outputs[position] for position in positions]
    try:  # an output that vmap gives without a graph has lost its part of each gradient
        found = subject.gradients(chosen, cotangents, through.leaves)
    except BackwardRaised as raised:
        yield _raises(subject, batch, raised.error, gradient=through.leaves[0].name)
        return
    tensors = [output.tensor.detach() for output in chosen]
    scales = {leaf.name: natural_scale(tensors, cotangents, leaf.tensor) for leaf in through.leaves}
    outside = {leaf.name: gradient for leaf, gradient in zip(through.leaves, found, strict=True)}
    own = None if batch.case.exact else own_results(subject, batch, loop, positions)
    finding = _gradients(subject, batch, scales, wanted, outside, own, inside=False)
    if finding is not None:
        yield finding
        return
    try:
        inside = inside_vmap(subject, batch, cotangents, positions)
    except BackwardRaised as refused:  # a backward that leaves PyTorch needs no vmap outside of it, and has none here
        subject.note(refused.error)
        yield Note(f"refused: the gradient inside {batch.label}: {refused}")
        return
    finding = _gradients(subject, batch, scales, wanted, inside, own, inside=True)
    if finding is not None:
        yield finding


def _differentiable(subject: Subject, case: Case) -> tuple[int, ...]:
    """The outputs whose gradients can be compared: none at a kink, nor where backward isn't linear or draws."""
    definition = subject.definition
    if (definition is not None and definition.nonlinear_backward) or draws(subject, case).backward:
        return ()
    if case.exact:
        truth = truth_of(subject, case)
        return () if isinstance(truth, str) else truth.outputs
    return differentiable(subject.call(subject.fresh(case)))


def _values(subject: Subject, batch: Batch, loop: Loop, got: tuple[Output, ...]) -> Finding | None:
    expected = loop.values
    own = None if batch.case.exact else own_results(subject, batch, loop, ())
    for position, (one, other) in enumerate(zip(expected, got, strict=False)):
        bad = compare(one.tensor, other.tensor.detach(), for_values(one.tensor.dtype))
        if own is not None:
            bad = own.differs(one.name, other.tensor.detach())
        if bad is not None:
            several = len(expected) > 1
            return subject.finding(
                "PB509",
                batch.case,
                f"{one.name} differs from that of a loop",
                output=one.name if several else "",
                what=batch.label,
                expected=f"{bad.expected}, as from a loop over {batch.size} entries",
                got=bad.got,
                evidence=bad.evidence,
                repro=batched_lines(subject, batch.case, batch.dims, batch.size, output=position if several else None),
            )
    return None


def _gradients(
    subject: Subject,
    batch: Batch,
    scales: Mapping[str, float],
    expected: Mapping[str, torch.Tensor],
    got: Mapping[str, torch.Tensor | None],
    own: Own | None,
    *,
    inside: bool,
) -> Finding | None:
    for name, gradient in got.items():
        wanted = expected.get(name)
        if wanted is None:
            continue
        bad = compare(wanted, gradient, for_gradients(wanted.dtype), scale=scales[name])
        if own is not None:  # below float64 a budget says what the order of sums may do
            bad = own.differs(name, gradient)
        if bad is not None:
            where = "inside vmap" if inside else "of a batch through vmap"
            return subject.finding(
                "PB509",
                batch.case,
                f"the gradient of {name}, taken {where}, differs from that of a loop",
                argument=name,
                what=batch.label,
                expected=f"{bad.expected}, as from a loop over {batch.size} entries",
                got=bad.got,
                evidence=bad.evidence,
                repro=batched_lines(subject, batch.case, batch.dims, batch.size, gradient=name, inner=inside),
            )
    return None


def _raises(subject: Subject, batch: Batch, error: BaseException, *, gradient: str = "") -> Finding:
    """PB509 for a class that says it can be batched, and raises.

    Raises:
        _Refused: If it doesn't say so, or the error is a refusal.
    """
    text = one_line(error)
    if isinstance(error, PullbackError) and not _own_vmap(subject):  # what is handed to a rule of its own is its affair
        subject.note(error)
        raise _Refused(shorten(f"{batch.label}: {error.rule} {error.message}", REASON, placeholder=" …"))
    if isinstance(error, NotImplementedError) and _own_vmap(subject):
        raise _NotImplemented(batch, error)
    if not claims_batching(subject) or isinstance(error, NotImplementedError):
        raise _Refused(f"{batch.label}: {text}")
    what = f"the gradient of {gradient} through vmap" if gradient else "vmap"
    return subject.finding(
        "PB509",
        batch.case,
        f"{what} raises, where a loop works: {text}",
        what=batch.label,
        expected=f"what a loop over {batch.size} entries gives, or a NotImplementedError that says what isn't batched",
        got=text,
        evidence={"raised": type(error).__name__},
        repro=batched_lines(subject, batch.case, batch.dims, batch.size, gradient=gradient, fails=True),
    )


def _never_works(subject: Subject, unwritten: Sequence[_NotImplemented]) -> Finding:
    """PB509 for a vmap that refuses all that was tried: whoever writes one means some of it to work."""
    batch, error = unwritten[0].batch, unwritten[0].error
    text = one_line(error)
    return subject.finding(
        "PB509",
        batch.case,
        f"vmap refuses each of the {len(unwritten)} ways to batch that were tried: {text}",
        what=batch.label,
        expected="some way to batch the arguments that works, or no vmap at all",
        got=text,
        evidence={"raised": type(error).__name__},
        repro=batched_lines(subject, batch.case, batch.dims, batch.size, fails=True),
    )


def _random(subject: Subject, batch: Batch) -> Iterator[Finding | Note]:
    """A forward that draws gives other numbers in a loop: shapes alone can be compared."""
    expected = by_loop(subject, batch).values
    try:
        through = by_vmap(subject, batch, randomness="different")
    except ForwardRaised as raised:
        yield _raises(subject, batch, raised.error)
        return
    yield Note(f"{batch.case.label}: forward draws random numbers, so only the shapes of a batch were compared")
    for one, other in zip(expected, through.outputs, strict=False):
        if one.tensor.shape != other.tensor.shape:
            yield subject.finding(
                "PB509",
                batch.case,
                f"{one.name} has another shape than a loop gives",
                what=batch.label,
                expected=str(tuple(one.tensor.shape)),
                got=str(tuple(other.tensor.shape)),
                repro=batched_lines(subject, batch.case, batch.dims, batch.size),
            )
            return


PROBE = Probe("batching", "a batch through vmap gives what a loop over its entries gives", run)
