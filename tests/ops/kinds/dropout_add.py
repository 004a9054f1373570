"""Dropout and a residual: many dropped, few, none, all, and without training. The formula hashes with Python's ints."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.ops.dropout_add import dropout_add
from tests.ops.kinds import Kind, normal
from tests.ops.runs import SEED

WORD = (1 << 32) - 1


def last(x: int) -> int:
    """The second half of triple32, without its last shift."""
    x ^= x >> 11
    x = x * 0xAC4C1B51 & WORD
    x ^= x >> 15
    return x * 0x31848BAB & WORD


def mix(x: int) -> int:
    """triple32."""
    x ^= x >> 17
    x = last(x * 0xED5AD4BB & WORD)
    return x ^ x >> 14


def kept(key: Sequence[int], count: int, p: float) -> list[bool]:
    """Whether each element is kept, one at a time."""
    low, high = [number & WORD for number in key], [number >> 32 & WORD for number in key]
    found = []
    for element in range(count):
        row, column = divmod(element, 1 << 16)
        start = mix(mix(row ^ low[1]) ^ high[1])
        multiplier = mix(mix(row ^ high[1]) ^ high[0]) | 1
        word = mix(mix(column ^ low[0]) ^ high[0]) ^ start
        number = last(word * multiplier & WORD)
        signed = number - (number >> 31 << 32)
        found.append(signed + (1 << 31) >= round(p * (1 << 32)))
    return found


@functools.cache
def seeded_key() -> tuple[int, int]:
    """The key that is drawn first after the tests' seed."""
    generator = torch.Generator().manual_seed(SEED)
    first, second = torch.randint(-(1 << 63), (1 << 63) - 1, (2,), generator=generator).tolist()
    return first, second


def formula(input: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """PyTorch's operations on the mask of that key; a constant, so it is the same under each transform."""
    if not training or p == 0:
        return input + residual
    if p == 1:
        return input * 0 + residual
    mask = torch.tensor(kept(seeded_key(), input.numel(), p), dtype=input.dtype).view(input.shape)
    return input * mask / (1 - p) + residual


def nothing() -> Tensor:
    """A batch of no elements."""
    return torch.zeros(0, 4).double().requires_grad_()


def kind(name: str, *options: Any, beyond: int) -> Kind:
    """With some options after the two tensors."""
    return Kind(
        f"dropout_add, {name}",
        dropout_add,
        formula,
        lambda generator: (normal(generator, 2, 3, 4), normal(generator, 2, 3, 4), *options),
        beyond=lambda *_: beyond,
        empty=lambda: (nothing(), nothing(), *options),
    )


KINDS = [
    kind("half", beyond=16),
    kind("few", 0.1, beyond=16),
    kind("none", 0.0, beyond=0),
    kind("all", 1, beyond=0),
    kind("no training", 0.5, False, beyond=0),
]
