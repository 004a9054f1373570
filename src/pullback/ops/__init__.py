"""Operations that people train with, each keeping the least for backward; right to every order, in any layout.

Where PyTorch has the function, names, order and defaults are PyTorch's. One file each: the mathematics with its source,
the plain-PyTorch reference, the Function with its derivation, and the public function.
"""

from __future__ import annotations

from pullback.ops.add_rms_norm import add_rms_norm
from pullback.ops.clipped_relu import clipped_relu
from pullback.ops.cross_entropy import cross_entropy
from pullback.ops.dropout_add import dropout_add
from pullback.ops.geglu import geglu
from pullback.ops.gradients import (
    clip_gradient,
    reverse_gradient,
    scale_gradient,
    straight_through,
    straight_through_round,
)
from pullback.ops.layer_norm import layer_norm
from pullback.ops.linear_cross_entropy import linear_cross_entropy
from pullback.ops.rms_norm import rms_norm
from pullback.ops.rope import rope
from pullback.ops.swiglu import swiglu

__all__ = [
    "add_rms_norm",
    "clip_gradient",
    "clipped_relu",
    "cross_entropy",
    "dropout_add",
    "geglu",
    "layer_norm",
    "linear_cross_entropy",
    "reverse_gradient",
    "rms_norm",
    "rope",
    "scale_gradient",
    "straight_through",
    "straight_through_round",
    "swiglu",
]
