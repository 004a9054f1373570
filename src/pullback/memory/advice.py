"""What would free memory: for pieces that the graph keeps, the operation of pullback's that does without them.

NOTE [bytes that are sure]: a line names bytes only where the graph shows that they would go and that nothing comes in
their place, or how much does. So each pattern asks who else keeps the piece and who else reads what it is made of, and
where one doesn't match in full there is no line.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pullback.memory.cheap import MASK, Recomputed, base_name, source
from pullback.memory.graph import Edge, Graph, Kept
from pullback.memory.modules import Modules, common
from pullback.torch_private import leaf_behind, sequence_number

TABLE: Mapping[tuple[str, ...], str] = {
    ("Silu", "Mul"): "ops.swiglu",
    ("Gelu", "Mul"): "ops.geglu",
    ("Pow", "Mean", "Rsqrt", "Mul"): "ops.rms_norm",
    ("Mul", "Add"): "ops.dropout_add",
    ("NativeDropout", "Add"): "ops.dropout_add",
    ("Relu",): "ops.clipped_relu",
    ("Hardtanh",): "ops.clipped_relu",
    ("Clamp",): "ops.clipped_relu",
    ("Mm", "LogSoftmax", "NllLoss"): 'ops.linear_cross_entropy(form="recompute")',
    ("Addmm", "LogSoftmax", "NllLoss"): 'ops.linear_cross_entropy(form="recompute")',
    ("LogSoftmax", "NllLoss"): "ops.cross_entropy",
}
"""By the operations, in the order of forward and without ``Backward0``: what does the same and keeps less."""

RECOMPUTE = "pullback.recompute"
_KEY = 16
"""The bytes that dropout_add keeps in a mask's place."""

_STATE = torch.get_rng_state().nbytes
"""Those of the random state that each call of recompute keeps."""


class Advice(NamedTuple):
    """One thing that could be done.

    Attributes:
        use: What to use: ``ops.swiglu``, ``pullback.recompute``.
        instead_of: For which operations.
        module: The path of the module that runs them; empty outside of modules.
        bytes: What it frees at the least.
    """

    use: str
    instead_of: tuple[str, ...]
    module: str
    bytes: int

    def __str__(self) -> str:
        place = self.module or "the code outside of modules"
        if self.use == RECOMPUTE:
            return f"{RECOMPUTE} around {', '.join(self.instead_of)} and what reads that, in {place}"
        return f"{self.use} for {', '.join(self.instead_of)} in {place}"


