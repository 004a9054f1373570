"""softcap, y = c tanh(x / c): kernels of one's own, from the mathematics in softcap.h to a proven Function.

``pullback check examples/kernel/softcap.py`` proves it; ``python examples/kernel/softcap.py`` says which parts ran.
The page docs/kernels.md goes through it step by step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import kernel_build
import torch
from elementwise import batched, wide
from torch import Tensor, library

import pullback
from pullback import Context

FOLDER = Path(__file__).resolve().parent

# -- The operators: their signatures, and what torch.compile and vmap must know ----------------------------------------

library.define("pullback_kernel::softcap", "(Tensor x, float cap) -> Tensor")
library.define("pullback_kernel::softcap_backward", "(Tensor grad_output, Tensor x, float cap) -> Tensor")
library.register_fake("pullback_kernel::softcap", lambda x, cap: x.new_empty(x.shape))
library.register_fake("pullback_kernel::softcap_backward", lambda g, x, cap: x.new_empty(x.shape))
operators = torch.ops.pullback_kernel
library.register_vmap("pullback_kernel::softcap", batched(operators.softcap))
library.register_vmap("pullback_kernel::softcap_backward", batched(operators.softcap_backward))


# PyTorch's dispatcher knows which device has a kernel. Where none is registered yet, these two run: they compile the
# kernels for this device and call again; on a device without kernels, and for a sparse tensor, they are the formula.
def softcap_at_first(x: Tensor, cap: float) -> Tensor:
    return cast(Tensor, operators.softcap(x, cap)) if load_kernels(x) else Softcap.reference(x, cap)


def softcap_backward_at_first(g: Tensor, x: Tensor, cap: float) -> Tensor:
    if load_kernels(x):
        return cast(Tensor, operators.softcap_backward(g, x, cap))
    return (g * torch.cosh(x.to(wide(x)) / cap) ** -2).to(x.dtype)


library.impl("pullback_kernel::softcap", "default", softcap_at_first)
library.impl("pullback_kernel::softcap_backward", "default", softcap_backward_at_first)


def load_kernels(x: Tensor) -> bool:
    """Load the kernels for a tensor's device, compiled if they aren't yet; False where there are none."""
    if x.layout is not torch.strided or x.is_quantized:
        return False
    if x.device.type == "cpu":
        kernel_build.load_cpp(FOLDER / "softcap.cpp")
    elif x.device.type == "cuda" and kernel_build.find_nvcc():
        kernel_build.load_cuda(FOLDER / "softcap.cu")
    else:
        return False
    return True


# -- The Function ------------------------------------------------------------------------------------------------------


class Softcap(pullback.Function):
    """y = c tanh(x / c), c a number."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, cap: float) -> Tensor:
        # Save x itself: a contiguous copy would be an intermediate, cut off from the graph.
        ctx.save_for_backward(x)
        ctx.cap = cap
        return cast(Tensor, operators.softcap(x, cap))

    # dy = dx / cosh(x / c)², elementwise:   gx = g / cosh(x / c)²
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        # Under create_graph x and g require grad, and the operator has no derivative of its own to record.
        with torch.no_grad():
            return cast(Tensor, operators.softcap_backward(g, x, ctx.cap)), None

    # The same in plain PyTorch: what the kernels are held against, and what higher orders and forward mode take.
    @staticmethod
    def reference(x: Tensor, cap: float) -> Tensor:
        return (cap * torch.tanh(x.to(wide(x)) / cap)).to(x.dtype)

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, float]]:
        """Yield arguments on the straight part, the bend and the plateau."""
        load_kernels(torch.empty(0))  # now, so that no probe's time limit has to wait for a compiler
        generator = torch.Generator().manual_seed(0)
        x = 3 * torch.randn(4, 5, dtype=torch.float64, generator=generator)
        yield x.requires_grad_(), 2.3


def softcap(x: Tensor, cap: float = 50.0) -> Tensor:
    """Bend x so that it stays within (-cap, cap); shapes and dtype are x's.

    Raises:
        TypeError: x isn't a tensor of float64, float32, bfloat16 or float16.
        ValueError: cap isn't a positive, finite number in the dtype to compute in.
    """
    limits = torch.finfo(wide(x))
    if not isinstance(cap, (int, float)) or not limits.tiny <= cap <= limits.max:
        raise ValueError(f"softcap: cap must be a positive, finite number of {limits.dtype}, and is {cap!r}")
    return cast(Tensor, Softcap.apply(x, cap))


if __name__ == "__main__":
    from kernel_report import main

    sys.exit(main(Softcap, numbers=(2.3,), cuda=FOLDER / "softcap.cu", triton=FOLDER / "softcap_triton.py"))
