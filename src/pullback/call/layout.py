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
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pullback.call.dependence import Dependence, is_smooth
from pullback.call.kept import is_number, leaves_of

ATTRIBUTE = "_pullback"
"""The attribute of ctx that carries a `Call`, for calls that need one."""

AUTOCAST = "_pullback_autocast"
"""The attribute of ctx with the state of autocast that forward ran under, where the class declares keep_autocast."""

CONSTANTS = "_pullback_constants"
"""The attribute of ctx with the identities of the saved tensors that the author declared constants."""

NOT_KEPT = object()
"""Stands in `Call.plain` for a value that wasn't kept, as it may be large and nothing showed that it is needed."""

OUTPUTS = "_pullback_outputs"
"""The attribute of ctx with the nest that forward returned, where it is one."""

UNMATERIALIZED = "_pullback_unmaterialized"
"""The attribute of ctx that says that undefined gradients stay None."""


@dataclass(frozen=True)
class Saved:
    """One entry of ``ctx.saved_tensors``.

    Attributes:
        origin: ``argument``, ``output``, ``intermediate``, ``constant`` (declared so by the author), ``flat`` (an
            intermediate of bool or integers), or ``nothing`` (None).
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
        attributes: For float tensors kept on ctx, by path (``t``, ``cache[0]``): the arguments that they vary with.
        arity: The number of arguments.
        plain: The positions of the arguments that aren't tensors.
        writes: Whether forward changed one of its arguments.
        random: Whether forward drew random numbers.
        read: The arguments that Python numbers, read from tensors, vary with.
    """

    saved: tuple[Saved, ...] = ()
    attributes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    arity: int = 0
    plain: tuple[int, ...] = ()
    writes: bool = False
    random: bool = False
    read: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[object, ...]:
        """What can be compared without watching forward: two calls with the same key have the same layout."""
        return (self.arity, self.plain, tuple((entry.origin, entry.index) for entry in self.saved))

    @property
    def cuts(self) -> bool:
        """Whether forward keeps something that it computed, so that another call like it may be cut off there.

        One call's intermediate may be flat and the next one's not, as a flag or the data steer forward.
        """
        return bool(self.attributes) or any(entry.origin == "intermediate" for entry in self.saved)


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
    declared = len(saved) - constants_among(ctx_attributes, saved)

    def origin(position: int, tensor: Any) -> Saved:
        if tensor is None:
            return Saved("nothing")
        if position >= declared:
            return Saved("constant")
        for index, argument in enumerate(arguments):
            if tensor is argument:
                return Saved("argument", index)
        for index, candidate in enumerate(outputs):
            if tensor is candidate:
                return Saved("output", index, _varies(watched, tensor))
        return Saved("intermediate" if _smooth(tensor) else "flat", -1, _varies(watched, tensor))

    return Layout(
        saved=tuple(origin(position, tensor) for position, tensor in enumerate(saved)),
        attributes=dict(_attributes(ctx_attributes, watched)) if watched else {},
        arity=len(arguments),
        plain=tuple(index for index, argument in enumerate(arguments) if not isinstance(argument, torch.Tensor)),
        writes=writes,
        random=random,
        read=watched.read if watched else frozenset(),
    )


def merged(one: Layout, other: Layout) -> Layout:
    """Of two layouts with the same key: what they left varied with an argument if it did so in either call."""
    if one is other:
        return one
    names = {*one.attributes, *other.attributes}
    nothing: frozenset[int] = frozenset()
    return replace(
        one,
        saved=tuple(
            replace(first, varies_with=_either(first.varies_with, second.varies_with))
            for first, second in zip(one.saved, other.saved, strict=True)
        ),
        attributes={name: one.attributes.get(name, nothing) | other.attributes.get(name, nothing) for name in names},
        writes=one.writes or other.writes,
        random=one.random or other.random,
        read=one.read | other.read,
    )


def _either(one: frozenset[int] | None, other: frozenset[int] | None) -> frozenset[int] | None:
    return None if one is None or other is None else one | other


def constants_among(attributes: Mapping[str, Any], saved: Sequence[Any]) -> int:
    """How many of the saved tensors, counted from the end, were declared constants by the call that saved them."""
    declared: tuple[int, ...] = attributes.get(CONSTANTS, ())
    count = len(declared)
    return count if count and tuple(map(id, saved[-count:])) == declared else 0


def tensors_on(attributes: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors kept on ctx, however deep, each with its path."""
    return ((path, leaf) for path, leaf in _kept(attributes) if isinstance(leaf, torch.Tensor))


def numbers_on(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The numbers and NumPy arrays kept on ctx, however deep, each with its path."""
    return ((path, leaf) for path, leaf in _kept(attributes) if is_number(leaf))


def _kept(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        if name not in (ATTRIBUTE, AUTOCAST, CONSTANTS, OUTPUTS, UNMATERIALIZED):
            yield from leaves_of(name, value)


def _attributes(attributes: Mapping[str, Any], watched: Dependence) -> Iterator[tuple[str, frozenset[int]]]:
    for path, tensor in tensors_on(attributes):
        if is_smooth(tensor):
            yield path, _varies(watched, tensor) or frozenset()


def _varies(watched: Dependence | None, tensor: Any) -> frozenset[int] | None:
    if not _smooth(tensor):
        return frozenset()
    if watched is None:
        return None
    # Nothing that forward computes in no-grad mode requires grad: such a tensor comes from outside, with its own graph.
    captured = tensor.requires_grad and not watched.knows(tensor)
    return frozenset() if captured else watched.of(tensor)


def _smooth(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and is_smooth(tensor)
