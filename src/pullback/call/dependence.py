"""Which arguments does a tensor that forward computed vary with, smoothly? Watched once, while forward runs.

An intermediate that varies with no argument that requires grad is a constant as far as derivatives go: a dropout mask,
a comparison cast to float, a copy of an argument that doesn't require grad. Whatever else forward saves is cut off from
the graph and has to be connected again before a second derivative is right.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pullback.torch_private import TorchDispatchMode, tree_leaves

# Operations whose result has the shape of their argument and none of its values.
_SHAPE_ONLY = frozenset(
    f"aten::{name}"
    for name in ("zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full").split()
)


class Dependence(TorchDispatchMode):
    """While active, follows each argument's values through the operations that forward runs.

    It follows storages, so views and in-place writes are seen; it errs to the side of too much. A tensor that no
    operation made (NumPy, a kernel), or that a kernel may have filled behind PyTorch's back (``empty``), is taken to
    vary with every argument.

    Args:
        arguments: The arguments of forward, in order.
    """

    supports_higher_order_operators = True

    def __init__(self, arguments: Sequence[Any]) -> None:
        super().__init__()
        self._everything = frozenset(range(len(arguments)))
        # Storages by identity, held weakly: forward's memory is freed as it would be, and a storage that comes to lie
        # where a dead one lay isn't taken for it.
        self._sources: dict[int, tuple[weakref.ref[torch.UntypedStorage], frozenset[int]]] = {}
        for index, argument in enumerate(arguments):
            for tensor in _tensors(argument):
                self._mark(tensor, self._known(tensor, frozenset()) | {index} if _smooth(tensor) else frozenset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and give its results the sources of its arguments."""
        kwargs = kwargs or {}
        name = getattr(getattr(func, "_schema", None), "name", "")
        given = list(_tensors((args, kwargs)))
        sources: frozenset[int] = frozenset()
        if "empty" in name:
            sources = self._everything
        elif name not in _SHAPE_ONLY:
            sources = sources.union(*(self.of(tensor) for tensor in given))
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            # A bool or integer result is flat almost everywhere: what is made from it doesn't vary smoothly.
            self._mark(tensor, self._known(tensor, frozenset()) | sources if _smooth(tensor) else frozenset())
        return result

    def of(self, tensor: torch.Tensor) -> frozenset[int]:
        """The indices of the arguments that `tensor` varies with smoothly; all of them where that isn't known."""
        return self._known(tensor, self._everything) if _smooth(tensor) else frozenset()

    def _known(self, tensor: torch.Tensor, otherwise: frozenset[int]) -> frozenset[int]:
        storage = _storage(tensor)
        if storage is None:
            return self._everything
        alive, sources = self._sources.get(id(storage), (None, otherwise))
        return sources if alive is not None and alive() is storage else otherwise

    def _mark(self, tensor: torch.Tensor, sources: frozenset[int]) -> None:
        storage = _storage(tensor)
        if storage is not None:
            self._sources[id(storage)] = (weakref.ref(storage), sources)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of `tensor`; None for sparse and other tensors that have none."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def _smooth(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _tensors(nest: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.Tensor))
