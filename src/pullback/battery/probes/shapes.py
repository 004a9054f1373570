"""Sizes that nobody thinks of: empty, one, odd, 0-d. What forward takes, backward must take too, and get right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from pullback.battery.compare import Mismatch
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.observe import is_finite
from pullback.battery.ordinary import agrees, is_right
from pullback.battery.probe import LeftOut, Note, Probe
from pullback.battery.repro import backward_lines, difference_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject, with_tensors
from pullback.battery.truth import truth_of
from pullback.finding import Finding

_SECONDS = 3.0
"""After this long the remaining variants are left out, and counted."""

_VARIANT = 1000
"""Variants are numbered apart from the samples, since the truth is remembered by a case's number."""


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Empty the batch of each case, make each size 1 wherever it occurs, even ones odd, and every tensor 0-d."""
    deadline = time.perf_counter() + _SECONDS
    for case in subject.cases:
        if not case.may_vary("shape"):
            yield Note(f"{case.label}: shapes are not to be varied")
            continue
        if _is_tied_to_its_sizes(subject, case):
            yield Note(f"{case.label}: holds integers or sparse tensors, so its sizes were left as they are")
            continue
        for number, (label, variant) in enumerate(_variants(subject, case)):
            if time.perf_counter() > deadline:
                yield LeftOut(f"{case.label}: {label} was left out, after {_SECONDS:g} s")
                continue
            numbered = replace(variant, index=(case.index + 1) * _VARIANT + number)
            try:
                finding = _try(subject, case, numbered, label)
            except ForwardRaised as refused:
                yield Note(f"refused: {label} ({refused})")
                continue
            if finding is not None:
                yield _of_odd_sizes(subject, case, finding) if label.startswith("odd") else finding
                break


def _of_odd_sizes(subject: Subject, case: Case, finding: Finding) -> Finding:
    """The finding, with the word that only odd sizes are wrong, where other even ones are right."""
    sizes = {size for _, _, tensor in subject.named_tensors(case.sample) for size in tensor.shape}
    even = sorted(size for size in sizes if size > 2 and size % 2 == 0)
    if any(size % 2 and size > 1 for size in sizes):
        return finding  # odd ones are among those of the sample, which is right
    smaller = replace(_resized_by(case, even, 2), index=(case.index + 1) * _VARIANT + _VARIANT - 1)
    try:
        if _try(subject, case, smaller, "even sizes") is not None:
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
    """An empty batch, each size made 1, even sizes made odd, and every tensor 0-d."""
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
        yield "every tensor 0-d", replace(case, sample=with_tensors(case.sample, _first_element))


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


def _try(subject: Subject, case: Case, variant: Case, label: str) -> Finding | None:
    """A finding if backward fails where forward did not, or gives other numbers than the derivative."""
    inputs = subject.fresh(variant)
    outputs = subject.call(inputs)
    if not all(is_finite(output.tensor) for output in outputs):
        return None  # the formula itself ends there: the mean of nothing, say
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    try:
        gradients = subject.gradients(outputs, cotangents, inputs.varying)
    except BackwardRaised as raised:
        return subject.finding(
            "PB125" if label.startswith("odd") else "PB505",
            case,
            f"with {label}, forward gives a result and backward raises: {raised}",
            what=label,
            expected="a gradient of the argument's shape, or a refusal in forward",
            got=str(raised),
            repro=backward_lines(subject, variant),
        )
    if subject.definition is not None and subject.definition.nonlinear_backward:
        return None
    if all(output.tensor.numel() == 0 for output in outputs):
        return _nothing_from_nothing(subject, case, variant, label, gradients)
    return _against_truth(subject, case, variant, label)


def _nothing_from_nothing(
    subject: Subject, case: Case, variant: Case, label: str, gradients: Sequence[torch.Tensor | None]
) -> Finding | None:
    """Empty outputs depend on nothing, so every gradient is 0."""
    for leaf, gradient in zip(subject.fresh(variant).varying, gradients, strict=True):
        if gradient is not None and gradient.layout is torch.strided and not bool((gradient == 0).all()):
            worst = gradient.detach().reshape(-1)[int((gradient != 0).reshape(-1).int().argmax())]
            mismatch = Mismatch("0", str(worst.item()), float("inf"))
            return _wrong(subject, case, variant, label, leaf.name, mismatch)
    return None


def _against_truth(subject: Subject, case: Case, variant: Case, label: str) -> Finding | None:
    if any(leaf.tensor.numel() == 0 for leaf in subject.fresh(variant).varying) or not is_right(subject, case):
        return None
    try:
        if agrees(subject, variant):
            return None
        truth = truth_of(subject, variant)
    except (ForwardRaised, BackwardRaised):
        return None
    if isinstance(truth, str):
        return None
    for place, position in enumerate(truth.outputs):
        inputs = subject.fresh(truth.case)
        chosen = [subject.call(inputs)[position]]
        for leaf, gradient in zip(
            inputs.varying, subject.gradients(chosen, [truth.cotangents[place]], inputs.varying), strict=True
        ):
            mismatch = truth.judge(leaf, place, gradient)
            if mismatch is not None:
                return _wrong(subject, case, variant, label, leaf.name, mismatch)
    return None


def _wrong(subject: Subject, case: Case, variant: Case, label: str, argument: str, mismatch: Mismatch) -> Finding:
    return subject.finding(
        "PB203" if label.startswith("odd") else "PB505",  # an odd size is no special one
        case,
        f"with {label}, the gradient of {argument} is wrong",
        argument=argument,
        what=label,
        expected=mismatch.expected,
        got=mismatch.got,
        repro=difference_lines(subject, variant, argument, mismatch.index),
        evidence=mismatch.evidence,
    )


PROBE = Probe("shapes", "what forward takes of empty, size-1, odd and 0-d tensors, backward takes and gets right", run)
