"""Clipped ReLU: a number of elements that 8 divides and one that it doesn't, and a ceiling of infinity."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.ops.clipped_relu import clipped_relu
from tests.ops.kinds import Kind, normal


def formula(input: Tensor, max_val: float) -> Tensor:
    """The operation as PyTorch has it."""
    return F.relu(input) if max_val == math.inf else F.hardtanh(input, 0, max_val)


def bits(input: Tensor, max_val: float) -> int:
    """One bit an element."""
    return math.ceil(input.numel() / 8)


KINDS = [
    Kind(
        "clipped_relu",
        clipped_relu,
        formula,
        lambda generator: (normal(generator, 2, 3, 4), 0.5),
        beyond=bits,
        empty=lambda: (torch.zeros(0, 4).double().requires_grad_(), 0.5),
    ),
    Kind("clipped_relu, ragged", clipped_relu, formula, lambda generator: (normal(generator, 3, 5), 1.0), beyond=bits),
    Kind(
        "clipped_relu, endless",
        clipped_relu,
        formula,
        lambda generator: (normal(generator, 3, 4), math.inf),
        beyond=bits,
    ),
]
