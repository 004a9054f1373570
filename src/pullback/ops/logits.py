"""Logits that are read a piece at a time, each into the same memory, small enough to stay in the cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pullback.ops import chunks


class Cut:
    """A way to cut logits into pieces of about BLOCK_BYTES along one axis.

    A compiler gets them in one piece, since it fuses the work on it.

    Args:
        logits: Logits of shape (B, V, d1, …).
        dtype: What to compute in.

    Attributes:
        row_axis: The axis that is cut, in what has no classes.
        several: Whether there is more than one piece.
    """

    def __init__(self, logits: Tensor, dtype: torch.dtype) -> None:
        shape = logits.shape
        self._dtype = dtype
        # The first axis that is long enough, or else the longest.
        self._axis, self._length = 0, shape[0]
        if not torch.compiler.is_compiling() and logits.numel():
            axes = [0, *range(2, len(shape))]
            due = math.ceil(logits.numel() * dtype.itemsize / chunks.block_bytes())
            self._axis = next((axis for axis in axes if shape[axis] >= due), max(axes, key=lambda axis: shape[axis]))
            self._length = max(shape[self._axis] // due, 1)
        self.row_axis = self._axis - (self._axis > 1)
        self.several = self._length < shape[self._axis]
        room = [*shape[: self._axis], self._length, *shape[self._axis + 1 :]]
        self._room = logits.new_empty(room, dtype=dtype) if self.several else None

    def pieces(self, logits: Tensor) -> tuple[Tensor, ...]:
        """The pieces of logits."""
        return logits.split(self._length, self._axis) if self.several else (logits,)

    def of_rows(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The same pieces of what has a number for each row, with an axis of one class."""
        rows = rows.unsqueeze(1)
        return rows.split(self._length, self._axis) if self.several else (rows,)

    def room(self, piece: Tensor) -> Tensor | None:
        """The memory to work on `piece` in; None where there is one piece, which needs none."""
        if self._room is None or piece.shape[self._axis] == self._length:
            return self._room
        return self._room.narrow(self._axis, 0, piece.shape[self._axis])

    def shifted(self, piece: Tensor) -> Tensor:
        """A piece less each row's largest logit: nothing overflows, and no digit is lost."""
        room = self.room(piece)
        if piece.dtype != self._dtype:
            piece = piece.to(self._dtype) if room is None else room.copy_(piece)
        return torch.sub(piece, piece.amax(1, keepdim=True), out=room)
