"""The most bytes that a call holds at once, of what it made itself: every storage from its birth to its death."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Living(TorchDispatchMode):
    """Follows the storages of all that operations return, but for those that were there before."""

    def __init__(self, before: list[Tensor]) -> None:
        super().__init__()
        self._before = {tensor.untyped_storage().data_ptr() for tensor in before}
        self._living: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and look at what lives after it."""
        result = func(*args, **(kwargs or {}))
        self.calls.append(func.overloadpacket.__name__)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in self._before:
                storage = leaf.untyped_storage()
                self._living[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        self._living = {place: entry for place, entry in self._living.items() if not entry[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._living.values()))
        return result


def most_alive(run: Callable[[], Any], before: list[Tensor]) -> int:
    """The most bytes alive at once in a call, beside the storages of `before`."""
    with _Living(before) as living:
        run()
    return living.most


def calls_of(run: Callable[[], Any]) -> list[str]:
    """The names of the operations that a call runs, in order."""
    with _Living([]) as living:
        run()
    return living.calls


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal numbers that require grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()
