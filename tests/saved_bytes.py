"""The bytes that a graph keeps, counted by saved-tensor hooks and by a walk over its nodes: a second opinion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def storage_of(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's memory lies, and how many bytes of it there are."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def on_nodes(outputs: Any) -> Iterator[Tensor]:
    """The tensors that hang on the nodes of Python's Functions, where no hook sees them."""
    seen: set[Any] = set()
    open_ = [leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        open_ += [following for following, _ in node.next_functions]
        if hasattr(node, "_forward_cls") or hasattr(type(node), "_forward_cls"):
            yield from (value for value in tree_leaves(list(vars(node).values())) if isinstance(value, Tensor))


def bytes_kept(run: Callable[[], Any], beside: Iterable[Tensor] = ()) -> int:
    """How many bytes the graph of what `run` returns keeps alive, each storage once, beside those of some tensors."""
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = run()
    packed += on_nodes(outputs)
    known = {storage_of(tensor)[0] for tensor in beside}
    found = dict(storage_of(tensor) for tensor in packed)
    return sum(size for place, size in found.items() if place not in known)
