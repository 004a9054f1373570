"""Right Functions that share memory between calls with care: a finding about one of them is a false alarm."""

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


_lock = threading.Lock()
_scratch: dict[str, Tensor] = {}


class LockedScratch(Function):
    """The lock is held from the first use of the scratch memory to the last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        with _lock:
            _scratch["x"] = x.detach() * 2
            return _scratch["x"] * x.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * g * x

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


_own = threading.local()


class ScratchOfTheThread(Function):
    """Each thread has its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        _own.scratch = x.detach() * 2
        return _own.scratch * x.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * g * x

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


_table: dict[int, Tensor] = {}


class TableOfConstants(Function):
    """Whoever fills the table first fills it with the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n = x.shape[-1]
        if n not in _table:
            _table[n] = torch.linspace(1.0, 2.0, n, dtype=torch.float64)
        ctx.save_for_backward(_table[n])
        return x * _table[n]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return g * weights

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
