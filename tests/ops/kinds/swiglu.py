"""SwiGLU, for arguments of one shape and with a broadcast gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.ops.swiglu import swiglu
from tests.ops.kinds import Kind, normal


def formula(gate: Tensor, up: Tensor) -> Tensor:
    """The two operations as PyTorch has them."""
    return F.silu(gate) * up


KINDS = [
    Kind(
        "swiglu",
        swiglu,
        formula,
        lambda generator: (normal(generator, 2, 3, 4), normal(generator, 2, 3, 4)),
        beyond=lambda *_: 0,
        empty=lambda: (torch.zeros(0, 4).double().requires_grad_(), torch.zeros(0, 4).double().requires_grad_()),
    ),
    Kind(
        "swiglu, broadcast",
        swiglu,
        formula,
        lambda generator: (normal(generator, 4), normal(generator, 2, 3, 4)),
        beyond=lambda *_: 0,
    ),
]
