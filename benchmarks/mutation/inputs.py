"""The arguments that a mutant and its original are compared on: values, layouts, shapes, dtypes.

An `Input` is made from a sample of the original's, by rules of this file alone. The original itself says which ones
are fit: those whose forward it refuses, or for which it returns NaN, are left out by `observe`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.mutation.nests import exchanged, is_float, tensors


@dataclass(frozen=True, eq=False)
class Input:
    """Arguments of one call.

    Attributes:
        label: What is special about them.
        nest: ``(args, kwargs)``, whose tensors nothing else holds.
        generic: Whether the values lie anywhere. At others (zeros, ties, what the author chose) there may be a kink,
            where several gradients are right: there only values, raising and NaN are compared.
        wanted: The indices of the tensors to differentiate by.
        thorough: Whether to try everything with them, not only values and first gradients.
    """

    label: str
    nest: tuple[tuple[Any, ...], dict[str, Any]]
    generic: bool
    wanted: tuple[int, ...]
    thorough: bool = False

    @functools.cached_property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The dtypes of the arguments that aren't integers: the lowest says how well any result can be known."""
        return frozenset(tensor.dtype for tensor in tensors(self.nest) if is_float(tensor))

    def fresh(self) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], list[Tensor]]:
        """A copy with layouts kept, and its tensors in order; those that are wanted require grad."""
        made: list[Tensor] = []

        def copied(tensor: Tensor) -> Tensor:
            twin = _copied(tensor)
            if len(made) in self.wanted:
                twin.requires_grad_()
            made.append(twin)
            return twin

        nest = exchanged(self.nest, copied)
        found = list(tensors(nest))  # of a module, the parameters themselves
        for index, tensor in enumerate(found):
            tensor.requires_grad_(index in self.wanted)
        return nest, found


def _copied(tensor: Tensor) -> Tensor:
    """A copy with the strides, the offset and the room around it."""
    if tensor.layout is not torch.strided:
        return tensor.detach().clone()
    detached = tensor.detach()
    room = detached.untyped_storage().nbytes() // detached.element_size()
    flat = torch.as_strided(detached, (room,), (1,), 0).clone()
    return torch.as_strided(flat, detached.shape, detached.stride(), detached.storage_offset())


Swap = Callable[[Tensor, int], Tensor]


OWN = "the author's own"
"""The label of a sample as it is."""

FIRST = "jittered"
"""The label of the first input of each sample whose values lie anywhere."""


def inputs(sample: Any, seed: int, *, few: bool = False) -> Iterator[Input]:
    """Everything that one sample is tried with; the first are the likeliest to show a fault.

    Args:
        sample: A tuple of arguments, or a `pullback.Sample`.
        seed: Repeats the draws.
        few: Leave out other shapes, and layouts and dtypes of one tensor alone: for the later of many samples.
    """
    nest = (tuple(getattr(sample, "args", sample)), dict(getattr(sample, "kwargs", {})))
    vary = getattr(sample, "vary", ("shape", "layout", "dtype", "values"))
    generator = torch.Generator().manual_seed(seed)
    flat = list(tensors(nest))
    floats = [index for index, tensor in enumerate(flat) if is_float(tensor) and tensor.layout is torch.strided]
    wanted = tuple(index for index in floats if flat[index].requires_grad) or tuple(floats)

    def made(
        label: str, swap: Swap, *, generic: bool = True, by: tuple[int, ...] = wanted, all_: bool = False
    ) -> Input:
        counter = iter(range(len(flat)))
        with torch.no_grad():
            changed = exchanged(nest, lambda tensor: swap(tensor.detach(), next(counter)))
        return Input(label, changed, generic, by, all_)

    def jittered(tensor: Tensor, _: int) -> Tensor:
        return _jittered(tensor, generator)

    def normal(tensor: Tensor, _: int) -> Tensor:
        return torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator) if _drawn(tensor) else tensor.clone()

    yield made(OWN, lambda tensor, _: tensor.clone(), generic=False, all_=True)
    yield made(FIRST, jittered, all_=True)
    yield made("normal", normal, all_=True)
    yield made("jittered again", jittered)
    yield made("wide", lambda tensor, i: normal(tensor, i) * 3 if _drawn(tensor) else tensor.clone())
    for label, number in (("zeros", 0.0), ("ones", 1.0), ("large", 300.0), ("tiny", 1e-5)):
        fill = _filled(number)
        yield made(label, fill, generic=False)
    for index in floats:
        yield made(f"zeros for {index}", _only(index, _filled(0.0), jittered), generic=False)
    yield from _subsets(made, jittered, floats, wanted)
    alone = [] if few else floats
    if "layout" in vary:
        yield from _layouts(made, jittered, alone)
    if "shape" in vary and not few:
        yield from _shapes(made, jittered, flat, generator)
    if "dtype" in vary:
        yield from _dtypes(made, jittered, alone)


def _drawn(tensor: Tensor) -> bool:
    return is_float(tensor) and tensor.layout is torch.strided


