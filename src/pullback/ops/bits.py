"""One bit an element: which elements of a tensor lie strictly between two numbers, and a gradient for those alone.

The m = ceil(n / 8) bytes of n elements are laid out in planes: bit k of byte j belongs to element k m + j in logical
order. So each step runs over long rows of memory, and no bit is ever moved alone.

Which elements lie between is told by PyTorch's own gradient of hardtanh, which is vectorised where comparisons and
`torch.where` are not: for a cotangent with one bit set it has that bit between the ends, and none elsewhere. Where
nothing follows the steps, the rest is done on the bits of the numbers, as integers of their size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.ops.scratch import may_write

_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers of as many bytes."""

_LOWEST = {torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
"""The lowest bit of the exponent, from which on each of eight bits alone is a normal number; float16 has five such."""


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
    endless = high == math.inf
    gradient = torch.ops.aten.threshold_backward if endless else torch.ops.aten.hardtanh_backward
    ends = (low,) if endless else (low, high)
    if scratch is None or x.dtype not in _LOWEST or scratch.numel() != planes.numel() or not scratch.is_contiguous():
        weights = torch.pow(2, _eight(x)).to(x.dtype).expand(planes.shape)
        packed: Tensor = gradient(weights, planes, *ends).sum(0).to(torch.uint8)  # 255 at most, exact in each dtype
        return packed
    lowest, integer = _LOWEST[x.dtype], _INTEGER[x.element_size()]
    weights = torch.bitwise_left_shift(1, (_eight(x) + lowest).to(integer)).view(x.dtype).expand(planes.shape)
    bits: Tensor = gradient.grad_input(weights, planes, *ends, grad_input=scratch.view(planes.shape)).view(integer)
    for half in (4, 2, 1):
        torch.bitwise_or(bits[:half], bits[half : 2 * half], out=bits[:half])
    return bits[0].bitwise_right_shift_(lowest).to(torch.uint8)


def only_inside(g: Tensor, packed: Tensor) -> Tensor:
    """Return g where the bit of an element is set, and 0 elsewhere, whatever g is there; linear in g.

    Args:
        g: Floating-point numbers, as many as were packed.
        packed: What `inside` made.
    """
    planes, eight = _planes(g), _eight(g)
    if may_write(g):
        # A bit that is shifted to the highest place and back fills its number, as the sign does.
        integer, highest = _INTEGER[g.element_size()], 8 * g.element_size() - 1
        filled = torch.bitwise_left_shift(packed.to(integer), (highest - eight).to(integer))
        passed = filled.bitwise_right_shift_(highest).bitwise_and_(planes.view(integer)).view(g.dtype)
    else:
        # The gradient of a threshold passes where what it is shown is more than 0, as the kept bit 2^k is.
        kept = (packed & torch.pow(2, eight).to(torch.uint8)).to(g.dtype)
        passed = torch.ops.aten.threshold_backward(planes, kept, 0)
    return passed.reshape(-1)[: g.numel()].view(g.shape)


def _eight(x: Tensor) -> Tensor:
    """The numbers of the bits of a byte, one for each plane, where x is."""
    return torch.arange(8, device=x.device).unsqueeze(1)


def _planes(x: Tensor) -> Tensor:
    """The elements in logical order as eight rows, with zeros at the end where 8 doesn't divide their number."""
    flat = x.reshape(-1)
    rest = -flat.shape[0] % 8
    return (F.pad(flat, (0, rest)) if rest else flat).view(8, (flat.shape[0] + rest) // 8)
