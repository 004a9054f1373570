"""A walk over the graph: every tensor that its nodes keep, by which operation and under which name.

NOTE [no hooks]: the walk reads what nodes show of themselves. Saved-tensor hooks around the block would tell less: they
know no node, see nothing that lies on ctx, hide behind the hooks of checkpoint and offloading, and turn every call of a
Function into a slower one. So while the block runs, nothing is done for a node at all.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from pullback.memory.entry import CLOSURE, CTX, HOOK, SAVED
from pullback.memory.held import functions_of, tensors_in
from pullback.memory.modules import Modules, common
from pullback.memory.names import function_name, saved_names
from pullback.memory.packing import argument_of, packed, packer
from pullback.memory.storages import bare
from pullback.torch_private import (
    author_of,
    leaf_behind,
    raw_names,
    saved_data,
    sequence_number,
    unpack_hook_of,
)

LAST = 2**64 - 1
"""The number of nodes that stand outside the order: those that accumulate into a leaf."""

Edge = tuple[Any, int]
"""A place in the graph: a node, and which of its outputs."""


class Kept(NamedTuple):  # hundreds are made at the end of a block, and a tuple is the cheapest thing to make
    """One tensor that one node keeps.

    Attributes:
        node: The node.
        number: Its number, in the order in which nodes were made.
        operation: The name of its operation.
        argument: What the tensor is to it.
        how: ``saved``, ``hook``, ``ctx`` or ``closure``.
        tensor: The tensor.
        edge: Where in the graph the tensor was computed; None where it wasn't, or that isn't known.
        call: What a checkpoint or recompute runs again, which keeps the tensor for that; else empty.
        module: The path of the module that it belongs to; None for that which was running at `number`.
    """

    node: Any
    number: int
    operation: str
    argument: str
    how: str
    tensor: Tensor
    edge: Edge | None = None
    call: str = ""
    module: str | None = None


class _Hook(NamedTuple):
    """A hook that packs, and the nodes with the lowest and with the highest number of those that it packs for."""

    hook: Any
    first: Any
    last: Any


@dataclass
class Graph:
    """What a walk found.

    Attributes:
        kept: The tensors, in the order of forward.
        leaves: The leaves that gradients flow to.
        opaque: How many nodes there are, by name, that don't show what they keep.
        freed: How many nodes backward has freed.
        followers: For each node those that take in what it gave out.
    """

    kept: list[Kept] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    opaque: collections.Counter[str] = field(default_factory=collections.Counter)
    freed: int = 0
    followers: dict[Any, list[Any]] = field(default_factory=dict)


def walk(roots: Iterable[Any], modules: Modules) -> Graph:
    """Read every node behind some others.

    Args:
        roots: The nodes.
        modules: What ran when. Nodes made before its `begin`, and what is behind them, are left out.
    """
    return _Walk(modules).run(roots)


class _Walk:
    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self.begin = modules.begin
        self.graph = Graph()
        self.seen: set[Any] = set()  # holds the nodes too: a saved variable dangles without its node
        self.searched: set[Any] = set()
        self.hooks: dict[int, _Hook] = {}
        self.open: list[Any] = []
        self.names: dict[type, list[tuple[str, str]]] = {}

    def run(self, roots: Iterable[Any]) -> Graph:
        self.open += roots
        while self.open or self.hooks:
            if not self.open:
                self._of_hooks()
                continue
            node = self.open.pop()
            if node is None or node in self.seen:
                continue
            self.seen.add(node)
            number = sequence_number(node)
            if number == LAST:
                leaf = leaf_behind(node)
                if leaf is not None:
                    self.graph.leaves.append(leaf)
                continue
            if number < self.begin:
                continue
            for following, _ in node.next_functions:
                if following is not None:
                    self.open.append(following)
                    self.graph.followers.setdefault(following, []).append(node)
            try:
                if isinstance(node, BackwardCFunction):
                    self._of_function(node, number)
                else:
                    self._of_operation(node, number)
            except RuntimeError as error:  # the words of PyTorch for what backward has freed
                if "second time" not in str(error):
                    raise
                self.graph.freed += 1
        # What a hook keeps for a whole call goes before what the first operation in the call keeps.
        self.graph.kept.sort(key=lambda kept: (kept.number, not kept.call))
        return self.graph

    def _of_operation(self, node: Any, number: int) -> None:
        kind = type(node)
        names = self.names.get(kind)
        if names is None:
            names = self.names[kind] = [(name, name.removeprefix("_raw_saved_")) for name in raw_names(kind)]
        if not names and _is_opaque(kind, node):
            self.graph.opaque[node.name()] += 1
        for name, argument in names:
            value = getattr(node, name)
            if isinstance(value, tuple):
                for index, raw in enumerate(value):
                    self._of_raw(node, number, kind.__name__, f"{argument}[{index}]", raw)
            elif value is not None:
                self._of_raw(node, number, kind.__name__, argument, value)

    def _of_function(self, node: Any, number: int) -> None:
        cls = author_of(node)
        if cls is not None and cls.__module__.startswith("pullback.torch_probes"):
            return  # pullback tries torch out in a thread of its own, maybe within the block
        operation = function_name(node)
        # ctx first: what backward has freed can't be asked for, while what lies on ctx is still there.
        for name, value in vars(node).items():
            label = "pullback" if name.startswith("_pullback") else f"ctx.{name}"
            self._of_object(node, number, operation, value, label, CTX)
        if cls is not None and cls not in self.searched:
            self.searched.add(cls)
            for name, function in functions_of(cls):
                if function.__closure__:
                    self._of_object(node, number, operation, function, name, CLOSURE)
        raws = node._raw_saved_tensors
        for raw, argument in zip(raws, saved_names(node, raws), strict=True):
            self._of_raw(node, number, operation, argument, raw)

    def _of_raw(self, node: Any, number: int, operation: str, argument: str, raw: Any) -> None:
        hook, data = unpack_hook_of(raw), saved_data(raw)
        if hook is None:
            if isinstance(data, Tensor):
                edge = self._follow(data) or _of_output(node, argument)
                self.graph.kept.append(Kept(node, number, operation, argument, SAVED, bare(data), edge))
            return
        self._of_object(node, number, operation, packed(hook, data), argument, HOOK)
        # One hook packs all that is saved within a checkpoint: what it holds is kept once, for all of the call.
        if id(hook) not in self.searched:
            known = self.hooks.get(id(hook))
            if known is None:
                self.hooks[id(hook)] = _Hook(hook, node, node)
            elif number < sequence_number(known.first):
                self.hooks[id(hook)] = known._replace(first=node)
            elif number > sequence_number(known.last):
                self.hooks[id(hook)] = known._replace(last=node)

    def _of_hooks(self) -> None:
        hooks, self.hooks = self.hooks, {}
        for hook, first, last in hooks.values():
            self.searched.add(id(hook))
            number = sequence_number(first)
            operation, call, module = packer(hook, self.modules.path)
            if module is None and call:
                module = common(self.modules.at(number)[0], self.modules.at(sequence_number(last))[0])
            for path, tensor in tensors_in(hook, ""):
                argument, edge = argument_of(hook, path), self._follow(tensor)
                kept = Kept(first, number, operation, argument, HOOK, bare(tensor), edge, call, module)
                self.graph.kept.append(kept)

    def _of_object(self, node: Any, number: int, operation: str, value: Any, label: str, how: str) -> None:
        for path, tensor in tensors_in(value, label):
            kind = CLOSURE if how == CTX and _is_function(value) else how
            edge = self._follow(tensor)
            self.graph.kept.append(Kept(node, number, operation, path.lstrip("."), kind, bare(tensor), edge))

    def _follow(self, tensor: Tensor) -> Edge | None:
        """Where a kept tensor was computed; it keeps the graph behind it, which needn't be that of its node."""
        node = tensor.grad_fn
        if node is None:
            return None
        self.open.append(node)
        return node, tensor.output_nr


def _of_output(node: Any, argument: str) -> Edge | None:
    """The edge of a node's own output, which PyTorch keeps cut off from the graph: ``result``, ``result1``."""
    if not argument.startswith(("result", "output")):
        return None
    number = argument[len("result") :] or "0"
    return (node, int(number)) if number.isdigit() else None


def _is_opaque(kind: type, node: Any) -> bool:
    # PyTorch makes one class for each of its derivatives; what it has none for, such as C++ extensions, shows nothing.
    return kind.__name__ in ("CppFunction", "CopySlices") or node.name().startswith("torch::autograd::CppNode")


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, torch.nn.Module)
