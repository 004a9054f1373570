"""From the tensors that the nodes keep to the ledger's entries: each storage once, charged to whoever kept it first.

What has to be read off tensors is read at once, as plain values; the entries are made of it when they are asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pullback.memory.advice import Advice, Advisor
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


class Account(NamedTuple):
    """What came of a graph.

    Attributes:
        read: Each storage.
        advice: What would free some of them.
        unseen: What could not be seen, in sentences.
    """

    read: list[Read]
    advice: list[Advice]
    unseen: list[str]


def account(graph: Graph, modules: Modules, alive: Alive) -> Account:
    """Read what a walk found, and what could not be seen, in sentences.

    Args:
        graph: What it found.
        modules: What ran when.
        alive: What was alive before.
    """
    pieces, places, hidden = _by_storage(graph)
    recomputed = Recomputed(graph, places)
    role = _roles(graph, modules, alive)
    read, advisor = [], Advisor(graph, recomputed, modules)
    for identity, piece in pieces.items():
        kinds = [modules.at(kept.number)[1] for kept in piece.kept]
        kind = role(identity)
        recompute = recomputed.how(piece.kept, identity, kinds) if kind == ACTIVATION else ""
        read.append(_read(piece, kind, modules, recompute))
        if kind == ACTIVATION:
            advisor.add(piece.kept, identity, piece.storage.nbytes(), recompute)
    return Account(read, advisor.advice(), [*_opaque(graph), *hidden, *_elsewhere(graph, modules), *alive.missed()])


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
    return (
        pieces,
        places,
        [
            f"{_count(count, 'tensor')} of the kind {what}: such a tensor doesn't show its memory."
            for what, count in hidden.items()
        ],
    )


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


def _read(piece: _Piece, role: str, modules: Modules, recompute: str) -> Read:
    size, tensors = piece.storage.nbytes(), [kept.tensor for kept in piece.kept]
    needed = [needed_bytes(tensor) for tensor in tensors]
    holders = [
        (
            *(kept.operation, kept.argument, modules.at(kept.number)[0] if kept.module is None else kept.module),
            *(kept.how, tuple(tensor.shape), _dtype_name(tensor.dtype), count, kept.call),
        )
        for kept, tensor, count in zip(piece.kept, tensors, needed, strict=True)
    ]
    if size not in needed:  # only views of it are kept; those of the same part count once
        needed = [*{extent(tensor): count for tensor, count in zip(tensors, needed, strict=True)}.values()]
    return Read(role, size, _device_name(tensors[0].device), max(0, size - sum(needed)), recompute, holders)


@functools.cache
def _device_name(device: torch.device) -> str:
    return str(device)


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _opaque(graph: Graph) -> list[str]:
    found = []
    for name, count in graph.opaque.items():
        if name.endswith("CopySlices"):
            writes = _count(count, "in-place write")
            found.append(f"{writes} to a view (CopySlices): what the write itself saved doesn't show.")
        else:
            found.append(f"{_count(count, 'node')} made in C++ ({name}): what such a node keeps doesn't show.")
    if graph.freed:
        found.append(f"{_count(graph.freed, 'operation')} that backward has freed: what they kept is gone.")
    return found


def _elsewhere(graph: Graph, modules: Modules) -> list[str]:
    found = []
    compiled = sum(kept.operation.startswith("CompiledFunction") for kept in graph.kept)
    if compiled:
        found.append(
            f"Compiled code keeps {_count(compiled, 'tensor')}, counted as CompiledFunction's: which operations and "
            "modules in it need them doesn't show."
        )
    if modules.elsewhere:
        found.append(
            f"{_count(modules.elsewhere, 'call')} of modules in other threads: they aren't named, and some of what "
            "they keep may be missing."
        )
    if modules.transformed:
        found.append(
            f"{_count(modules.transformed, 'call')} of modules inside torch.func: what torch.func keeps for its own "
            "derivatives is counted only as far as it is alive, and without wrappers, at the end of the block."
        )
    if modules.unnoted:
        found.append(
            f"{_count(modules.unnoted, 'call')} of modules with arguments that can't be looked through: what they were "
            "given may stand among the entries, not among the inputs."
        )
    return found


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"
