"""Functions for tests of autocast: one operation, tanh(x w) k, in the ways that it can be written and declared."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd

import pullback

Seen = list[tuple[str, bool, torch.dtype]]
"""What each method saw: its name, whether autocast was on, and the dtype of its first tensor."""


def autocast(dtype: torch.dtype = torch.bfloat16, *, enabled: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Return autocast for the CPU."""
    return torch.autocast("cpu", dtype=dtype, enabled=enabled)


def leaf(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Return random numbers that require grad, the same ones each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def plain(x: Tensor, w: Tensor, k: float) -> Tensor:
    """Compute the operation as PyTorch knows it."""
    return (x @ w).tanh() * k


def _note(seen: Seen | None, name: str, tensor: Tensor) -> None:
    if seen is not None:
        seen.append((name, torch.is_autocast_enabled("cpu"), tensor.dtype))


def forward_of(ctx: Any, x: Tensor, w: Tensor, k: float) -> Tensor:
    """Compute the operation, and save its arguments."""
    ctx.save_for_backward(x, w)
    ctx.k = k
    return plain(x, w, k)


def backward_of(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
    """Differentiate the operation."""
    x, w = ctx.saved_tensors
    h = g * ctx.k * (1 - (x @ w).tanh() ** 2)
    return h @ w.mT, x.mT @ h, None


def decorated(base: Any, dtype: torch.dtype | None) -> Any:
    """Write the operation with the decorators of torch.amp."""

    class Decorated(base):
        forward = staticmethod(custom_fwd(forward_of, device_type="cpu", cast_inputs=dtype))
        backward = staticmethod(custom_bwd(backward_of, device_type="cpu"))

    return Decorated


def in_torch(dtype: torch.dtype | None) -> Any:
    """Write it for PyTorch, with its decorators."""
    return decorated(torch.autograd.Function, dtype)


def with_ctx(seen: Seen | None = None, **declared: Any) -> Any:
    """Write it for pullback, forward with ctx, with these declarations."""

    def forward(ctx: Any, x: Tensor, w: Tensor, k: float) -> Tensor:
        _note(seen, "forward", x)
        return forward_of(ctx, x, w, k)

    def backward(ctx: Any, g: Tensor) -> Any:
        _note(seen, "backward", g)
        return backward_of(ctx, g)

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("WithCtx", (pullback.Function,), {"__module__": __name__, **body, **declared})


def with_setup(seen: Seen | None = None, **declared: Any) -> Any:
    """Write it for pullback, forward beside setup_context, with these declarations."""

    def forward(x: Tensor, w: Tensor, k: float) -> Tensor:
        _note(seen, "forward", x)
        return plain(x, w, k)

    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, w, ctx.k = inputs
        _note(seen, "setup_context", x)
        ctx.save_for_backward(x, w)

    def backward(ctx: Any, g: Tensor) -> Any:
        _note(seen, "backward", g)
        return backward_of(ctx, g)

    methods = {"forward": forward, "setup_context": setup_context, "backward": backward}
    body = {name: staticmethod(method) for name, method in methods.items()}
    return type("WithSetup", (pullback.Function,), {"__module__": __name__, **body, **declared})


STYLES = {"ctx": with_ctx, "setup_context": with_setup}


def same_bits(ours: Any, theirs: Any) -> None:
    """Assert that two rows of tensors, or None, are the same to the last bit, and of one dtype."""
    for one, other in zip(ours, theirs, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
