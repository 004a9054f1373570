"""What breaks, or goes wrong in silence, when forward ran under autocast: one defect a class."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class NoAutocast(Function):
    """Under autocast a bfloat16 gradient meets float32 saved tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        gx = g @ w.t() if ctx.needs_input_grad[0] else None  # expect: PB517
        gw = x.t() @ g if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3, 2)


class IntoABuffer(Function):
    """The buffer has the dtype of the argument, the product that of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        gx = gw = None
        if ctx.needs_input_grad[0]:
            gx = torch.mm(g, w.t().to(g.dtype), out=torch.empty_like(x))  # expect: PB517
        if ctx.needs_input_grad[1]:
            gw = x.t() @ g.to(x.dtype)
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3, 2)


class AddsInPlace(Function):
    """The sum starts in the dtype of the weight, and the product comes in another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        gx = g.to(w.dtype) @ w.t() if ctx.needs_input_grad[0] else None
        gw = None
        if ctx.needs_input_grad[1]:
            gw = torch.zeros_like(w).addmm(x.t().to(g.dtype), g)  # expect: PB517
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3, 2)


class FindsTheLargestAgain(Function):
    """Where autocast is over, the product is computed in float32, and nothing equals the maximum in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        largest = (x @ w).amax(1, keepdim=True)
        ctx.save_for_backward(x, w, largest)
        return largest

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w, largest = ctx.saved_tensors
        found = (x @ w == largest).to(w.dtype)  # expect: PB517
        g = found / found.sum(1, keepdim=True).clamp(min=1) * g.to(w.dtype)
        gx = g @ w.t() if ctx.needs_input_grad[0] else None
        gw = x.t() @ g if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3, 2)


class MixedPath(Function):
    """The path for a gradient of another dtype forgets the factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return 3 * (x @ w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        g = 3 * g if g.dtype == w.dtype else g.to(w.dtype)  # expect: PB517
        gx = g @ w.t() if ctx.needs_input_grad[0] else None
        gw = x.t() @ g if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3, 2)
