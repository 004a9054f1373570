"""Fresh copies of a sample's arguments: a check makes thousands, so what they have in common is found out once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from pullback.battery.case import Inputs, Leaf
from pullback.battery.leaves import copy_of, fills_storage, has_plain_memory, is_float, replace, symmetrised
from pullback.battery.samples import Sample

_PLAIN = (torch.Tensor, bool, int, float, complex, str, type(None))
"""Arguments that hold no other tensors, or are one."""

Names = Collection[str]
"""Those of the leaves that require grad."""

Change = Callable[[str, torch.Tensor], torch.Tensor]
"""Makes another tensor of one that was copied, which goes by a name."""


@dataclass(frozen=True, eq=False)
class _Distinct:
    """One distinct tensor among the arguments.

    Attributes:
        name: The first place where it is passed.
        argument: The parameter that holds it.
        tensor: The tensor itself.
        also: The other places.
        alone: Whether it is all of its storage, in order, and shares that with no other: then a clone is a copy.
    """

    name: str
    argument: str
    tensor: torch.Tensor
    also: tuple[str, ...]
    alone: bool


class Template:
    """What copies of a sample are made by.

    Args:
        sample: The arguments; whoever uses the template holds them.
        named: Path, parameter and tensor for each tensor among them.

    Attributes:
        named: The same.
    """

    def __init__(self, sample: Sample, named: Iterable[tuple[str, str, torch.Tensor]]) -> None:
        self.named = tuple(named)
        self._nested = bool(sample.kwargs) or not all(isinstance(value, _PLAIN) for value in sample.args)

    @cached_property
    def _distinct(self) -> tuple[_Distinct, ...]:
        """Found when copies are first made: of what is refused before, none can be."""
        return tuple(_distinct(self.named))

    def copies(
        self,
        sample: Sample,
        wanted: Collection[str],
        change: Change | None = None,
        *,
        non_leaves: bool = False,
        symmetric: Collection[str] = (),
    ) -> Inputs:
        """Copies that keep strides, dtypes and which tensors are the same one.

        Args:
            sample: The sample.
            wanted: The names of the leaves that require grad.
            change: Makes another tensor of each copied one: a layout, a dtype, other values.
            non_leaves: Whether what requires grad is passed as a non-leaf, to which a Function may write.
            symmetric: The names of those that stay symmetric, whatever is made of them.
        """
        storages: dict[int, torch.UntypedStorage] = {}
        passed: dict[int, torch.Tensor] = {}
        leaves: list[Leaf] = []
        for entry in self._distinct:
            # A clone that nothing was made of has no graph, and is nobody's view: it needs no further detaching.
            copy = entry.tensor.detach().clone() if entry.alone else copy_of(entry.tensor, storages)
            if change is not None:
                copy = change(entry.name, copy).detach()
            elif not entry.alone:
                copy = copy.detach()
            if entry.name in symmetric:
                copy = symmetrised(copy)
            if entry.name in wanted and is_float(copy):
                copy.requires_grad_()
            leaves.append(Leaf(entry.name, copy, entry.argument, entry.also))
            passed[id(entry.tensor)] = _as_non_leaf(copy) if non_leaves and copy.requires_grad else copy
        if self._nested:
            return _replaced(sample, passed, tuple(leaves))
        return Inputs(tuple([passed.get(id(value), value) for value in sample.args]), {}, tuple(leaves))


def _distinct(named: Sequence[tuple[str, str, torch.Tensor]]) -> Iterator[_Distinct]:
    places: dict[int, list[str]] = {}
    for name, _, tensor in named:
        places.setdefault(id(tensor), []).append(name)
    tensors = {id(tensor): tensor for _, _, tensor in named}.values()
    memory = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors if has_plain_memory(tensor))
    for name, argument, tensor in named:
        first, *also = places[id(tensor)]
        if name == first:
            alone = fills_storage(tensor) and memory[tensor.untyped_storage().data_ptr()] == 1
            yield _Distinct(name, argument, tensor, tuple(also), alone)


def _replaced(sample: Sample, passed: dict[int, torch.Tensor], leaves: tuple[Leaf, ...]) -> Inputs:
    """The arguments where one of them is a nest, or goes by keyword."""

    def swap(tensor: torch.Tensor) -> torch.Tensor:
        return passed[id(tensor)]

    args = tuple(
        passed.get(id(value), value) if isinstance(value, _PLAIN) else replace(value, swap) for value in sample.args
    )
    kwargs: dict[str, Any] = replace(dict(sample.kwargs), swap) if sample.kwargs else {}
    return Inputs(args, kwargs, leaves)


def _as_non_leaf(leaf: torch.Tensor) -> torch.Tensor:
    """The leaf's values in a non-leaf of the same strides, so that a Function may write to it."""
    plain = leaf.clone()  # whose backward takes sparse gradients, too
    if leaf.layout is not torch.strided or plain.stride() == leaf.stride():
        return plain
    copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    try:
        return copy.copy_(leaf)
    except RuntimeError:  # elements of an expanded tensor share memory
        return plain
