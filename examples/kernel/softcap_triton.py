"""The Triton twin of softcap: the same Function with kernels written in Python.

On a GPU they are compiled. On the CPU Triton's interpreter runs them with numpy, one instance after another:

    TRITON_INTERPRET=1 python examples/kernel/softcap_triton.py

Without Triton, or without a GPU and without that variable, there is nothing to run: the Function is abstract, and a
check says that it was left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, cast

import torch
from elementwise import batched, wide
from torch import Tensor
from torch import library as operators

import pullback
from pullback import Context

BLOCK = 1024  # elements for one instance of a kernel
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def missing(*, interpreted: bool = INTERPRETED) -> str:
    """Say what running the kernels takes and isn't here; empty when all is there."""
    if find_spec("triton") is None:
        return "Triton is missing: pip install triton"
    if interpreted and find_spec("numpy") is None:
        return "Triton's interpreter needs numpy: pip install numpy"
    return "" if interpreted or torch.cuda.is_available() else "no GPU, and TRITON_INTERPRET isn't 1"


if missing():

    class SoftcapTriton(pullback.Function): ...
else:
    import triton
    import triton.language as tl

    # tanh for numbers up to 1/4 in size, by Lambert's continued fraction u / (1 + u² / (3 + u² / (5 + …))), of which
    # eight terms are exact there to float64's last digit; beyond, (1 - q) / (1 + q) with q = exp(-2 |u|), where 1 - q
    # keeps its digits. Triton has no tanh of its own, and the one of CUDA's library is unknown to the interpreter.
    @triton.jit
    def tanh(u):
        square = tl.minimum(u * u, 1)  # where u is larger, the fraction isn't used, and must not overflow
        fraction = 13 + square / 15
        fraction = 11 + square / fraction
        fraction = 9 + square / fraction
        fraction = 7 + square / fraction
        fraction = 5 + square / fraction
        fraction = 3 + square / fraction
        fraction = 1 + square / fraction
        q = tl.exp(-2 * tl.abs(u))
        large = (1 - q) / (1 + q)
        return tl.where(tl.abs(u) < 0.25, u / fraction, tl.where(u < 0, -large, large))

    # The first element's index is 64 bits wide before it is multiplied: in 32 bits it wraps round at 2^31 elements.
    # CAP is part of the program, which is compiled for each value: as an argument it would come in float32, and a
    # kernel of float64 numbers would lose half its digits.
    @triton.jit
    def forward_kernel(x_at, y_at, count, CAP: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        x = tl.load(x_at + at, mask=inside, other=0).to(WIDE)
        y = CAP * tanh(x / CAP)
        tl.store(y_at + at, y.to(y_at.dtype.element_ty), mask=inside)

    @triton.jit
    def backward_kernel(g_at, x_at, gx_at, count, CAP: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        g = tl.load(g_at + at, mask=inside, other=0).to(WIDE)
        x = tl.load(x_at + at, mask=inside, other=0).to(WIDE)
        q = tl.exp(-2 * tl.abs(x / CAP))
        tl.store(gx_at + at, (g * 4 * q / ((1 + q) * (1 + q))).to(gx_at.dtype.element_ty), mask=inside)

    def launch(kernel: Any, arguments: tuple[Tensor, ...], cap: float) -> Tensor:
        """Run a kernel over all elements of tensors of one shape, on their device and its current stream."""
        computed = wide(arguments[0])
        read = [argument.contiguous() for argument in arguments]
        result = torch.empty_like(read[0])
        count = result.numel()
        if count:  # a grid of no instances can't be launched
            number = tl.float64 if computed == torch.float64 else tl.float32
            with torch.cuda.device_of(result):  # Triton takes the current device's stream; on the CPU this does nothing
                kernel[(triton.cdiv(count, BLOCK),)](*read, result, count, CAP=cap, WIDE=number, BLOCK=BLOCK)
        return result

    @operators.custom_op("pullback_kernel::softcap_triton", mutates_args=())
    def forward_operator(x: Tensor, cap: float) -> Tensor:
        return launch(forward_kernel, (x,), cap)

    @operators.custom_op("pullback_kernel::softcap_triton_backward", mutates_args=())
    def backward_operator(g: Tensor, x: Tensor, cap: float) -> Tensor:
        return launch(backward_kernel, (g, x), cap)

    forward_operator.register_fake(lambda x, cap: x.new_empty(x.shape))
    backward_operator.register_fake(lambda g, x, cap: x.new_empty(x.shape))
    forward_operator.register_vmap(batched(forward_operator))
    backward_operator.register_vmap(batched(backward_operator))

    class SoftcapTriton(pullback.Function):
        """y = c tanh(x / c), c a number."""

        @staticmethod
        def forward(ctx: Context, x: Tensor, cap: float) -> Tensor:
            ctx.save_for_backward(x)
            ctx.cap = cap
            return cast(Tensor, forward_operator(x, cap))

        # As in softcap.py:   gx = g / cosh(x / c)²
        @staticmethod
        def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            with torch.no_grad():
                return cast(Tensor, backward_operator(g, x, ctx.cap)), None

        @staticmethod
        def reference(x: Tensor, cap: float) -> Tensor:
            return (cap * torch.tanh(x.to(wide(x)) / cap)).to(x.dtype)

        @staticmethod
        def samples() -> Iterator[tuple[Tensor, float]]:
            generator = torch.Generator().manual_seed(0)
            x = 3 * torch.randn(4, 5, dtype=torch.float64, generator=generator)
            yield x.to("cpu" if INTERPRETED else "cuda").requires_grad_(), 2.3


if __name__ == "__main__":
    from kernel_report import wrong

    # Triton's interpreter keeps the storages that a kernel was given until the garbage collector runs, and the probe of
    # leaks can't tell whose fault that is.
    device, skipped = ("cpu", ("leaks",)) if INTERPRETED else ("cuda", ())
    sys.exit(missing() or wrong(SoftcapTriton, (2.3,), device, skipped) or 0)