def _jittered(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not _drawn(tensor):
        return tensor.clone()
    noise = torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
    return torch.where(tensor.isnan(), noise.abs(), tensor * (1 + 0.1 * noise) + 0.01 * noise)


def _filled(number: float) -> Swap:
    return lambda tensor, _: torch.full_like(tensor, number) if _drawn(tensor) else tensor.clone()


def _only(index: int, one: Swap, others: Swap) -> Swap:
    return lambda tensor, i: one(tensor, i) if i == index else others(tensor, i)


def _subsets(made: Any, values: Swap, floats: list[int], wanted: tuple[int, ...]) -> Iterator[Input]:
    """One argument alone, and all but one."""
    subsets = [(index,) for index in floats] + [tuple(i for i in wanted if i != index) for index in wanted]
    for by in dict.fromkeys(subset for subset in subsets if subset and subset != wanted):
        yield made(f"by {by}", values, by=by)
    yield made("by none", values, by=())


def _layouts(made: Any, values: Swap, floats: list[int]) -> Iterator[Input]:
    """Other strides for all tensors, and for one at a time."""
    for label, layout in LAYOUTS.items():

        def laid_out(tensor: Tensor, index: int, layout: Callable[[Tensor], Tensor] = layout) -> Tensor:
            tensor = values(tensor, index)
            return layout(tensor) if tensor.layout is torch.strided else tensor

        yield made(label, laid_out, generic=label != "expanded", all_=label == "transposed")
        for index in floats if len(floats) > 1 else ():
            yield made(f"{label} {index}", _only(index, laid_out, values), generic=label != "expanded")


def _transposed(tensor: Tensor) -> Tensor:
    axes = tuple(reversed(range(tensor.dim())))
    return tensor.permute(axes).contiguous().permute(axes)


def _sliced(tensor: Tensor) -> Tensor:
    room = torch.stack([tensor, torch.zeros_like(tensor) + 7], -1) if tensor.dim() else tensor.repeat(3)[1:2]
    return room[..., 0] if tensor.dim() else room[0]


def _offset(tensor: Tensor) -> Tensor:
    room = torch.cat([torch.full((3,), 5, dtype=tensor.dtype), tensor.reshape(-1)])
    return room[3:].view(tensor.shape)


def _expanded(tensor: Tensor) -> Tensor:
    return tensor[:1].expand_as(tensor) if tensor.dim() and tensor.shape[0] else tensor


def _rows_apart(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, torch.zeros_like(tensor[..., :1]) + 6], -1)[..., :-1] if tensor.dim() else tensor.clone()


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else _transposed(tensor)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": _transposed,
    "sliced": _sliced,
    "offset": _offset,
    "expanded": _expanded,
    "channels last": _channels_last,
    "rows apart": _rows_apart,
}
"""The same values in another arrangement of memory; expanded ones are equal along the first axis."""


def _shapes(made: Any, values: Swap, flat: list[Tensor], generator: torch.Generator) -> Iterator[Input]:
    """Other sizes of one axis wherever it occurs; axes of length 1, missing and additional ones for one tensor."""

    def sized(tensor: Tensor, old: int, new: int) -> Tensor:
        for axis, size in enumerate(tensor.shape):
            if size == old:
                tensor = tensor.index_select(axis, torch.arange(new) % max(old, 1))
        return _jittered(tensor, generator)

    strided = [index for index, tensor in enumerate(flat) if tensor.layout is torch.strided]
    for old in sorted({size for index in strided for size in flat[index].shape if size}):
        for new in (1, old + 1, 2 * old, 0):
            if new != old:
                yield made(f"{old} becomes {new}", lambda t, i, old=old, new=new: sized(t, old, new))
    for index in strided if len(strided) > 1 else ():
        for axis, size in enumerate(flat[index].shape):
            if size != 1:
                one = _only(
                    index,
                    lambda t, _, axis=axis: _jittered(t.narrow(axis, 0, min(1, t.shape[axis])), generator),
                    values,
                )
                yield made(f"axis {axis} of {index} becomes 1", one)
        if flat[index].dim():
            yield made(f"{index} without its first axis", _only(index, lambda t, _: _jittered(t[0], generator), values))
        more = _only(index, lambda t, _: _jittered(torch.stack([t, t]), generator), values)
        yield made(f"{index} with another axis", more)
    for index in strided:
        scalar = _only(index, lambda t, _: _jittered(t.reshape(-1)[:1].reshape(()), generator), values)
        yield made(f"{index} as a number", scalar)
    yield made("all with another axis", lambda t, _: _jittered(torch.stack([t, t]), generator))


def _dtypes(made: Any, values: Swap, floats: list[int]) -> Iterator[Input]:
    """Lower dtypes for all tensors, and for one of several; and complex numbers."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.complex128):

        def converted(tensor: Tensor, index: int, dtype: torch.dtype = dtype) -> Tensor:
            tensor = values(tensor, index)
            if not tensor.is_floating_point() or tensor.layout is not torch.strided:
                return tensor
            return torch.complex(tensor, values(tensor, index)) if dtype.is_complex else tensor.to(dtype)

        yield made(str(dtype).removeprefix("torch."), converted, all_=True)
        for index in floats if len(floats) > 1 and dtype in (torch.float32, torch.bfloat16) else ():
            yield made(f"{dtype} for {index}", _only(index, converted, values))
