"""One tensor for two arguments: its gradient is the sum of what two equal, separate tensors get."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from pullback.battery.leaves import is_dense, is_float
from pullback.battery.leaves import replace as replace_tensors
from pullback.battery.lower import or_in_lower
from pullback.battery.observe import Snapshot, difference, passed
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.repro_effects import alias_lines
from pullback.battery.samples import Sample
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.finding import Finding

_MOST_PAIRS = 6


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Try each pair of arguments that could be the same tensor."""
    own = (result for case in subject.cases for result in _each_pair(subject, case))
    if not any(case.may_vary("repeat") and any(_pairs(subject, case)) for case in subject.cases):
        yield from own
        raise NotApplicable("no two arguments could be the same tensor")
    yield from or_in_lower(subject, own, _each_pair)


def _each_pair(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    if not case.may_vary("repeat"):
        yield Note(f"{case.label}: arguments are not to be repeated")
        return
    for first, second, tensor, other in itertools.islice(_pairs(subject, case), _MOST_PAIRS):
        varying = case.varying | {second}  # as where the same tensor requires grad, wherever it is passed
        together = replace(case, sample=_with(case.sample, other, tensor), varying=varying)
        apart = replace(case, sample=_with(case.sample, other, tensor.detach().clone()), varying=varying)
        yield from _compare(subject, together, apart, first, second)


def _pairs(subject: Subject, case: Case) -> Iterator[tuple[str, str, torch.Tensor, torch.Tensor]]:
    """Arguments of one shape of which the first requires grad, those of two that do before all others."""
    without = subject.definition.nondiff_argnames if subject.definition is not None else ()
    distinct: dict[int, tuple[str, torch.Tensor]] = {}
    for name, argument, tensor in subject.named_tensors(case.sample):
        if is_float(tensor) and is_dense(tensor) and argument not in without:
            distinct.setdefault(id(tensor), (name, tensor))  # twice in the sample it is one leaf, by its first name
    named = list(distinct.values())
    both = itertools.combinations([entry for entry in named if entry[0] in case.varying], 2)
    one = ((a, b) for a in named for b in named if a[0] in case.varying and b[0] not in case.varying)
    for (first, tensor), (second, other) in itertools.chain(both, one):
        alike = tensor.shape == other.shape and tensor.dtype == other.dtype
        if alike and tensor is not other and not isinstance(tensor, torch.nn.Parameter):
            yield first, second, tensor, other


def _with(sample: Sample, old: torch.Tensor, new: torch.Tensor) -> Sample:
    def swap(tensor: torch.Tensor) -> torch.Tensor:
        return new if tensor is old else tensor

    return Sample(replace_tensors(sample.args, swap), replace_tensors(dict(sample.kwargs), swap), sample.vary)


def _compare(subject: Subject, together: Case, apart: Case, first: str, second: str) -> Iterator[Finding | Note]:
    try:
        separate, shared = subject.fresh(apart), subject.fresh(together)
        before = Snapshot(passed(subject, separate))
        outputs, shared_outputs = subject.call(separate), subject.call(shared)
    except ForwardRaised as refused:
        yield Note(f"refused: one tensor as {first} and {second} ({refused})")
        return
    if next(before.changed(), None) is not None:
        yield Note(f"{first} and {second} were not made one tensor, since forward writes to an argument")
        return
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    leaves = [separate.leaf(first), separate.leaf(second)]
    terms = [term for term in subject.gradients(outputs, cotangents, leaves) if term is not None]
    expected = sum(terms[1:], terms[0]) if terms else None
    for one, after in zip(outputs, shared_outputs, strict=True):
        mismatch = difference(one.tensor, after.tensor)
        if mismatch is not None:
            message = f"{after.name} is another one when {first} and {second} are the same tensor"
            yield _finding(subject, together, (first, second), message, mismatch.expected, mismatch.got)
            return
    leaf = next(leaf for leaf in shared.leaves if leaf.name in (first, second))
    try:
        (got,) = subject.gradients(shared_outputs, cotangents, [leaf])
    except BackwardRaised as raised:
        message = f"backward raises when {first} and {second} are the same tensor: {raised}"
        yield _finding(subject, together, (first, second), message, "a gradient", str(raised))
        return
    scale = max((float(term.abs().max()) for term in terms if term.numel()), default=0.0)
    mismatch = difference(expected, got, scale=scale)
    if mismatch is not None:
        message = f"the gradient is wrong when {first} and {second} are the same tensor"
        yield _finding(
            subject, together, (first, second), message, f"{mismatch.expected}, the sum of both", mismatch.got
        )


def _finding(subject: Subject, case: Case, names: tuple[str, str], message: str, expected: str, got: str) -> Finding:
    first, second = names
    return subject.finding(
        "PB408",
        case,
        message,
        argument=first,
        expected=expected,
        got=got,
        repro=alias_lines(subject, case, first, second),
    )


PROBE = Probe(
    "aliases", "the same tensor passed for two arguments gives the same values, and the sum of gradients", run
)
