"""Nests of tensors, taken apart and put together again; a module is a nest of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from torch import Tensor

from pullback.call.nests import Nest, any_tensor, taken_apart


@dataclass(frozen=True)
class Shape:
    """A nest without its leaves.

    Attributes:
        nest: Its structure; None for a single leaf.
        tensors: For each leaf whether it is a tensor.
    """

    nest: Nest | None
    tensors: tuple[bool, ...]

    def leaves(self, tensors: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """All leaves in order."""
        rest, more = iter(tensors), iter(others)
        return [next(rest) if is_tensor else next(more) for is_tensor in self.tensors]

    def only_tensors(self, leaves: Sequence[Any]) -> list[Any]:
        """Those of `leaves` that stand where the nest has tensors."""
        return [leaf for leaf, is_tensor in zip(leaves, self.tensors, strict=True) if is_tensor]


def apart(nest: Any) -> tuple[list[Tensor], list[Any], Shape]:
    """The tensors of `nest`, its other leaves, and what is left without them."""
    found = taken_apart(nest, any_tensor)
    structure, leaves = (None, [nest]) if found is None else found
    flags = tuple(isinstance(leaf, Tensor) for leaf in leaves)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return tensors, [leaf for leaf in leaves if not isinstance(leaf, Tensor)], Shape(structure, flags)


def together(tensors: Sequence[Any], others: Sequence[Any], shape: Shape, *, values: bool = False) -> Any:
    """The nest that `apart` took apart, with others in the place of its leaves.

    Args:
        tensors: What stands in the place of its tensors.
        others: What stands in the place of its other leaves.
        shape: The rest of it.
        values: Whether these are tangents or gradients: a module is then a dict of them by parameter name.
    """
    leaves = shape.leaves(tensors, others)
    return leaves[0] if shape.nest is None else shape.nest.rebuilt(iter(leaves), values=values)


def spread(tensors: Sequence[Any], shape: Shape) -> Any:
    """A nest of tangents or gradients, with None for each leaf that isn't a tensor."""
    return together(tensors, list(repeat(None, len(shape.tensors) - len(tensors))), shape, values=True)


def mapped(function: Callable[[Tensor], Any], nest: Any) -> Any:
    """`nest` with what `function` makes of each tensor in it; modules stay as they are."""
    if isinstance(nest, Tensor):
        return function(nest)
    found = taken_apart(nest, any_tensor, modules=False)
    if found is None:
        return nest
    structure, leaves = found
    return structure.rebuilt(iter([function(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]))


def tensors_of(nest: Any, *, modules: bool = True) -> list[Tensor]:
    """The tensors of a nest, with or without the parameters of modules in it."""
    found = taken_apart(nest, any_tensor, modules=modules)
    leaves = [nest] if found is None else found[1]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
