"""Clipped ReLU, a ReLU with a ceiling: it keeps one bit an element, and not its input.

    y = min(max(x, 0), c)        c = max_val

The gradient asks one thing of x, whether it lay between the ends, and that is one bit; what PyTorch keeps for it is
all of x, 32 bits an element in float32. The ends are kinks. Here they count as outside, gradient 0, as for PyTorch's
hardtanh, relu and relu6; `torch.clamp` counts them as inside. A ceiling of infinity makes it relu.

Source: A. Krizhevsky, Convolutional Deep Belief Networks on CIFAR-10, 2010, for a ceiling, 6 there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.context import Context
from pullback.errors import OperationError
from pullback.function import Function
from pullback.ops import bits
from pullback.ops.arguments import check_tensors, is_number
from pullback.ops.plain import in_forward_mode
from pullback.ops.samples import leaf
from pullback.ops.scratch import may_write


def clipped_relu(input: Tensor, max_val: float) -> Tensor:
    """Clip `input` to [0, max_val].

    Args:
        input: Any shape and layout, n elements.
        max_val: The ceiling, 0 or more. There is no default: 6 is relu6, and ``math.inf`` is relu, as is whatever lies
            above the largest number of input's dtype.

    Returns:
        ``F.hardtanh(input, 0, max_val)``, or ``F.relu(input)`` without a ceiling; NaN stays NaN. The gradient at 0 and
        at the ceiling is 0, as for these two. For backward it keeps ceil(n / 8) bytes, one bit an element.

    Raises:
        OperationError: PB130, input isn't of floating-point numbers, or max_val isn't a number from 0 on.
    """
    check_tensors("clipped_relu", input=input)
    if not input.is_floating_point():
        raise OperationError(
            "PB130",
            "clipped_relu: input has no gradient.",
            expected="a floating-point tensor",
            got=f"input of {input.dtype}",
            remedy="Without a gradient, input.clamp(0, max_val) does the same.",
        )
    if not is_number(max_val, 0):
        raise OperationError(
            "PB130",
            "clipped_relu: max_val is no ceiling above 0.",
            expected="a number from 0 on, or math.inf",
            got=f"max_val={max_val!r}",
            remedy="Give the largest value that the result may have, as a Python number.",
        )
    # A ceiling above all numbers of the dtype is none; PyTorch's operators refuse it.
    ceiling = math.inf if max_val > torch.finfo(input.dtype).max else float(max_val)
    if in_forward_mode():
        return ClippedReLU.reference(input, ceiling)
    result: Tensor = ClippedReLU.apply(input, ceiling)
    return result


class ClippedReLU(Function):
    """y = min(max(input, 0), max_val)."""

    @staticmethod
    def forward(ctx: Context, input: Tensor, max_val: float) -> Tensor:
        if not ctx.needs_input_grad[0]:
            return F.hardtanh(input, 0, max_val)
        if not may_write():
            ctx.save_for_backward(bits.inside(input, 0, max_val))
            return F.hardtanh(input, 0, max_val)
        output = torch.empty_like(input)
        ctx.save_for_backward(bits.inside(input, 0, max_val, scratch=output))
        clipped: Tensor = torch.ops.aten.hardtanh.out(input, 0, max_val, out=output)
        return clipped

    # y = x inside (0, c), and constant outside:   gx = g inside, 0 outside,
    # linear in g and, but for the two kinks, the same for all x around: what is differentiated twice is 0.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        (packed,) = ctx.saved_tensors
        return bits.only_inside(g, packed), None

    @staticmethod
    def reference(input: Tensor, max_val: float) -> Tensor:
        """The operation as PyTorch has it, which keeps its input."""
        return F.relu(input) if max_val == math.inf else F.hardtanh(input, 0, max_val)

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, float]]:
        """Draw elements in the order of an axis turned round, a number that 8 doesn't divide, and one without end."""
        yield leaf(4, 6).t(), 0.5
        yield leaf(3, 3), 1.0
        yield leaf(5), math.inf
