"""One tensor for two arguments: its gradient is the sum of what two equal, separate tensors get.

Or two tensors with one memory, as x and its transpose, or x and x.detach(): each gets what it would get by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from pullback.battery.away import FIRST_FEW
from pullback.battery.compare import natural_scale
from pullback.battery.grown import with_equal_sizes
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.leaves import replace as replace_tensors
from pullback.battery.lower import or_in_lower
from pullback.battery.observe import Snapshot, difference, passed
from pullback.battery.paths import telling
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.repro_effects import alias_lines, view_lines
from pullback.battery.samples import Sample
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.finding import Finding

_MOST_PAIRS = 6

VIEWS = (".detach()", ".detach().mT")
"""What is made of one argument, to be passed as another."""


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
        found = list(_compare(subject, together, apart, first, second))
        yield from found
        if any(isinstance(note, Finding) for note in found):
            return
    yield from _each_view(subject, case)


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


def _each_view(subject: Subject, case: Case) -> Iterator[Finding]:
    """The first pair of arguments where something is wrong once one is a view of the other's memory.

    A matrix and its transpose are of one shape, or fit together, where two sizes are one. What forward writes to is
    not to be one with what it reads.
    """
    if _writes(subject, case):
        return
    variants = [("", case)]
    if case.may_vary("shape") and case in telling(subject)[:FIRST_FEW]:
        variants += with_equal_sizes(subject, case)
    for label, variant in variants:
        finding = _in_sizes(subject, variant, f"with {label}, " if label else "")
        if finding is not None:
            yield finding
            return


def _writes(subject: Subject, case: Case) -> bool:
    """Whether forward writes to an argument."""
    inputs = subject.fresh(case)
    before = Snapshot(passed(subject, inputs))
    subject.call(inputs)
    return _written(before)


def _written(before: Snapshot) -> bool:
    """Whether anything was written to, be it the values that were there: an average of x and x is x."""
    return any(before.bumped(name) for name in before.tensors) or next(before.changed(), None) is not None


def _in_sizes(subject: Subject, case: Case, sizes: str) -> Finding | None:
    named = [(name, t) for name, _, t in subject.named_tensors(case.sample) if is_float(t) and is_dense(t)]
    pairs = (pair for pair in itertools.combinations(named, 2) if pair[0][0] in case.varying and pair[0][1].numel())
    for (first, tensor), (second, other) in itertools.islice(pairs, _MOST_PAIRS):
        for view in VIEWS:
            made = _view(tensor, view)
            if tensor is other or (made.dtype, made.shape) != (other.dtype, other.shape):
                continue
            together = replace(case, sample=_with(case.sample, other, made))
            apart = replace(case, sample=_with(case.sample, other, _view(tensor.detach().clone(), view)))
            finding = _of_view(subject, together, apart, (first, second), view, sizes)
            if finding is not None:
                return finding
    return None


def _view(tensor: torch.Tensor, view: str) -> torch.Tensor:
    transposed = view.endswith(".mT") and tensor.dim() > 1
    return tensor.detach().mT if transposed else tensor.detach()


def _of_view(
    subject: Subject, together: Case, apart: Case, names: tuple[str, str], view: str, sizes: str
) -> Finding | None:
    try:
        one, other = subject.fresh(apart), subject.fresh(together)
        outputs, shared = subject.call(one), subject.call(other)
        cotangents = [subject.cotangent(output.tensor) for output in outputs]
        expected = subject.gradients(outputs, cotangents, one.varying)
        got = subject.gradients(shared, cotangents, other.varying)
    except (ForwardRaised, BackwardRaised):
        return None
    tensors = [output.tensor for output in outputs]
    compared = [("", o.name, difference(o.tensor, after.tensor)) for o, after in zip(outputs, shared, strict=True)]
    for leaf, right, came in zip(one.varying, expected, got, strict=True):
        bad = difference(right, came, scale=natural_scale(tensors, cotangents, leaf.tensor))
        compared.append((leaf.name, f"the gradient of {leaf.name}", bad))
    for argument, what, mismatch in compared:
        if mismatch is not None:
            first, second = names
            return subject.finding(
                "PB408",
                together,
                f"{sizes}{what} is another one when {second} is {first}{view}, which shares its memory",
                argument=argument,
                expected=f"{mismatch.expected}, as for a copy of it",
                got=mismatch.got,
                remedy="Tell arguments apart by more than their address, and keep none under it.",
                repro=view_lines(subject, together, names, view, argument),
            )
    return None


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
    if _written(before):
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
