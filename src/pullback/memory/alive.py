"""Which tensors are alive? Asked of the garbage collector, which knows of all that Python can reach.

NOTE [what is alive]: no hook tells which graphs outlive the block, and no walk reaches a graph without knowing a tensor
of it. The garbage collector tracks every tensor that Python has seen. What was alive before the block is remembered
weakly, by tensor and by storage, since a tensor object may die while a view of it lives on. For the end, only objects
made since then have to be looked through: they are in the younger generations, and before a collection moves them on to
the oldest one, it calls back.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from pullback.torch_private import sequence_number

_UNSEEN = (RuntimeError, NotImplementedError, TypeError)  # what a tensor without a storage of its own says to that


class Alive:
    """The tensors that are alive when it is made, remembered weakly."""

    def __init__(self) -> None:
        objects = gc.get_objects()
        found = _among(objects)
        self._held = {id(node): number for node, number in _nodes(objects)}
        del objects
        self._frozen = gc.get_freeze_count()
        self._storages = [weakref.ref(storage) for tensor in found for storage in _one_storage(tensor)]
        self._graphs = {id(tensor): number for tensor in found if (number := _number(tensor)) is not None}
        self._tensors = {id(tensor): weakref.ref(tensor) for tensor in found}
        self._watching = sys.version_info < (3, 14)  # whose collector has other generations
        if self._watching:
            gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """Remember no more tensors; to be called once in any case."""
        if self._watching:
            gc.callbacks.remove(self._collecting)

    def take(self) -> None:
        """Take what is alive now, and was not computed in a graph, for alive then."""
        found = [tensor for tensor in self.now() if tensor.grad_fn is None]
        self._storages = [weakref.ref(storage) for tensor in found for storage in _one_storage(tensor)]

    def storages(self) -> Iterator[torch.UntypedStorage]:
        """The storages that were alive then and still are."""
        return (storage for reference in self._storages if (storage := reference()) is not None)

    def roots(self) -> Iterator[Any]:
        """The nodes that are alive now, of tensors that didn't have them then, or held as such.

        A gradient that can be differentiated has one, though Python may never have seen it.
        """
        # A node keeps its graph without any tensor: that of a GradientEdge, or a grad_fn in a variable. First, since to
        # ask a tensor for its node makes one more object to look through.
        for node, number in _nodes(gc.get_objects()):
            if self._held.get(id(node)) != number:
                yield node
        for tensor in self.now():
            if tensor.grad_fn is None:
                gradient = tensor.grad if tensor.requires_grad else None
                if gradient is not None and gradient.grad_fn is not None:
                    yield gradient.grad_fn
            elif self._graphs.get(id(tensor)) != _number(tensor):
                yield tensor.grad_fn

    def missed(self) -> list[str]:
        """What kept it from seeing all tensors, in sentences."""
        if gc.get_freeze_count() > self._frozen:
            return ["gc.freeze() in the block: it hides tensors made before it, and graphs that they alone hold."]
        return []

    def now(self) -> list[Tensor]:
        """The tensors that are alive now."""
        if not self._watching:
            return _among(gc.get_objects())
        self._remember_young()
        return [tensor for reference in self._tensors.values() if (tensor := reference()) is not None]

    def _collecting(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start" and info["generation"]:
            self._remember_young()

    def _remember_young(self) -> None:
        # One that has the identity of one that died takes its place.
        # Not a list of both in one expression: that is among the objects itself, and would hold itself for ever.
        young = gc.get_objects(generation=0)
        young += gc.get_objects(generation=1)
        self._tensors.update({id(tensor): weakref.ref(tensor) for tensor in _among(young)})


def _among(objects: list[object]) -> list[Tensor]:
    kinds = _kinds()
    return [thing for thing in objects if type(thing) in kinds]  # type: ignore[misc]  # a look-up narrows no type


def _kinds() -> set[type]:
    """Tensor and the classes derived from it. isinstance would run code of objects that only seem to be tensors."""
    found: set[type] = set()
    open_: list[type] = [Tensor]
    while open_:
        kind = open_.pop()
        if kind not in found:
            found.add(kind)
            open_ += type.__subclasses__(kind)
    return found


def _nodes(objects: list[object]) -> list[tuple[Any, int]]:
    """The nodes among some objects, each with its number."""
    kinds = {kind for kind in set(map(type, objects)) if _is_of_nodes(kind)}
    found = []
    for thing in objects if kinds else ():
        if type(thing) in kinds:
            try:
                found.append((thing, sequence_number(thing)))
            except RuntimeError:  # a ctx whose node is gone
                continue
    return found


def _is_of_nodes(kind: type) -> bool:
    """Whether objects of a class are nodes: each of PyTorch's derivatives has a class of its own, without a base."""
    return "next_functions" in kind.__dict__ or BackwardCFunction in kind.__mro__


def _number(tensor: Tensor) -> int | None:
    node = tensor.grad_fn
    return None if node is None else sequence_number(node)


def _one_storage(tensor: Tensor) -> list[torch.UntypedStorage]:
    try:
        return [tensor.untyped_storage()]
    except _UNSEEN:
        return []
