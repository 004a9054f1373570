"""Larger variants of a sample with indices: one size at a time, as far as the indices can follow.

Indices stay in reach of an axis that grows, and are stretched where their own number grows: bounds of segments remain
bounds, and what is sorted remains sorted. What else they may be shows in what forward reads. Lengths of segments add up
to an axis of which every entry is read. An axis that ends where the last segment does isn't read beyond, and whatever a
gradient holds there is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from pullback.battery.grown import fixed_by_numbers, named_sizes, sizes_grown
from pullback.battery.indices import taken_one_by_one
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.observe import difference
from pullback.battery.raised import ForwardRaised
from pullback.battery.subject import Case, Subject, with_tensors

_ROWS = 64
"""Of an axis up to this size it is found out whether all its entries are read."""


def with_indices(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Variants in which one size is larger than a small block, and than a large one; none where tensors are sparse."""
    named = [(argument, tensor) for _, argument, tensor in subject.named_tensors(case.sample)]
    if not all(is_dense(tensor) for _, tensor in named):
        return
    pointing = [(argument, tensor) for argument, tensor in named if _is_index(tensor)]
    fixed = fixed_by_numbers(case)
    for argument, tensor in pointing:
        if len(pointing) > 1:  # one may say of the other how many there are
            fixed |= {*tensor.shape, *named_sizes(tensor)}
        else:
            own = enumerate(tensor.shape)
            fixed |= {size for axis, size in own if not may_repeat(subject, case, argument, tensor, axis)}
    sizes = {size for _, tensor in named for size in tensor.shape}
    for size in sorted(sizes - fixed):
        for label, variant in sizes_grown(subject, case, size):
            if _is_read_beyond(subject, case, variant, size):
                yield label, variant


def _is_index(tensor: torch.Tensor) -> bool:
    return not is_float(tensor) and tensor.dtype is not torch.bool


def may_repeat(subject: Subject, case: Case, argument: str, index: torch.Tensor, axis: int) -> bool:
    """Whether an axis may hold any number: some sample has one index twice there, and they are no segments."""
    samples = subject.samples.samples
    given = [t for sample in samples for _, name, t in subject.named_tensors(sample) if name == argument]
    twice = any(_repeats(tensor, axis if tensor.dim() == index.dim() else -1) for tensor in given if _is_index(tensor))
    if not twice or taken_one_by_one(subject, case, index):
        return twice
    return not _are_bounds(subject, case, index) and not _are_lengths(subject, case, index)


def _repeats(index: torch.Tensor, axis: int) -> bool:
    return index.dim() > 0 and bool((index.sort(axis).values.diff(dim=axis) == 0).any())


def _are_bounds(subject: Subject, case: Case, index: torch.Tensor) -> bool:
    """Whether they ascend, and something else may be there for each segment between two of them."""
    if index.dim() != 1 or bool((index.diff() < 0).any()):
        return False
    sizes = {size for _, _, tensor in subject.named_tensors(case.sample) for size in tensor.shape}
    return bool({index.numel() - 1, index.numel() + 1} & sizes)


def _are_lengths(subject: Subject, case: Case, index: torch.Tensor) -> bool:
    total = int(index.sum())
    for name, _, tensor in subject.named_tensors(case.sample):
        for axis in [axis for axis, size in enumerate(tensor.shape) if size == total and is_float(tensor)]:
            if total > _ROWS or all(_is_read(subject, case, name, axis, place, place + 1) for place in range(total)):
                return True
    return False


def _is_read_beyond(subject: Subject, case: Case, variant: Case, size: int) -> bool:
    """Whether forward takes the variant, and reads what was added along each axis of that size."""
    return all(
        _is_read(subject, variant, name, axis, size)
        for name, _, tensor in subject.named_tensors(case.sample)
        for axis in range(tensor.dim())
        if is_float(tensor) and tensor.shape[axis] == size
    )


def _is_read(subject: Subject, case: Case, name: str, axis: int, start: int, end: int | None = None) -> bool:
    """Whether an output depends on the entries of an argument from `start` on along an axis."""
    original = next(tensor for path, _, tensor in subject.named_tensors(case.sample) if path == name)

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is not original:
            return tensor
        other = tensor.detach().clone()
        other.movedim(axis, 0)[start:end].mul_(1.5).add_(0.25)
        return other

    try:
        before, after = (
            subject.call(subject.fresh(there, requires=()))
            for there in (case, replace(case, sample=with_tensors(case.sample, changed)))
        )
    except ForwardRaised:
        return False
    return any(difference(one.tensor, other.tensor) is not None for one, other in zip(before, after, strict=False))
