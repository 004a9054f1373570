"""Rotary embedding: tables of full and half width, broadcast along batch and heads, fixed and learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.ops.rope import rope
from tests.ops.kinds import Arguments, Kind, normal
from tests.ops.kinds.rms_norm import none


def formula(input: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As models write it, with tables of full width."""
    if cos.shape[-1] != input.shape[-1]:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    first, second = input.chunk(2, -1)
    return input * cos + torch.cat((-second, first), -1) * sin


def nothing(*_: Any) -> int:
    """All that is kept are arguments; which of them, test_rope counts."""
    return 0


def tables(generator: torch.Generator, *shape: int, requires_grad: bool = False) -> tuple[Tensor, Tensor]:
    """Two tables; their angles differ, and so do their halves."""
    return normal(generator, *shape, requires_grad=requires_grad), normal(
        generator, *shape, requires_grad=requires_grad
    )


def drawn(generator: torch.Generator) -> Arguments:
    """Heads, with fixed tables of full width."""
    return normal(generator, 2, 2, 3, 4), *tables(generator, 3, 4)


KINDS = [
    Kind("rope", rope, formula, drawn, nothing, empty=lambda: (none(2, 0, 3, 4), *tables(torch.Generator(), 3, 4))),
    Kind(
        "rope, half width, for each of a batch",
        rope,
        formula,
        lambda generator: (normal(generator, 2, 2, 3, 4), *tables(generator, 2, 1, 3, 2)),
        nothing,
        empty=lambda: (none(2, 0), *tables(torch.Generator(), 2, 0)),
    ),
    Kind(
        "rope, learned",
        rope,
        formula,
        lambda generator: (normal(generator, 2, 2, 3, 4), *tables(generator, 3, 4, requires_grad=True)),
        nothing,
    ),
    Kind(
        "rope, learned, half width",
        rope,
        formula,
        lambda generator: (normal(generator, 2, 3, 4), *tables(generator, 3, 2, requires_grad=True)),
        nothing,
    ),
    Kind(
        "rope, the input broadcast",
        rope,
        formula,
        lambda generator: (normal(generator, 4), *tables(generator, 3, 4, requires_grad=True)),
        nothing,
    ),
]
