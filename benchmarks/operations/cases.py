"""The operations that are measured, their sizes, and the ways to get the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pullback import ops

EAGER, COMPILED, CHECKPOINT, PULLBACK, FLOOR = "eager", "torch.compile", "checkpoint", "pullback", "floor"
WAYS = (EAGER, COMPILED, CHECKPOINT, PULLBACK, FLOOR)
"""The floor reads each argument and writes as many bytes, forward and backward: no operation can take less time."""

TOKENS, HIDDEN, WIDE, VOCABULARY = 2048, 1024, 2816, 32000


@dataclass(frozen=True)
class Operation:
    """One operation to measure.

    Attributes:
        name: As in pullback.ops.
        eager: The same in plain PyTorch.
        ours: pullback's.
        make: Its arguments for a dtype; a scale of 1 for sizes of training, less for a trial.
        target: The largest ratio of time to eager's in float32 that is aimed at, and in bfloat16.
        rounds: How many paired rounds are timed.
        parameters: The positions of arguments that are a model's weights, which are in memory anyway.
    """

    name: str
    eager: Callable[..., Any]
    ours: Callable[..., Any]
    make: Callable[[torch.dtype, float], tuple[Any, ...]]
    target: tuple[float, float]
    rounds: int = 21
    parameters: tuple[int, ...] = ()

    def way(self, name: str) -> Callable[..., Any]:
        """What is called, in one of the ways but the floor."""
        if name == COMPILED:
            return torch.compile(self.eager, dynamic=False)
        if name == CHECKPOINT:
            return lambda *arguments: checkpoint(self.eager, *arguments, use_reentrant=False)
        return self.ours if name == PULLBACK else self.eager


def normal(dtype: torch.dtype, *shape: int, requires_grad: bool = True) -> Tensor:
    """Draw normal numbers, rounded to the dtype."""
    return torch.randn(shape).to(dtype).requires_grad_(requires_grad)


def rows(scale: float, count: int = TOKENS) -> int:
    """How many tokens there are at a scale."""
    return max(4, int(count * scale))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary embedding as models write it."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def angles(dtype: torch.dtype, tokens: int, width: int) -> tuple[Tensor, Tensor]:
    """The tables of cosines and sines."""
    rates = 10000 ** (-torch.arange(0, width, 2) / width)
    angle = torch.outer(torch.arange(tokens), rates).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def two(dtype: torch.dtype, scale: float) -> tuple[Any, ...]:
    """Two inputs of a gate."""
    return normal(dtype, rows(scale), WIDE), normal(dtype, rows(scale), WIDE)


def normed(dtype: torch.dtype, scale: float) -> tuple[Any, ...]:
    """An input, its last axis, and a weight."""
    return normal(dtype, rows(scale), HIDDEN), [HIDDEN], normal(dtype, HIDDEN)


def rope_arguments(dtype: torch.dtype, scale: float) -> tuple[Any, ...]:
    """Queries of 16 heads of width 64, and the tables."""
    tokens = rows(scale)
    return normal(dtype, 1, 16, tokens, 64), *angles(dtype, tokens, 64)


def logits(dtype: torch.dtype, scale: float) -> tuple[Any, ...]:
    """Logits and targets."""
    tokens = rows(scale, 512)
    return normal(dtype, tokens, VOCABULARY), torch.randint(VOCABULARY, (tokens,))


def head(dtype: torch.dtype, scale: float) -> tuple[Any, ...]:
    """What comes into a model's last layer, its weight, and targets."""
    tokens, hidden = rows(scale, 4096), 512 if scale == 1 else 32
    weight = (torch.randn(VOCABULARY, hidden) * hidden**-0.5).to(dtype).requires_grad_()
    return normal(dtype, tokens, hidden), weight, torch.randint(VOCABULARY, (tokens,))


OPERATIONS: Sequence[Operation] = (
    Operation("swiglu", lambda a, u: F.silu(a) * u, ops.swiglu, two, (1.3, 1.3)),
    Operation("geglu", lambda a, u: F.gelu(a, approximate="tanh") * u, ops.geglu, two, (1.3, 1.3)),
    Operation("rms_norm", F.rms_norm, ops.rms_norm, normed, (0.6, 0.6), parameters=(2,)),
    Operation("layer_norm", F.layer_norm, ops.layer_norm, normed, (1.3, 1.3), parameters=(2,)),
    Operation("rope", rotated, ops.rope, rope_arguments, (0.6, 0.6)),
    Operation("cross_entropy", F.cross_entropy, ops.cross_entropy, logits, (1.3, 1.3)),
    Operation(
        "dropout_add",
        lambda x, r: F.dropout(x, 0.1) + r,
        lambda x, r: ops.dropout_add(x, r, 0.1, True),
        two,
        (1.3, 1.3),
    ),
    Operation(
        "clipped_relu",
        lambda x: F.hardtanh(x, 0.0, 6.0),
        lambda x: ops.clipped_relu(x, 6.0),
        lambda dtype, scale: two(dtype, scale)[:1],
        (1.3, 1.3),
    ),
    Operation(
        "linear_cross_entropy",
        lambda x, w, t: F.cross_entropy(F.linear(x, w), t),
        ops.linear_cross_entropy,
        head,
        (0.8, 0.05),
        rounds=3,
        parameters=(1,),
    ),
    Operation(
        "linear_cross_entropy, recompute",
        lambda x, w, t: F.cross_entropy(F.linear(x, w), t),
        lambda x, w, t: ops.linear_cross_entropy(x, w, t, form="recompute"),
        head,
        (1.3, 1.3),
        rounds=3,
        parameters=(1,),
    ),
)
