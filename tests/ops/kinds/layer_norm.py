"""Layer normalisation: with weight and bias, one of them or none, over one axis and two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.ops.layer_norm import layer_norm
from tests.ops.kinds import Arguments, Kind, normal
from tests.ops.kinds.rms_norm import none, of_rows


def formula(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """As the paper has it. PyTorch's own is no measure under torch.func.hessian: it is wrong there."""
    axes = range(-len(normalized_shape), 0) if isinstance(normalized_shape, (tuple, list)) else (-1,)
    x = input if input.dtype == torch.float64 else input.float()
    centred = x - x.mean(tuple(axes), keepdim=True)
    y = centred / (centred.square().mean(tuple(axes), keepdim=True) + eps).sqrt()
    return ((y if weight is None else y * weight) + (0 if bias is None else bias)).to(input.dtype)


def two_numbers(*arguments: Any) -> int:
    """Mean and 1/σ of each row."""
    return 2 * of_rows(*arguments)


def drawn(generator: torch.Generator) -> Arguments:
    """A batch with weight and bias."""
    return normal(generator, 2, 3, 4), 4, normal(generator, 4), normal(generator, 4)


KINDS = [
    Kind(
        "layer_norm",
        layer_norm,
        formula,
        drawn,
        two_numbers,
        empty=lambda: (none(0, 4), (4,), normal(torch.Generator(), 4), normal(torch.Generator(), 4)),
    ),
    Kind(
        "layer_norm, two axes, no parameters",
        layer_norm,
        formula,
        lambda generator: (normal(generator, 2, 3, 4), (3, 4), None, None, 0.01),
        two_numbers,
        empty=lambda: (none(2, 0, 3, 4), (3, 4)),
    ),
    Kind(
        "layer_norm, weight of two axes",
        layer_norm,
        formula,
        lambda generator: (normal(generator, 2, 3, 4), [3, 4], normal(generator, 3, 4)),
        two_numbers,
    ),
    Kind(
        "layer_norm, bias alone",
        layer_norm,
        formula,
        lambda generator: (normal(generator, 5, 4), (4,), None, normal(generator, 4)),
        two_numbers,
        empty=lambda: (none(3, 0), (0,), None, none(0)),
    ),
]
