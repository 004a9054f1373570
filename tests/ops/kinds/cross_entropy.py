"""Cross entropy: each reduction, weighted, smoothed, with rows to ignore, of one row and of pixels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.ops.cross_entropy import cross_entropy
from tests.ops.kinds import Arguments, Kind, normal

IGNORED = -100


def classes(generator: torch.Generator, *shape: int, count: int, ignored: bool = True) -> Tensor:
    """Draw class indices; the second is to be ignored where asked."""
    target = torch.randint(count, shape, generator=generator)
    if ignored:
        target.view(-1)[1] = IGNORED
    return target


def weights(generator: torch.Generator, count: int) -> Tensor:
    """Draw a factor for each class."""
    return torch.rand(count, generator=generator, dtype=torch.float64) + 0.5


def options(reduction: str, label_smoothing: float = 0.0) -> tuple[Any, ...]:
    """The arguments that come after the weight, by position."""
    return None, IGNORED, None, reduction, label_smoothing


def row_bytes(input: Tensor, target: Tensor, *_: Any) -> int:
    """4 bytes a row; 8 for logits in float64."""
    return target.numel() * max(4, input.element_size())


def pixels(generator: torch.Generator) -> Arguments:
    """Logits with two axes after that of the classes."""
    target = classes(generator, 2, 3, 2, count=4)
    return normal(generator, 2, 4, 3, 2), target, weights(generator, 4), *options("mean", 0.2)


KINDS = [
    Kind(
        "cross_entropy",
        cross_entropy,
        F.cross_entropy,
        lambda generator: (normal(generator, 4, 5), classes(generator, 4, count=5)),
        beyond=row_bytes,
        empty=lambda: (torch.zeros(0, 5).double().requires_grad_(), torch.zeros(0).long()),
    ),
    Kind(
        "cross_entropy, each row",
        cross_entropy,
        F.cross_entropy,
        lambda generator: (
            normal(generator, 4, 5),
            classes(generator, 4, count=5),
            weights(generator, 5),
            *options("none"),
        ),
        beyond=row_bytes,
        empty=lambda: (torch.zeros(0, 5).double().requires_grad_(), torch.zeros(0).long(), None, *options("none")),
    ),
    Kind(
        "cross_entropy, smooth sum",
        cross_entropy,
        F.cross_entropy,
        lambda generator: (normal(generator, 4, 5), classes(generator, 4, count=5), None, *options("sum", 0.1)),
        beyond=row_bytes,
    ),
    Kind("cross_entropy, weighted and smooth, of pixels", cross_entropy, F.cross_entropy, pixels, beyond=row_bytes),
    Kind(
        "cross_entropy, one row",
        cross_entropy,
        F.cross_entropy,
        lambda generator: (normal(generator, 5), classes(generator, count=5, ignored=False)),
        beyond=row_bytes,
    ),
]