class Advisor:
    """Collects what could be done, from one piece of memory after another.

    Args:
        graph: The graph.
        recomputed: What is cheap in it.
        modules: What ran when.
    """

    def __init__(self, graph: Graph, recomputed: Recomputed, modules: Modules) -> None:
        self._followers = graph.followers
        self._recomputed = recomputed
        self._modules = modules
        self._found: list[Advice] = []

    def add(self, kept: Sequence[Kept], storage: int, size: int, recompute: str) -> None:
        """Look at one piece.

        Args:
            kept: The tensors in it.
            storage: The identity of its storage.
            size: Its bytes.
            recompute: How it is cheap to compute again; empty where it isn't.
        """
        if any(one.how != "saved" for one in kept):
            return
        nodes = list(dict.fromkeys(one.node for one in kept))
        found = next(self._all_of(kept, nodes, storage, size, recompute), None)
        if found is not None and found[0] > 0:
            freed, names = found
            self._found.append(Advice(TABLE[tuple(names)], tuple(names), self._module(nodes), freed))
        elif recompute and recompute != MASK and size > _STATE:
            edge = next(one.edge for one in kept if one.edge is not None)
            steps = self._recomputed.steps(edge)
            names = tuple(dict.fromkeys(map(base_name, steps)))
            self._found.append(Advice(RECOMPUTE, names, self._module([*steps, *nodes]), size - _STATE))

    def advice(self) -> list[Advice]:
        """What was found, most bytes first; one for each kind in each module."""
        sums: dict[tuple[str, tuple[str, ...], str], int] = {}
        for use, names, module, count in self._found:
            sums[use, names, module] = sums.get((use, names, module), 0) + count
        found = [Advice(*key, count) for key, count in sums.items()]
        return sorted(found, key=lambda one: -one.bytes)

    def _all_of(
        self, kept: Sequence[Kept], nodes: Sequence[Any], storage: int, size: int, recompute: str
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """What matches: the bytes that would be freed, and a key of `TABLE`."""
        if len(nodes) == 1:
            if recompute == MASK and self._recomputed.added(nodes[0]):
                yield size - _KEY, (base_name(nodes[0]), "Add")
            if len(kept) == 1:
                for pattern in (self._gate, self._norm, self._clip):
                    yield from pattern(kept[0], storage, size)
        yield from self._loss(kept, nodes, storage, size)

    def _gate(self, one: Kept, _: int, size: int) -> Iterator[tuple[int, Sequence[str]]]:
        """The activation of a gate, kept for the product that alone reads it; the gate stays, and so does up."""
        if base_name(one.node) != "Mul" or one.edge is None:
            return
        made = one.edge[0]
        if base_name(made) in ("Silu", "Gelu") and self._alone(made, one.node):
            yield size, (base_name(made), "Mul")

    def _norm(self, one: Kept, storage: int, size: int) -> Iterator[tuple[int, Sequence[str]]]:
        """x times the reciprocal of its root mean square, kept for the product with a weight; x is kept beside it."""
        product = one.edge[0] if one.edge is not None else None
        if base_name(one.node) != "Mul" or product is None or base_name(product) != "Mul":
            return
        if not self._alone(product, one.node) or not any(leaf_behind(edge[0]) is not None for edge in _edges(one.node)):
            return
        edges = _edges(product)
        if len(edges) != 2:
            return
        for x, root in (edges, edges[::-1]):
            square = _chain(root, ("Rsqrt", "Add", "Mean", "Pow"))
            if square is not None and source(square) == source(x) and self._recomputed.keeps(x, storage):
                yield size, ("Pow", "Mean", "Rsqrt", "Mul")

    def _clip(self, one: Kept, _: int, size: int) -> Iterator[tuple[int, Sequence[str]]]:
        """What relu and clamp keep, where nothing else does; one bit an element comes in its place."""
        name = base_name(one.node)
        floor = {
            "Relu": 0 if one.argument == "result" else None,
            "Hardtanh": getattr(one.node, "_saved_min_val", None),
            "Clamp": getattr(one.node, "_saved_min", None),
        }.get(name)
        if floor is not None and not isinstance(floor, Tensor) and floor == 0:
            yield size - (one.tensor.numel() + 7) // 8, (name,)

    def _loss(
        self, kept: Sequence[Kept], nodes: Sequence[Any], storage: int, size: int
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """The logarithms of probabilities, kept for cross entropy alone; a number for each token comes in their place.

        Where a linear layer made the logits, and nothing keeps them, that is so without the layer's output alone.
        """
        if [base_name(node) for node in nodes] != ["LogSoftmax", "NllLoss"] or not self._alone(*nodes):
            return
        tensor = kept[0].tensor
        if tensor.dim() != 2 or getattr(nodes[0], "_saved_dim", -1) not in (1, 2**64 - 1, -1):
            return
        left = tensor.shape[0] * max(4, tensor.element_size())
        logits = source(nodes[0].next_functions[0])
        if self._recomputed.keeps(logits, storage):
            yield size - left, ("LogSoftmax", "NllLoss")
        elif base_name(logits[0]) in ("Mm", "Addmm") and any(_is_weight(edge) for edge in _edges(logits[0])):
            yield size - left, (base_name(logits[0]), "LogSoftmax", "NllLoss")

    def _alone(self, node: Any, follower: Any) -> bool:
        """Whether `follower` is all that reads what a node gave out."""
        return set(self._followers.get(node, ())) == {follower}

    def _module(self, nodes: Sequence[Any]) -> str:
        """The innermost module that all of these nodes were made in."""
        return functools.reduce(common, (self._modules.at(sequence_number(node))[0] for node in nodes))


def _edges(node: Any) -> list[Edge]:
    return [edge for edge in node.next_functions if edge[0] is not None]


def _chain(edge: Edge, names: Sequence[str]) -> Edge | None:
    """The first edge of the last of some operations, each of which has the next as its only argument with a graph."""
    for name in names:
        edges = _edges(edge[0])
        if base_name(edge[0]) != name or len(edges) != 1:
            return None
        edge = edges[0]
    return edge


def _is_weight(edge: Edge) -> bool:
    """Whether this is a leaf of two axes, turned round as `nn.Linear` does."""
    leaf = leaf_behind(source(edge)[0])
    return leaf is not None and leaf.dim() == 2
