"""Nests: containers with tensors in them, taken apart into leaves and put together again.

PyTorch's pytree registry says what is a container: lists, tuples, dicts and whatever was registered beside them. A
module is a nest of its parameters. A container without a tensor that counts is a leaf, and goes through as it is.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from pullback.call.module_nests import parameters_of, with_parameters
from pullback.define.cached import cached_property
from pullback.torch_private import pytree_nodes

Counts = Callable[[Tensor], bool]
"""Whether a tensor is worth taking its container apart for."""

_VALUES = frozenset(
    (
        *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    )
)

PLAIN_TYPES = _VALUES | {Parameter}
"""Types of arguments that are no containers, known without a look at the registry."""

_ITEMS = (list, tuple)
_PLAIN = (str, int, bool, type)

_DICTS = (dict, OrderedDict, defaultdict)


@dataclass(frozen=True)
class Nest:
    """A container without its leaves; two are equal if leaves of one fit the other.

    Attributes:
        kind: Its class.
        parts: For each thing that it holds: None for a leaf, or the nest.
        names: The keys of a dict, the names of a module's parameters; None where things have no names.
        labels: How to write each of `parts` behind the container's own name: ``[0]``, ``['w']``, ``.weight``.
        key: What else tells it apart, such as a dict's keys; of a module the further names of tied parameters, each
            with the first one.
        context: The same as the registry gave it.
        make: Puts it together from its parts and `context`; None for a module.
    """

    kind: type
    parts: tuple[Nest | None, ...]
    names: tuple[Any, ...] | None
    labels: tuple[str, ...] = field(compare=False)
    key: Any
    context: Any = field(compare=False)
    make: Callable[[list[Any], Any], Any] | None = field(compare=False)

    @property
    def is_module(self) -> bool:
        """Whether it is a module; the first leaf is the module itself, then come the parameters."""
        return self.make is None

    @cached_property
    def size(self) -> int:
        """The number of its leaves."""
        return sum(1 if part is None else part.size for part in self.parts)

    @property
    def spreads(self) -> bool:
        """Whether its parts are outputs of their own, as those of a returned tuple are."""
        return issubclass(self.kind, tuple)

    def paths(self, name: str) -> Iterator[str]:
        """The name of each leaf, for a nest called `name`."""
        for part, label in zip(self.parts, self.labels, strict=True):
            if part is None:
                yield name + label
            else:
                yield from part.paths(name + label)

    def direct(self) -> Iterator[bool]:
        """For each leaf whether it lies in no container within this one."""
        for part in self.parts:
            yield from (True,) if part is None else (False,) * part.size

    def seen(self) -> Iterator[bool]:
        """For each leaf whether it is one to the author too, which a module itself, beside its parameters, isn't."""
        for index, part in enumerate(self.parts):
            if part is None:
                yield not (self.is_module and index == 0)
            else:
                yield from part.seen()

    def rebuilt(self, leaves: Iterator[Any], *, values: bool = False) -> Any:
        """The container with these leaves.

        Args:
            leaves: As many as it has, or more.
            values: Whether the leaves belong to those of an argument, such as gradients: a module is then a dict of
                them by the parameters' names.
        """
        parts = [next(leaves) if part is None else part.rebuilt(leaves, values=values) for part in self.parts]
        if self.make is not None:
            return self.make(parts, self.context)
        assert self.names is not None
        module, *parameters = parts
        named = dict(zip(self.names, parameters, strict=True))
        return named if values else with_parameters(module, named)


def taken_apart(value: Any, counts: Counts, *, modules: bool = True) -> tuple[Nest, list[Any]] | None:
    """The nest that `value` is and its leaves in order; None if it is none, or if no tensor in it counts."""
    try:
        return _taken_apart(value, counts, modules)
    except RecursionError:  # it contains itself; no gradient could be given for that
        return None


def any_tensor(tensor: Tensor) -> bool:
    """Count any tensor."""
    return True


def may_be_nest(value: Any) -> bool:
    """Whether an argument is a container that may hold a tensor, as far as a glance tells."""
    kind = type(value)
    if kind is tuple or kind is list:  # such as the size of a kernel
        for entry in value:
            if type(entry) not in _VALUES:
                return True
        return False
    return is_container(kind)


def is_container(kind: type) -> bool:
    """Whether an object of this class may be a nest."""
    return kind not in PLAIN_TYPES and (_registered(kind) is not None or issubclass(kind, Module))


def _taken_apart(value: Any, counts: Counts, modules: bool) -> tuple[Nest, list[Any]] | None:
    kind = type(value)
    if kind in PLAIN_TYPES or isinstance(value, Tensor):
        return None
    registered = _registered(kind)
    if registered is None:
        return _module_apart(value, counts) if modules and isinstance(value, Module) else None
    children, context = registered.flatten_fn(value)
    parts: list[Nest | None] = []
    leaves: list[Any] = []
    found = False
    for child in children:
        if isinstance(child, Tensor):
            found = found or counts(child)
            inner = None
        else:
            inner = _taken_apart(child, counts, modules)
        if inner is None:
            parts.append(None)
            leaves.append(child)
        else:
            found = True
            parts.append(inner[0])
            leaves += inner[1]
    if not found:
        return None
    names, labels = _named(value, registered, children)
    return Nest(kind, tuple(parts), names, labels, _hashable(context), context, registered.unflatten_fn), leaves


def _module_apart(module: Module, counts: Counts) -> tuple[Nest, list[Any]] | None:
    named, ties = parameters_of(module)
    if not any(counts(parameter) for parameter in named.values()):
        return None
    names = tuple(named)
    labels = ("", *(f".{name}" for name in names))
    nest = Nest(type(module), (None,) * len(labels), names, labels, ties, None, None)
    return nest, [module, *named.values()]


def _registered(kind: type) -> Any:
    """What PyTorch knows of containers of this class; None for one that it doesn't know."""
    known = pytree_nodes.get(kind)
    if known is None and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return pytree_nodes.get(_NAMED_TUPLE)
    return known


def _named_tuple_entry() -> Any:
    """What named tuples are registered under: a function, as they have no class in common."""
    return next((kind for kind in pytree_nodes if not isinstance(kind, type)), None)


_NAMED_TUPLE = _named_tuple_entry()


def _named(value: Any, registered: Any, children: Any) -> tuple[tuple[Any, ...] | None, tuple[str, ...]]:
    """The keys of what `value` holds, if it has keys, and how to write each of them."""
    known = type(value) in _DICTS  # of which it need not be asked, as Dynamo can't say of tuples whether they're one
    if known or (
        isinstance(value, Mapping) and len(value) == len(children) and all(map(is_, value.values(), children))
    ):
        keys = tuple(value)
        return keys, tuple([f"[{key!r}]" for key in keys])
    if isinstance(value, Sequence) or registered.flatten_with_keys_fn is None:
        return None, tuple([f"[{index}]" for index in range(len(children))])
    return None, tuple([str(key) for key, _ in registered.flatten_with_keys_fn(value)[0]])


def _hashable(context: Any) -> Any:
    """`context` as a key of a table; something equal to nothing else where it can't be one."""
    if isinstance(context, (list, tuple)) and type(context) in _ITEMS:
        return tuple([_hashable(entry) for entry in context])
    if isinstance(context, dict):
        return tuple([(_hashable(key), _hashable(entry)) for key, entry in context.items()])
    if context is None or type(context) in _PLAIN:  # said without hash, which Dynamo hasn't always followed
        return context
    try:
        hash(context)
    except TypeError:
        return object()
    return context
