"""Wrong first derivatives: one defect a class, the expected code on the line at fault."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements well away from 0 and from each other's sign."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class OneGradientShort(Function):
    """Two arguments, one gradient: the engine refuses it, without saying whose is missing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        _x, w = ctx.saved_tensors
        return g * w  # expect: PB201

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), leaf(3)


class NumberForGradient(Function):
    """A Python number comes back where a tensor is due."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x.sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> float:
        return 2 * g.item()  # expect: PB202

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(()),)


class WrongSign(Function):
    """The derivative of cos without its minus."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.sin()  # expect: PB203

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class LostFactor(Function):
    """The 3 of the power rule is lost."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x**2  # expect: PB203

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class Untransposed(Function):
    """w is square, so the missing transpose still has the right shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        g = g.to(w.dtype)  # under autocast it comes in bfloat16
        gx = g @ w if ctx.needs_input_grad[0] else None  # expect: PB203
        gw = x.t() @ g if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3, 3)


class OneWrongElement(Function):
    """One gradient among three thousand is half as large again as it should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        first = torch.arange(g.numel()).view(g.shape) == 0
        return torch.where(first, 3 * g, 2 * g)  # expect: PB203

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3000),)


class ForgottenArgument(Function):
    """The product varies with w, and w gets None, which PyTorch reads as zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (w,) = ctx.saved_tensors
        return g * w, None  # expect: PB204

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), leaf(3)


class WrongNeedsIndex(Function):
    """w's gradient is guarded by x's flag: frozen x, no gradient for w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        g = g.to(w.dtype)  # under autocast it comes in bfloat16
        gx = g @ w.t() if ctx.needs_input_grad[0] else None
        gw = x.t() @ g if ctx.needs_input_grad[0] else None  # expect: PB208
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3, 2)


class IgnoredOutput(Function):
    """The second output is differentiable, and what comes back for it is dropped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x, x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
        return 2 * g  # expect: PB209

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class UnhandledNone(Function):
    """Unmaterialized gradients were asked for, and None isn't expected when it comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        return 2 * g + 3 * h  # expect: PB210

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class ClipsUndeclared(Function):
    """The gradient is clipped, and nothing says that this is meant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return (2 * g).clamp(-0.1, 0.1)  # expect: PB211

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class SummedAway(Function):
    """A vector's gradient comes back as a pair of numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g[:2]  # expect: PB213

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class TiesCountTwice(Function):
    """Where x and y are equal, both get the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        larger = torch.maximum(x, y)
        ctx.save_for_backward(x, y, larger)
        return larger

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y, larger = ctx.saved_tensors
        gx = g * (x == larger) if ctx.needs_input_grad[0] else None
        gy = g * (y == larger) if ctx.needs_input_grad[1] else None  # expect: PB506
        return gx, gy

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), leaf(3)


class TiedSampleCountsTwice(Function):
    """The largest element of a sample that has it twice: both get the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.max()
        ctx.save_for_backward(x == y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (largest,) = ctx.saved_tensors
        return g * largest  # expect: PB506

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True),)


class MarkedThoughSmooth(Function):
    """Its only output varies smoothly, and is marked non-differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = 2 * x
        ctx.mark_non_differentiable(y)  # expect: PB209
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
