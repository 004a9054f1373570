"""A sample in larger sizes: longer than a block, and no multiple of what a kernel takes at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from pullback.battery.indices import taken_one_by_one
from pullback.battery.leaves import is_dense, is_float, is_symmetric
from pullback.battery.numerics import flat, normals, size_of, unflat
from pullback.battery.subject import Case, Subject, with_tensors

BLOCK = 32
"""The smallest block that kernels work in: what is said to be larger has more elements than one."""

LARGE = 1024
"""A sample with more elements than this is large as it is."""

_FACTORS = (2, 4, 6, 8, 10, 12, 14, 16)
_SINGLE = 3
"""So many sizes are made larger one by one."""

LONG, LONGEST = 131, 1031
"""Sizes above the 128 that kernels often take at once, and above the 1024 threads that a block of them may have."""

_MOST = 4096
"""No tensor is made larger than this by one size alone."""

_APART = 4
"""Of so many arguments, each has another shape than the rest."""


def grown(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Larger variants of a case, those that show most first: odd sizes, even ones, multiples, and one alone.

    Sizes that an integer among the arguments repeats, that an index tensor has, or that its values may reach, stay.
    """
    sizes = _sizes(subject, case)
    if not sizes:
        return
    varying = [t for name, _, t in subject.named_tensors(case.sample) if name in case.varying]
    factor = _factor(varying, sizes)
    yield _with(subject, case, _with_a_tail(sizes, factor))
    for more in (2, 0):  # halves of an axis, or groups, or axes that are joined
        yield _with(subject, case, {size: factor * size + more for size in sizes})
    for size in sizes[-_SINGLE:] if len(sizes) > 1 else ():
        yield _with(subject, case, _with_a_tail([size], factor))


