"""From the tensors that the nodes keep to the ledger's entries: each storage once, charged to whoever kept it first.

What has to be read off tensors is read at once, as plain values; the entries are made of it when they are asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pullback.memory.alive import Alive
from pullback.memory.cheap import Recomputed
from pullback.memory.entry import Entry, Holder
from pullback.memory.graph import Graph, Kept
from pullback.memory.modules import Modules
from pullback.memory.storages import UnseenError, extent, is_number, needed_bytes, storages_of

PARAMETER = "parameter"
INPUT = "input"
ACTIVATION = "activation"


class Read(NamedTuple):
    """One storage, as it was read.

    Attributes:
        role: ``parameter``, ``input`` or ``activation``.
        bytes: Its size.
        device: Where it lies.
        pinned: The bytes of it that nobody needs.
        recompute: How to compute it again; empty where it isn't cheap.
        holders: For each node that keeps it what `Holder` takes, in the order of forward.
    """

    role: str
    bytes: int
    device: str
    pinned: int
    recompute: str
    holders: list[tuple[Any, ...]]

    def entry(self) -> Entry:
        """The entry in the ledger."""
        first, *also = dict.fromkeys(Holder(*holder) for holder in self.holders)
        return Entry(self.bytes, first, tuple(also), self.device, self.pinned, self.recompute)


class _Piece(NamedTuple):
    storage: torch.UntypedStorage
    kept: list[Kept]


def account(graph: Graph, modules: Modules, alive: Alive) -> tuple[list[Read], list[str]]:
    """Read what a walk found, and what could not be seen, in sentences.

    Args:
        graph: What it found.
        modules: What ran when.
        alive: What was alive before.
    """
    pieces, places, hidden = _by_storage(graph)
    recomputed = Recomputed(graph.kept, places)
    role = _roles(graph, modules, alive)
    read = [_read(piece, role(identity), modules, recomputed) for identity, piece in pieces.items()]
    return read, [*_opaque(graph), *hidden, *_elsewhere(graph, modules)]


def _by_storage(graph: Graph) -> tuple[dict[int, _Piece], list[int | None], list[str]]:
    """The pieces, for each kept tensor the identity of its storage, and sentences on those that showed none."""
    pieces: dict[int, _Piece] = {}
    places: list[int | None] = []
    hidden: dict[str, int] = {}
    for kept in graph.kept:
        try:
            storages = [] if kept.edge is None and is_number(kept.tensor) else storages_of(kept.tensor)
        except UnseenError as error:
            hidden[str(error)] = hidden.get(str(error), 0) + 1
            storages = []
        # Those of meta tensors, and of the fake ones that a compiler traces with, have a size and no memory.
        storages = [own for own in storages if own.nbytes() and own.device.type != "meta"]
        places.append(id(storages[0]) if storages else None)
        for storage in storages:
            piece = pieces.get(id(storage))
            if piece is None:
                piece = pieces[id(storage)] = _Piece(storage, [])
            piece.kept.append(kept)
    return pieces, places, [f"{count} tensors that don't show their memory: {what}" for what, count in hidden.items()]


def _roles(graph: Graph, modules: Modules, alive: Alive) -> Callable[[int], str]:
    """Tells for the identity of a storage what it is to the step."""
    before = [*alive.storages()]  # held, so that the identities stay theirs
    given = modules.inputs()
    inputs = {id(storage) for storage in (*before, *given)}
    leaves = [leaf for leaf in graph.leaves if _is_parameter(leaf) or not _any_in(leaf, given)]
    kept = [kept.tensor for kept in graph.kept if _is_parameter(kept.tensor)]
    parameters = {id(storage) for tensor in (*modules.own(), *leaves, *kept) for storage in _seen(tensor)}

    def role(identity: int) -> str:
        return PARAMETER if identity in parameters else INPUT if identity in inputs else ACTIVATION

    return role


def _is_parameter(tensor: Tensor) -> bool:
    return issubclass(type(tensor), torch.nn.Parameter)  # isinstance runs Python there, and takes ten times as long


def _any_in(tensor: Tensor, storages: Iterable[torch.UntypedStorage]) -> bool:
    known = {id(storage) for storage in storages}
    return any(id(storage) in known for storage in _seen(tensor))


def _seen(tensor: Tensor) -> list[torch.UntypedStorage]:
    try:
        return storages_of(tensor)
    except UnseenError:
        return []


def _read(piece: _Piece, role: str, modules: Modules, recomputed: Recomputed) -> Read:
    size, tensors = piece.storage.nbytes(), [kept.tensor for kept in piece.kept]
    places = [modules.at(kept.number) for kept in piece.kept]
    needed = [needed_bytes(tensor) for tensor in tensors]
    holders = [
        (kept.operation, kept.argument, path, kept.how, tuple(tensor.shape), _dtype_name(tensor.dtype), count)
        for kept, tensor, (path, _), count in zip(piece.kept, tensors, places, needed, strict=True)
    ]
    if size not in needed:  # only views of it are kept; those of the same part count once
        needed = [*{extent(tensor): count for tensor, count in zip(tensors, needed, strict=True)}.values()]
    recompute = _how(piece, places, recomputed) if role == ACTIVATION else ""
    return Read(role, size, _device_name(tensors[0].device), max(0, size - sum(needed)), recompute, holders)


@functools.cache
def _device_name(device: torch.device) -> str:
    return str(device)


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _how(piece: _Piece, places: Iterable[tuple[str, str]], recomputed: Recomputed) -> str:
    identity = id(piece.storage)
    for kept, (_, kind) in zip(piece.kept, places, strict=True):
        way = recomputed.how(kept, identity, kind)
        if way:
            return way
    return ""


def _opaque(graph: Graph) -> list[str]:
    found = []
    for name, count in graph.opaque.items():
        if name.endswith("CopySlices"):
            found.append(f"in-place writes to a view (CopySlices), {count}: what the write itself saved")
        else:
            found.append(f"nodes {name}, made in C++, {count}: what they keep")
    if graph.freed:
        found.append(f"operations that backward has freed already, {graph.freed}: what they kept")
    return found


def _elsewhere(graph: Graph, modules: Modules) -> list[str]:
    found = []
    compiled = sum(kept.operation.startswith("CompiledFunction") for kept in graph.kept)
    if compiled:
        found.append(
            f"compiled regions (CompiledFunction), which keep {compiled} tensors: for which operations and modules"
        )
    if modules.elsewhere:
        found.append(f"calls of modules in other threads, {modules.elsewhere}: some of what they keep, and their names")
    return found
