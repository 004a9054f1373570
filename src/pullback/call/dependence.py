"""Which arguments does a tensor that forward computed vary with, smoothly? Watched once, while forward runs.

An intermediate that varies with no argument that requires grad is a constant as far as derivatives go: a dropout mask,
a comparison cast to float, a copy of an argument that doesn't require grad. Whatever else forward saves is cut off from
the graph and has to be connected again before a second derivative is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pullback.torch_private import TorchDispatchMode, storage_key, tree_leaves

# Operations whose result has the shape of their argument and none of its values.
_SHAPE_ONLY = frozenset(
    f"aten::{name}"
    for name in (
        "zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full "
        "empty_like new_empty new_empty_strided"
    ).split()
)


class Dependence(TorchDispatchMode):
    """While active, follows each argument's values through the operations that forward runs.

    It follows storages, so views and in-place writes are seen; it errs to the side of too much. A tensor that no
    operation made (NumPy, a kernel), or that a kernel may have filled behind PyTorch's back (``empty``), is taken to
    vary with every argument.

    Args:
        arguments: The arguments of forward, in order.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        super().__init__()
        self._everything = frozenset(range(len(arguments)))
        self._sources: dict[int, frozenset[int]] = {}
        self._alive: list[torch.Tensor] = []
        for index, argument in enumerate(arguments):
            for tensor in _tensors(argument):
                self._mark(
                    tensor, self._known(tensor, frozenset()) | {index} if tensor.is_floating_point() else frozenset()
                )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and give its results the sources of its arguments."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name
        sources: frozenset[int] = frozenset()
        if name not in _SHAPE_ONLY:
            sources = sources.union(*(self.of(tensor) for tensor in _tensors((args, kwargs))))
        if "::empty" in name or "empty" in name:
            sources = self._everything
        for tensor in _tensors(result):
            smooth = tensor.is_floating_point() or tensor.is_complex()
            # A bool or integer result is flat almost everywhere: what is made from it doesn't vary smoothly.
            self._mark(tensor, self._known(tensor, frozenset()) | sources if smooth else frozenset())
        return result

    def of(self, tensor: torch.Tensor) -> frozenset[int]:
        """The indices of the arguments that `tensor` varies with smoothly; all of them where that isn't known."""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return frozenset()
        return self._known(tensor, self._everything)

    def _known(self, tensor: torch.Tensor, otherwise: frozenset[int]) -> frozenset[int]:
        try:
            return self._sources.get(storage_key(tensor), otherwise)
        except (RuntimeError, NotImplementedError):  # sparse and other tensors without a storage
            return self._everything

    def _mark(self, tensor: torch.Tensor, sources: frozenset[int]) -> None:
        try:
            self._sources[storage_key(tensor)] = sources
        except (RuntimeError, NotImplementedError):
            return
        self._alive.append(tensor)  # or its storage's number could be given to another one


def _tensors(nest: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.Tensor))
