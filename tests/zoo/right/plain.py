"""Right Functions with an air of suspicion about their numbers: a finding about one of them is a false alarm."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class TimesThree(Function):
    """Linear: the gradient has no graph behind it under create_graph, and the second derivative is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class LeavesSummingToEngine(Function):
    """The bias is broadcast, and its gradient isn't summed: the engine does it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3)


class TrailingNones(Function):
    """Three entries for one argument: the spare ones are None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: float = 2.0, offset: float = 0.0) -> Tensor:
        ctx.gain = gain
        return x * gain + offset

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return g * ctx.gain, None, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class ReluOnItsKink(Function):
    """The second sample lies on the kink, where there is no derivative to compare with."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (x > 0)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
        yield (torch.zeros(2, dtype=torch.float64, requires_grad=True),)


class ReluOneOnItsKink(ReluOnItsKink):
    """The other subgradient: 1 at the kink."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (x >= 0)


class Largest(Function):
    """At a tie one element gets the whole gradient: as good a choice as any."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        value, index = x.max(dim=-1)
        ctx.save_for_backward(index)
        ctx.size = x.size(-1)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (index,) = ctx.saved_tensors
        one_hot = torch.nn.functional.one_hot(index, ctx.size).to(g.dtype)
        return g.unsqueeze(-1) * one_hot

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (torch.tensor([[0.3, 0.9, 0.5], [0.2, 0.1, 0.8]], dtype=torch.float64, requires_grad=True),)
        yield (torch.full((2, 3), 0.5, dtype=torch.float64, requires_grad=True),)


class RootWithInfiniteSlope(Function):
    """The slope at 0 really is infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g / (2 * y)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class ComplexProduct(Function):
    """The conjugates are where PyTorch's convention wants them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        gx = g * w.conj() if ctx.needs_input_grad[0] else None
        gw = g * x.conj() if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield torch.complex(leaf(2), leaf(2)).detach().requires_grad_(), torch.complex(leaf(2), leaf(2)).detach()


class SkipsUnusedOutputs(Function):
    """Gradients aren't materialized, and None is met by leaving the term out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Tensor | None:
        terms = [factor * t for factor, t in ((2, g), (3, h)) if t is not None]
        return sum(terms[1:], terms[0]) if terms else None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class InSinglePrecision(Function):
    """Float32 throughout: only a float64 reference can judge it, never finite differences."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.float().exp().to(x.dtype) if x.dtype == torch.float32 else x.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.exp()

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (torch.rand(3, requires_grad=True),)


class MatchesOnlyItself(Function):
    """Matrix product whose arguments must fit: most other shapes are refused, as they should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        if x.dim() != 2 or w.dim() != 2:
            raise ValueError("x and w must be matrices")
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        g = g.to(w.dtype)  # under autocast it comes in bfloat16
        gx = g @ w.t() if ctx.needs_input_grad[0] else None
        gw = x.t() @ g if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 3), leaf(3, 2)


class LargerOfTwo(Function):
    """The whole gradient goes to the first of two equal elements; the first sample has some."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x >= y)
        return torch.maximum(x, y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (first,) = ctx.saved_tensors
        gx = g * first if ctx.needs_input_grad[0] else None
        return gx, g * ~first if ctx.needs_input_grad[1] else None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        tied = torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)
        yield tied.clone().requires_grad_(), tied.clone().requires_grad_()
        yield leaf(3), leaf(3)


class LargestShared(Function):
    """The largest element; equal ones share the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.max()
        ctx.save_for_backward(x == y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (largest,) = ctx.saved_tensors
        return g * largest / largest.sum()

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(5),)


class WithANaN(Function):
    """A sample with a NaN of the author's: the rest is compared."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (torch.tensor([1.5, float("nan"), 0.5], dtype=torch.float64, requires_grad=True),)


class DrawsItsMaskAgain(Function):
    """Keeps a seed in the place of a mask, and leaves the program's generator as it was."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.seed = int(torch.randint(2**31, ()))
        return x * _mask(ctx.seed, x.shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * _mask(ctx.seed, g.shape)

    @staticmethod
    def samples() -> Iterator[tuple[Tensor]]:
        yield (leaf(3, 4),)


def _mask(seed: int, shape: torch.Size) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
