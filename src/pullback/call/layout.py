"""Where does each thing that forward left for backward come from: an argument, an output, or forward itself?

Learned from one call of a class and compared by identity on later ones (NOTE [layouts]).

NOTE [layouts]: backward gets back the saved tensors, but not their origin. Those that require grad show it by their
place in the graph; for the rest it must be known which are arguments (constants, as they don't require grad) and which
were computed inside forward (cut off). Recording that on each call costs a quarter of forward. So the first call is
watched, and later calls only verify that the same arguments were saved in the same places; a call that differs carries
a layout of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pullback.call.dependence import Dependence

ATTRIBUTE = "_pullback"
"""The attribute of ctx that carries a `Call`, for calls that need one."""

CONSTANTS = "_pullback_constants"
"""The attribute of ctx with the number of saved tensors that the author declared constants."""

UNMATERIALIZED = "_pullback_unmaterialized"
"""The attribute of ctx that says that undefined gradients stay None."""


@dataclass(frozen=True)
class Saved:
    """One entry of ``ctx.saved_tensors``.

    Attributes:
        origin: ``argument``, ``output``, ``intermediate`` or ``constant`` (declared so by the author).
        index: Which argument or output; -1 otherwise.
        varies_with: The arguments that an intermediate varies with, None where that isn't known.
    """

    origin: str
    index: int = -1
    varies_with: frozenset[int] | None = None


@dataclass(frozen=True)
class Layout:
    """What one way to run forward leaves for backward.

    Attributes:
        saved: One entry for each saved tensor.
        attributes: For tensors kept on ctx, by path (``t``, ``cache[0]``): the arguments that they vary with.
        arity: The number of arguments.
        plain: The positions of the arguments that aren't tensors.
        writes: Whether forward changed one of its arguments.
        random: Whether forward drew random numbers.
    """

    saved: tuple[Saved, ...] = ()
    attributes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    arity: int = 0
    plain: tuple[int, ...] = ()
    writes: bool = False
    random: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """What can be compared without watching forward: two calls with the same key have the same layout."""
        return (self.arity, self.plain, tuple((entry.origin, entry.index) for entry in self.saved))

    @property
    def cuts(self) -> bool:
        """Whether something that backward may read is cut off from the graph."""
        hidden = any(entry.origin == "intermediate" and entry.varies_with != frozenset() for entry in self.saved)
        return hidden or any(self.attributes.values())


@dataclass(frozen=True)
class Call:
    """What has to be remembered of one call to run forward, or its reference, again.

    Attributes:
        layout: The call's layout.
        plain: The values of the arguments that aren't tensors, in order of `Layout.plain`.
        rng: The state of the random number generators before forward, None where forward drew none.
    """

    layout: Layout
    plain: tuple[Any, ...] = ()
    rng: Any = None


def read_layout(
    ctx_attributes: Mapping[str, Any],
    saved: Sequence[Any],
    arguments: Sequence[Any],
    output: Any,
    watched: Dependence | None = None,
    *,
    writes: bool = False,
    random: bool = False,
) -> Layout:
    """Tell where each tensor left for backward comes from; `watched` knows what intermediates vary with."""
    outputs = output if isinstance(output, tuple) else (output,)
    declared = len(saved) - ctx_attributes.get(CONSTANTS, 0)

    def origin(position: int, tensor: Any) -> Saved:
        if position >= declared:
            return Saved("constant")
        for index, argument in enumerate(arguments):
            if tensor is argument:
                return Saved("argument", index)
        for index, candidate in enumerate(outputs):
            if tensor is candidate:
                return Saved("output", index, _varies(watched, tensor))
        return Saved("intermediate", -1, _varies(watched, tensor))

    return Layout(
        saved=tuple(origin(position, tensor) for position, tensor in enumerate(saved)),
        attributes={path: _varies(watched, tensor) or frozenset() for path, tensor in tensors_on(ctx_attributes)}
        if watched
        else {},
        arity=len(arguments),
        plain=tuple(index for index, argument in enumerate(arguments) if not isinstance(argument, torch.Tensor)),
        writes=writes,
        random=random,
    )


def tensors_on(attributes: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors kept on ctx, in lists, tuples and dicts too, each with its path."""
    for name, value in attributes.items():
        if name not in (ATTRIBUTE, CONSTANTS, UNMATERIALIZED):
            yield from _leaves(name, value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}[{index}]", item)
    elif type(value) is dict:
        for key, item in value.items():
            yield from _leaves(f"{path}[{key!r}]", item)


def _varies(watched: Dependence | None, tensor: Any) -> frozenset[int] | None:
    if not isinstance(tensor, torch.Tensor):
        return frozenset()
    return None if watched is None else watched.of(tensor)
