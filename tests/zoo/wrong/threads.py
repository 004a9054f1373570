"""What two threads share, or only one of them has: one defect a class."""

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class ScratchOnTheClass(Function):
    """Another thread overwrites the scratch memory before it is read."""

    scratch: Tensor

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ScratchOnTheClass.scratch = x.detach() * 2  # expect: PB520
        return ScratchOnTheClass.scratch * x.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * g * x

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


_setting: dict[str, Tensor] = {}


def _by_setting(x: Tensor) -> Tensor:
    return x * _setting["power"]


class CurrentSetting(Function):
    """The helper reads what the last caller set."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        _setting["power"] = x.detach().mean()  # expect: PB520
        return _by_setting(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.mean() + (g * x).sum() / x.numel()

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


_workspace = torch.empty(64, dtype=torch.float64)


class SharedWorkspace(Function):
    """backward writes into one workspace for all calls, and copies it out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        _workspace[: g.numel()] = 3 * g.reshape(-1)  # expect: PB520
        return _workspace[: g.numel()].clone().reshape(g.shape)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


_line = torch.empty(0, dtype=torch.float64)


class OneLine(Function):
    """Between two operators of one line there is time enough."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _line.resize_(x.shape).copy_(x).mul(3)  # expect: PB520

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


_local = threading.local()


class SetUpInForward(Function):
    """What the thread of forward set up, the thread of backward doesn't have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _local.factor = 3.0
        return x * _local.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * _local.factor  # expect: PB520

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class OneAtATime(Function):
    """Refuses a second call while a first one is running."""

    busy = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if OneAtATime.busy:  # expect: PB520
            raise RuntimeError("one call at a time")
        OneAtATime.busy = True
        result = x * 3
        OneAtATime.busy = False
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
