"""A walk over the graph: every tensor that its nodes keep, by which operation and under which name.

NOTE [no hooks]: the walk reads what nodes show of themselves. Saved-tensor hooks around the block would tell less: they
know no node, see nothing that lies on ctx, hide behind the hooks of checkpoint and offloading, and turn every call of a
Function into a slower one. So while the block runs, nothing is done for a node at all.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from pullback.memory.entry import CLOSURE, CTX, HOOK, SAVED
from pullback.memory.held import functions_of, tensors_in
from pullback.memory.names import function_name, hook_name, saved_names
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
    """

    node: Any
    number: int
    operation: str
    argument: str
    how: str
    tensor: Tensor
    edge: Edge | None = None


@dataclass
class Graph:
    """What a walk found.

    Attributes:
        kept: The tensors, in the order of forward.
        leaves: The leaves that gradients flow to.
        opaque: How many nodes there are, by name, that don't show what they keep.
        freed: How many nodes backward has freed.
    """

    kept: list[Kept] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    opaque: collections.Counter[str] = field(default_factory=collections.Counter)
    freed: int = 0


def walk(roots: Iterable[Tensor], begin: int) -> Graph:
    """Read every node behind some tensors.

    Args:
        roots: The tensors.
        begin: The number of the first node that counts: those made before it, and what is behind them, are left out.
    """
    return _Walk(begin).run(roots)


class _Walk:
    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.graph = Graph()
        self.seen: set[Any] = set()  # holds the nodes too: a saved variable dangles without its node
        self.searched: set[Any] = set()
        self.hooks: dict[int, tuple[int, Any, Any]] = {}
        self.open: list[Any] = []
        self.names: dict[type, list[tuple[str, str]]] = {}

    def run(self, roots: Iterable[Tensor]) -> Graph:
        self.open += [root.grad_fn for root in roots]
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
            self.open += [following for following, _ in node.next_functions]
            try:
                if isinstance(node, BackwardCFunction):
                    self._of_function(node, number)
                else:
                    self._of_operation(node, number)
            except RuntimeError as error:  # the words of PyTorch for what backward has freed
                if "second time" not in str(error):
                    raise
                self.graph.freed += 1
        self.graph.kept.sort(key=operator.attrgetter("number"))
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
        operation = function_name(node)
        # ctx first: what backward has freed can't be asked for, while what lies on ctx is still there.
        for name, value in vars(node).items():
            label = "pullback" if name.startswith("_pullback") else f"ctx.{name}"
            self._of_object(node, number, operation, value, label, CTX)
        cls = author_of(node)
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
                self.graph.kept.append(Kept(node, number, operation, argument, SAVED, data, edge))
            return
        self._of_object(node, number, operation, data, argument, HOOK)
        # One hook packs all that is saved within a checkpoint: what it holds is charged to the first operation there.
        if id(hook) not in self.searched and number <= self.hooks.get(id(hook), (number,))[0]:
            self.hooks[id(hook)] = number, node, hook

    def _of_hooks(self) -> None:
        hooks, self.hooks = self.hooks, {}
        for number, node, hook in hooks.values():
            self.searched.add(id(hook))
            self._of_object(node, number, hook_name(hook), hook, "", HOOK)

    def _of_object(self, node: Any, number: int, operation: str, value: Any, label: str, how: str) -> None:
        for path, tensor in tensors_in(value, label):
            kind = CLOSURE if how == CTX and _is_function(value) else how
            edge = self._follow(tensor)
            self.graph.kept.append(Kept(node, number, operation, path.lstrip("."), kind, tensor, edge))

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
