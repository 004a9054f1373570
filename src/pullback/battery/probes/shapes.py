"""Sizes that nobody thinks of: empty, one, 0-d; and one tensor that stands for two arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from pullback.battery.compare import compare
from pullback.battery.leaves import is_float, tensors
from pullback.battery.probe import Note, Probe
from pullback.battery.repro import backward_lines
from pullback.battery.samples import Sample
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Output, Subject, with_tensors
from pullback.battery.tolerances import SAME, for_gradients
from pullback.battery.truth import oracle_of, truth_of
from pullback.finding import Finding

_MOST_PAIRS = 6


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Try each case with its sizes exchanged, and with pairs of its arguments made one tensor."""
    for case in subject.cases:
        if case.may_vary("shape"):
            yield from _sizes(subject, case)
        if case.may_vary("repeat"):
            yield from _repeated(subject, case)


# -- sizes ------------------------------------------------------------------------------------------------------------


def _sizes(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    for label, variant in _variants(subject, case):
        try:
            outputs = subject.call(subject.fresh(variant))
        except ForwardRaised as refused:
            yield Note(f"refused: {label} ({refused})")
            continue
        finding = _differentiate(subject, case, variant, label, outputs)
        if finding is not None:
            yield finding
            return


def _variants(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Each size that occurs, exchanged for 0 and for 1 wherever it occurs; and all tensors 0-d."""
    leaves = [tensor for _, _, tensor in subject.named_tensors(case.sample)]
    if any(not is_float(tensor) and tensor.dtype != torch.bool for tensor in leaves):
        return  # integers may be indices: in a smaller tensor they could point out of bounds
    others = {value for value in (*case.sample.args, *case.sample.kwargs.values()) if isinstance(value, int)}
    for size in sorted({size for tensor in leaves for size in tensor.shape} - others):
        for new in {0, 1} - {size}:
            label = f"every size {size} made {new}"
            yield label, replace(case, sample=with_tensors(case.sample, lambda t, s=size, n=new: _resized(t, s, n)))
    if any(tensor.dim() for tensor in leaves) and not any(tensor.numel() == 0 for tensor in leaves) and not others:
        yield "every tensor 0-d", replace(case, sample=with_tensors(case.sample, lambda t: t.detach().reshape(-1)[0]))


def _resized(tensor: torch.Tensor, size: int, new: int) -> torch.Tensor:
    resized = tensor.detach()
    for dim, old in enumerate(tensor.shape):
        if old == size:
            resized = resized.narrow(dim, 0, new) if old else resized.new_zeros([*resized.shape]).expand_as(resized)
    return resized.clone()


def _differentiate(
    subject: Subject, case: Case, variant: Case, label: str, outputs: Sequence[Output]
) -> Finding | None:
    """A finding if backward fails where forward did not, or gives numbers where the formula has others."""
    inputs = subject.fresh(variant)
    outputs = subject.call(inputs)
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    try:
        gradients = subject.gradients(outputs, cotangents, inputs.varying)
    except BackwardRaised as raised:
        return subject.finding(
            "PB505",
            case,
            f"with {label}, forward gives a result and backward raises: {raised}",
            what=label,
            expected="a gradient of the argument's shape, or a refusal in forward",
            got=str(raised),
            repro=backward_lines(subject, variant),
        )
    if not all(bool(output.tensor.detach().isfinite().all()) for output in outputs if is_float(output.tensor)):
        return None
    oracle = oracle_of(subject)
    if oracle is None or _nonlinear(subject):
        return None
    return _against(subject, case, variant, label, [gradient for gradient in gradients], cotangents)


def _against(
    subject: Subject,
    case: Case,
    variant: Case,
    label: str,
    gradients: Sequence[torch.Tensor | None],
    cotangents: Sequence[torch.Tensor],
) -> Finding | None:
    inputs = subject.fresh(variant)
    try:
        outputs = subject.call(inputs, oracle_of(subject))
        right = subject.gradients(outputs, cotangents, inputs.varying)
    except (ForwardRaised, BackwardRaised, RuntimeError, ValueError):
        return None
    for leaf, expected, got in zip(inputs.varying, right, gradients, strict=True):
        finite = expected is None or bool(expected.isfinite().all())
        mismatch = compare(expected, got, for_gradients(leaf.tensor.dtype)) if finite else None
        if mismatch is not None:
            return subject.finding(
                "PB505",
                case,
                f"with {label}, the gradient of {leaf.name} isn't the one of its reference",
                argument=leaf.name,
                what=label,
                expected=mismatch.expected,
                got=mismatch.got,
                repro=backward_lines(subject, variant),
                evidence=mismatch.evidence,
            )
    return None


def _nonlinear(subject: Subject) -> bool:
    return subject.definition is not None and subject.definition.nonlinear_backward


# -- the same tensor twice --------------------------------------------------------------------------------------------


def _repeated(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """Pass one tensor for two arguments: the gradient is the sum of what the two get as equal, separate tensors."""
    named = [(name, t) for name, _, t in subject.named_tensors(case.sample) if name in case.varying]
    pairs = [
        (one, other)
        for one, other in itertools.combinations(named, 2)
        if one[1].shape == other[1].shape and one[1].dtype == other[1].dtype and one[1] is not other[1]
    ]
    for (first, tensor), (second, other) in pairs[:_MOST_PAIRS]:
        one = replace(case, sample=_exchanged(case.sample, other, tensor))
        two = replace(case, sample=_exchanged(case.sample, other, tensor.detach().clone()))
        try:
            separate = subject.fresh(two)
            outputs = subject.call(separate)
            shared = subject.fresh(one)
            shared_outputs = subject.call(shared)
        except ForwardRaised as refused:
            yield Note(f"refused: one tensor as {first} and {second} ({refused})")
            continue
        cotangents = [subject.cotangent(output.tensor) for output in outputs]
        apart = dict(
            zip(
                (leaf.name for leaf in separate.varying),
                _grads(subject, outputs, cotangents, separate.varying),
                strict=True,
            )
        )
        try:
            together = dict(
                zip(
                    (leaf.name for leaf in shared.varying),
                    _grads(subject, shared_outputs, cotangents, shared.varying),
                    strict=True,
                )
            )
        except BackwardRaised as raised:
            yield _twice(subject, one, first, second, "a gradient", str(raised), {})
            continue
        if apart[first] is None and apart[second] is None:
            continue
        mismatch = compare(_sum(apart[first], apart[second]), together[first], SAME)
        if mismatch is not None:
            yield _twice(subject, one, first, second, mismatch.expected, mismatch.got, mismatch.evidence)


def _sum(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    return b if a is None else a if b is None else a + b
