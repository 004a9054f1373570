"""Samples that operations declare for `pullback.check`."""

from __future__ import annotations

import torch
from torch import Tensor


def leaf(*shape: int, seed: int = 0) -> Tensor:
    """Draw a float64 leaf that requires grad, from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
