"""One bit an element: which elements of a tensor lie strictly between two numbers, and a gradient for those alone.

The m = ceil(n / 8) bytes of n elements are laid out in planes: bit k of byte j belongs to element k m + j in logical
order. So each step runs over long rows of memory, and no bit is ever moved alone.

Both directions are PyTorch's own gradients, which are vectorised where comparisons and `torch.where` are not: the
gradient of hardtanh for a cotangent of 2^k is 2^k between its ends and 0 elsewhere, and the eight planes add up to
the byte; the gradient of a threshold passes where what it is shown is more than 0, as the kept bit 2^k is.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.ops.scratch import may_write


def inside(x: Tensor, low: float, high: float, scratch: Tensor | None = None) -> Tensor:
    """Pack which elements of x have a gradient under a clamp to [low, high]: those strictly between.

    What NaN counts as is left to PyTorch's kernel, whose vectors count it as outside and whose last few elements, which
    are taken one by one, as inside.

    Args:
        x: Floating-point numbers, of any shape and layout.
        low: The lower end, which counts as outside.
        high: The upper end, which counts as outside; infinity is no end, so there it counts as inside.
        scratch: A tensor like x that may be overwritten.

    Returns:
        A tensor of uint8, ceil(x.numel() / 8) long.
    """
    planes = _planes(x)
    weights = torch.pow(2, torch.arange(8, device=x.device)).unsqueeze(1).to(x.dtype).expand(planes.shape)
    endless = high == math.inf
    gradient = torch.ops.aten.threshold_backward if endless else torch.ops.aten.hardtanh_backward
    ends = (low,) if endless else (low, high)
    if scratch is not None and scratch.numel() == planes.numel() and scratch.is_contiguous():
        kept = gradient.grad_input(weights, planes, *ends, grad_input=scratch.view(planes.shape))
    else:
        kept = gradient(weights, planes, *ends)
    packed: Tensor = kept.sum(0).to(torch.uint8)  # 255 at most, which each dtype has exactly
    return packed


def only_inside(g: Tensor, packed: Tensor) -> Tensor:
    """Return g where the bit of an element is set, and 0 elsewhere, whatever g is there; linear in g.

    Args:
        g: Floating-point numbers, as many as were packed.
        packed: What `inside` made.
    """
    planes = _planes(g)
    bit = torch.pow(2, torch.arange(8, device=g.device)).to(torch.uint8).unsqueeze(1)
    kept = (packed & bit).to(g.dtype)
    passed: Tensor
    if may_write(g):
        passed = torch.ops.aten.threshold_backward.grad_input(planes, kept, 0, grad_input=kept)
    else:
        passed = torch.ops.aten.threshold_backward(planes, kept, 0)
    return passed.reshape(-1)[: g.numel()].view(g.shape)


def _planes(x: Tensor) -> Tensor:
    """The elements in logical order as eight rows, with zeros at the end where 8 doesn't divide their number."""
    flat = x.reshape(-1)
    rest = -flat.shape[0] % 8
    return (F.pad(flat, (0, rest)) if rest else flat).view(8, (flat.shape[0] + rest) // 8)
