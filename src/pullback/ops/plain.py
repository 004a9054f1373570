"""When an operation runs as PyTorch has it, by the formula that is its reference."""

from __future__ import annotations

import torch

from pullback.torch_private import dual_level


def in_forward_mode() -> bool:
    """Whether tangents may go through: they keep nothing for a backward, and PyTorch has the formula's own ready."""
    return dual_level() >= 0


def plain() -> bool:
    """The same, or a compiler runs, which fuses the formula with what stands beside it."""
    return torch.compiler.is_compiling() or in_forward_mode()
