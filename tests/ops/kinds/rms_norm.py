"""RMS normalisation: with and without a weight, over one axis and two, and of a residual sum."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.ops.add_rms_norm import add_rms_norm
from pullback.ops.rms_norm import rms_norm
from tests.ops.kinds import Arguments, Kind, normal


def number(dtype: torch.dtype) -> int:
    """The bytes of one number that is kept for a row."""
    return 8 if dtype == torch.float64 else 4


def of_rows(input: Tensor, normalized_shape: Any, *_: Any) -> int:
    """One number a row."""
    axes = len(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else 1
    return input.shape[:-axes].numel() * number(input.dtype)


def formula(input: Tensor, normalized_shape: Any, *options: Any) -> Tensor:
    """PyTorch's own, which takes no bare number."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
    return F.rms_norm(input, shape, *options)


def added(input: Tensor, residual: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """The sum, and PyTorch's norm of it."""
    total = input + residual
    return formula(total, *options), total


def of_sum(input: Tensor, residual: Tensor, *options: Any) -> int:
    """The sum, which is an output, and one number a row."""
    return input.numel() * input.element_size() + of_rows(input, *options)


def none(*shape: int) -> Tensor:
    """A leaf without elements."""
    return torch.zeros(shape, dtype=torch.float64).requires_grad_()


def drawn(generator: torch.Generator) -> Arguments:
    """A batch with a weight."""
    return normal(generator, 2, 3, 4), 4, normal(generator, 4)


def drawn_sum(generator: torch.Generator) -> Arguments:
    """A batch and its residual, with a weight."""
    return normal(generator, 2, 3, 4), normal(generator, 2, 3, 4), (4,), normal(generator, 4)


KINDS = [
    Kind("rms_norm", rms_norm, formula, drawn, of_rows, empty=lambda: (none(0, 4), (4,), normal(torch.Generator(), 4))),
    Kind(
        "rms_norm, two axes, no weight",
        rms_norm,
        formula,
        lambda generator: (normal(generator, 2, 3, 4), (3, 4), None, 0.01),
        of_rows,
        empty=lambda: (none(2, 0, 3, 4), (3, 4), None),
    ),
    Kind(
        "rms_norm, weight of two axes",
        rms_norm,
        formula,
        lambda generator: (normal(generator, 2, 3, 4), [3, 4], normal(generator, 3, 4)),
        of_rows,
    ),
    Kind(
        "rms_norm, one row",
        rms_norm,
        formula,
        lambda generator: (normal(generator, 5), (5,), normal(generator, 5)),
        of_rows,
        empty=lambda: (none(3, 0), (0,), none(0)),
    ),
    Kind(
        "add_rms_norm",
        add_rms_norm,
        added,
        drawn_sum,
        of_sum,
        empty=lambda: (none(0, 4), none(0, 4), (4,), normal(torch.Generator(), 4)),
    ),
    Kind(
        "add_rms_norm, two axes, no weight",
        add_rms_norm,
        added,
        lambda generator: (normal(generator, 2, 3, 4), normal(generator, 2, 3, 4), (3, 4), None, 0.01),
        of_sum,
    ),
]
