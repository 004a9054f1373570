"""States of autocast to call under, and a Function that writes down which of them its methods see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.autocast.functions import autocast

REGIONS = {
    "bfloat16": lambda: autocast(torch.bfloat16),
    "float16": lambda: autocast(torch.float16),
    "off": lambda: autocast(enabled=False),
}

forward_under = pytest.mark.parametrize("forward_under", REGIONS)
backward_under = pytest.mark.parametrize("backward_under", REGIONS)


def state() -> tuple[bool, torch.dtype]:
    """Return whether autocast is on here, and what a product of float32 matrices comes out in."""
    one = torch.ones(1, 1)
    return torch.is_autocast_enabled("cpu"), (one @ one).dtype


def state_in(region: str) -> tuple[bool, torch.dtype]:
    """Return the state in one of `REGIONS`."""
    with REGIONS[region]():
        return state()


def watching(**declared: Any) -> tuple[Any, list[tuple[str, tuple[bool, torch.dtype]]]]:
    """Define y = x² with all methods, each of which writes down the state that it runs under."""
    seen: list[tuple[str, tuple[bool, torch.dtype]]] = []

    class Square(pullback.Function):
        keep_autocast = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(("forward", state()))
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            seen.append(("backward", state()))
            (x,) = ctx.saved_tensors
            return 2 * x * g

    for name, method in declared.items():
        setattr(Square, name, staticmethod(method))
    return Square, seen
