"""GEGLU in both approximations of gelu, for arguments of one shape and with a broadcast gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.ops.geglu import geglu
from tests.ops.kinds import Kind, normal


def formula(gate: Tensor, up: Tensor, approximate: str = "tanh") -> Tensor:
    """The two operations as PyTorch has them."""
    return F.gelu(gate, approximate=approximate) * up


KINDS = [
    Kind(
        "geglu",
        geglu,
        formula,
        lambda generator: (normal(generator, 2, 3, 4), normal(generator, 2, 3, 4)),
        beyond=lambda *_: 0,
        empty=lambda: (torch.zeros(0, 4).double().requires_grad_(), torch.zeros(0, 4).double().requires_grad_()),
    ),
    Kind(
        "geglu, none",
        geglu,
        formula,
        lambda generator: (normal(generator, 3, 4), normal(generator, 3, 4), "none"),
        beyond=lambda *_: 0,
    ),
    Kind(
        "geglu, broadcast",
        geglu,
        formula,
        lambda generator: (normal(generator, 4), normal(generator, 2, 3, 4), "tanh"),
        beyond=lambda *_: 0,
    ),
]