def with_a_long_axis(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Variants in which one size is longer than the blocks of most kernels, and no multiple of any.

    The rows of the first argument are then made longer than the largest blocks.
    """
    sizes = _sizes(subject, case)
    named = [(name, tensor.shape) for name, _, tensor in subject.named_tensors(case.sample)]
    rows = next((shape[-1] for name, shape in named if name in case.varying and shape), 0)
    longer = [{size: LONG} for size in sizes[-_SINGLE:]] + [{size: LONGEST} for size in sizes if size == rows]
    for new in longer:
        if _stays_small(subject, case, new):
            yield _with(subject, case, new)


def sizes_grown(subject: Subject, case: Case, size: int) -> Iterator[tuple[str, Case]]:
    """Variants in which one size is no multiple of a block, and longer than the blocks of most kernels."""
    for new in (*_with_a_tail([size], _FACTORS[3]).values(), LONG):
        if new > size and _stays_small(subject, case, {size: new}):
            yield _with(subject, case, {size: new})


def _stays_small(subject: Subject, case: Case, new: dict[int, int]) -> bool:
    shapes = [tensor.shape for _, _, tensor in subject.named_tensors(case.sample)]
    return max(math.prod([new.get(size, size) for size in shape]) for shape in shapes) <= _MOST


def one_larger(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Variants in which one size is larger by one, a table's too: indices keep their values, so they stay within.

    What comes of it may be another function than the author has in mind, so only calls of the same variant compare.
    """
    tensors = [tensor for _, _, tensor in subject.named_tensors(case.sample)]
    for size in sorted({size for tensor in tensors for size in tensor.shape} - fixed_by_numbers(case)):
        yield _with(subject, case, {size: size + 1})


def with_equal_sizes(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Variants in which two sizes are one: a square matrix doesn't tell which of its axes is which."""
    sizes = _sizes(subject, case)
    for one, other in list(itertools.combinations(sizes, 2))[:_SINGLE]:
        yield _with(subject, case, {one: other})


def shaped_alike(subject: Subject, case: Case, outputs: Iterable[torch.Tensor]) -> Iterator[tuple[str, Case]]:
    """Variants in which an argument has the shape of an output, by larger sizes: indices stay within their axes."""
    tensors = [tensor for _, _, tensor in subject.named_tensors(case.sample)]
    sizes = {size for tensor in tensors for size in tensor.shape}
    naming = [tensor for tensor in tensors if sizes & named_sizes(tensor)]
    if max((tensor.numel() for tensor in tensors), default=0) > LARGE:
        return
    if not all(taken_one_by_one(subject, case, tensor) for tensor in naming):
        return
    numbers = set(_integers((case.sample.args, dict(case.sample.kwargs))))
    seen: list[dict[int, int]] = [{}]
    for output, tensor in itertools.product(outputs, filter(is_float, tensors)):
        if output.dim() != tensor.dim() or output.dtype is not tensor.dtype or output.numel() > LARGE:
            continue
        pairs = list(zip(output.shape, tensor.shape, strict=True))
        new = {min(pair): max(pair) for pair in pairs if pair[0] != pair[1]}
        alike = all(new.get(one, one) == new.get(other, other) for one, other in pairs)
        if alike and new not in seen and not (numbers | {0, 1}) & new.keys():
            seen.append(new)
            yield _with(subject, case, new)


def one_apart(subject: Subject, case: Case) -> Iterator[tuple[str, Case]]:
    """Variants in which one argument alone has another shape, that forward may broadcast.

    An axis of it is 1, it has no first axis, or one more, or it is a number. Asked only where some sample has arguments
    of several shapes: else nobody thought of broadcasting, and forward takes it by chance.
    """
    shapes = [{t.shape for _, _, t in subject.named_tensors(other.sample) if is_float(t)} for other in subject.cases]
    if all(len(known) < 2 for known in shapes):
        return
    named = [(name, tensor) for name, _, tensor in subject.named_tensors(case.sample) if is_dense(tensor)]
    if len(named) < 2 or not all(is_float(tensor) and tensor.numel() for _, tensor in named):
        return
    for name, original in named[:_APART]:

        def with_it(change: Callable[[torch.Tensor], torch.Tensor], original: torch.Tensor = original) -> Case:
            return _changed(subject, case, lambda tensor: change(tensor), of=original)

        for axis, size in enumerate(original.shape):
            if size != 1:
                cut = with_it(lambda tensor, axis=axis: tensor.narrow(axis, 0, 1))  # type: ignore[misc]  # it is bound
                yield f"axis {axis} of {name} of size 1", cut
        if original.dim():
            yield f"{name} as a number", with_it(lambda tensor: tensor.reshape(-1)[0])
        if original.dim() > 1:
            yield f"{name} without its first axis", with_it(lambda tensor: tensor[0])
        yield f"another axis in front of {name}", with_it(lambda tensor: torch.stack([tensor, tensor]))


def stacked(subject: Subject, case: Case) -> Case:
    """The case with another axis in front of each tensor."""
    return _changed(subject, case, lambda tensor: torch.stack([tensor, tensor]))


def fixed_by_numbers(case: Case) -> set[int]:
    """The sizes that an integer among the arguments repeats, and those that stand for themselves."""
    return {0, 1} | set(_integers((case.sample.args, dict(case.sample.kwargs))))


def _sizes(subject: Subject, case: Case) -> list[int]:
    """The sizes that may be made larger; none in a sample that is large as it is."""
    tensors = [tensor for _, _, tensor in subject.named_tensors(case.sample)]
    fixed = fixed_by_numbers(case)
    for tensor in tensors:
        if not is_dense(tensor) or not (is_float(tensor) or tensor.dtype is torch.bool):
            fixed.update(tensor.shape)
            fixed.update(named_sizes(tensor))
    sizes = sorted({size for tensor in tensors for size in tensor.shape} - fixed)
    return sizes if sizes and max(tensor.numel() for tensor in tensors) <= LARGE else []


def _with_a_tail(sizes: list[int], factor: int) -> dict[int, int]:
    """Larger sizes, no two alike, of which 4 leaves 3 elements over: one alone may lie where a gradient is 0."""
    new: dict[int, int] = {}
    for size in sizes:
        larger = factor * size + 1
        larger += -(larger + 1) % 4
        while larger in new.values():
            larger += 4
        new[size] = larger
    return new


def _with(subject: Subject, case: Case, new: dict[int, int]) -> tuple[str, Case]:
    label = "larger sizes (" + ", ".join(f"{old} made {size}" for old, size in new.items()) + ")"

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        for axis, old in enumerate(tensor.shape):
            if old in new:
                places = torch.arange(new[old], device=tensor.device)
                floats = is_float(tensor) or tensor.dtype is torch.bool
                places = places % old if floats else places * old // new[old]  # what is sorted stays so
                tensor = tensor.index_select(axis, places)
        return tensor

    return label, _changed(subject, case, resize)


def _changed(
    subject: Subject,
    case: Case,
    change: Callable[[torch.Tensor], torch.Tensor],
    *,
    of: torch.Tensor | None = None,
) -> Case:
    """The case with each dense tensor changed, or one of them, and its numbers moved apart where they may be."""

    def made(tensor: torch.Tensor) -> torch.Tensor:
        if not is_dense(tensor) or (of is not None and tensor is not of):
            return tensor
        larger = change(tensor.detach()).clone()
        wanted = case.may_vary("values") and tensor.numel() and larger.shape != tensor.shape
        return _jittered(subject, larger) if wanted and is_float(tensor) else larger

    return replace(case, sample=with_tensors(case.sample, made))


def _jittered(subject: Subject, tensor: torch.Tensor) -> torch.Tensor:
    """Every number moved by about a twentieth: repeated ones would tie. Masks of zeros and ones stay.

    Symmetric matrices stay symmetric.
    """
    numbers = flat(tensor)
    if bool(((numbers == 0) | (numbers == 1)).all()):
        return tensor
    noise = normals(numbers.numel(), subject.random).to(numbers.device).clamp(-2, 2)
    moved = unflat(numbers * (1 + 0.05 * noise) + 0.005 * size_of(tensor) * noise, tensor)
    return (moved + moved.mT) / 2 if is_symmetric(tensor) else moved


def _factor(tensors: list[torch.Tensor], sizes: list[int]) -> int:
    """The least even factor that makes a tensor of more elements than a block; the largest of all where none does."""
    for factor in _FACTORS:
        for tensor in tensors:
            count = 1
            for size in tensor.shape:
                count *= factor * size + 1 if size in sizes else size
            if count > BLOCK:
                return factor
    return _FACTORS[-1]


def _integers(nest: object) -> Iterator[int]:
    if isinstance(nest, int):
        yield int(nest)
    elif isinstance(nest, (tuple, list)):
        for item in nest:
            yield from _integers(item)
    elif isinstance(nest, dict):
        for item in nest.values():
            yield from _integers(item)


def named_sizes(tensor: torch.Tensor) -> set[int]:
    """The sizes that an index tensor may be made of: bounds of segments are places in an axis, lengths add up to one.

    Plain indices are none: they stay within an axis that grows. Nor have sparse tensors any.
    """
    if not is_dense(tensor) or tensor.dim() != 1 or is_float(tensor) or tensor.dtype is torch.bool:
        return set()
    values = [int(value) for value in tensor.detach()[:LARGE].tolist()]
    bounds = values if values == sorted(values) else []
    return {*bounds, sum(values)}
