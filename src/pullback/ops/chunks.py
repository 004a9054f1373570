"""How an operation over many numbers is cut into pieces, so that what it makes on the way stays small."""

from __future__ import annotations

import torch

CHUNK_BYTES = 48 * 2**20
"""How many bytes one chunk of logits may take: large enough for a matrix product to run at full speed."""

BLOCK_BYTES = 2**20
"""How many bytes elementwise work is done on at a time by one thread: what a core's cache holds."""

Span = tuple[int, int]
"""Where a piece begins along an axis, and how long it is."""

_MOST_THREADS = 8
"""With more threads a block grows no further, so that it stays small beside a chunk."""


def block_bytes() -> int:
    """How many bytes elementwise work is done on at a time, by all threads."""
    return BLOCK_BYTES * threads()


def threads() -> int:
    """How many threads a block or piece is sized for."""
    return min(torch.get_num_threads(), _MOST_THREADS)


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for lower ones."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def spans(length: int, step: int) -> list[Span]:
    """Cut an axis into pieces of `step`, the last of them shorter; one empty piece for an axis of no length."""
    step = max(step, 1)
    return [(start, min(step, length - start)) for start in range(0, length, step)] or [(0, 0)]
