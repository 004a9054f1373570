"""Right Functions with a jvp, a vmap, or neither: a finding about one of them is a false alarm."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import pullback


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class ProductWithJvp(Function):
    """Both rules, two arguments, a factor that isn't a tensor, in the ctx style."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, gain: float = 1.0) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)
        ctx.gain = gain
        return gain * x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, w = ctx.saved_tensors
        gx = ctx.gain * g * w if ctx.needs_input_grad[0] else None
        gw = ctx.gain * g * x if ctx.needs_input_grad[1] else None
        return gx, gw, None

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, tw: Tensor, _: None) -> Tensor:
        x, w = ctx.saved_tensors
        return ctx.gain * (tx * w + x * tw)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), leaf(3), 2.5
        yield leaf(2, 1), leaf(2, 1), -1.0


class JvpThatTakesNone(ProductWithJvp):
    """set_materialize_grads(False), and jvp is ready for what doesn't move."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, gain: float = 1.0) -> Tensor:
        ctx.set_materialize_grads(False)
        return ProductWithJvp.forward(ctx, x, w, gain)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        return (None, None, None) if g is None else ProductWithJvp.backward(ctx, g)

    @staticmethod
    def jvp(ctx: Any, tx: Tensor | None, tw: Tensor | None, _: None) -> Tensor:
        x, w = ctx.saved_tensors
        moved = torch.zeros_like(x)
        moved = moved if tx is None else moved + tx * w
        return ctx.gain * (moved if tw is None else moved + x * tw)


class JvpWithAnIndexBesideIt(Function):
    """An integer output and a float one that is marked: neither has a tangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, order = x.sort()
        ctx.mark_non_differentiable(order, largest := values[-1].clone())
        ctx.save_for_backward(order)
        ctx.save_for_forward(order)
        return values, order, largest

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> Tensor:
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(0, order, g)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return t[order], None, None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (torch.tensor([0.7, 0.2, 0.9], dtype=torch.float64, requires_grad=True),)


class ReluWithAJvpOfItsOwnMind(Function):
    """On the kink jvp takes one slope and backward the other: each may."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] > 0)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t * (ctx.saved_tensors[0] >= 0)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (torch.zeros(2, dtype=torch.float64, requires_grad=True),)
        yield (torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True),)


class ComplexWithJvp(Function):
    """The tangent isn't conjugated, the gradient is."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        ctx.save_for_forward(z)
        return z * z

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0].conj() * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * t

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (torch.tensor([0.5 + 1j, -2j], dtype=torch.complex128, requires_grad=True),)


class DoubledInPlaceWithJvp(Function):
    """Its tangent is changed in place as well, as PyTorch asks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t.mul_(2)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class ScaledWithVmap(Function):
    """A row of weights; vmap takes every combination of batched and shared ones."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * w, w.sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        gx = g * w if ctx.needs_input_grad[0] else None
        gw = g * x + h.unsqueeze(-1) if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> tuple[Any, tuple[int, int]]:
        x, w = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, w), in_dims, strict=True)
        )
        return ScaledWithVmap.apply(x, w), (0, 0)

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), leaf(3)


class BatchesItsFirstArgumentOnly(ScaledWithVmap):
    """What vmap doesn't do it refuses, and says so."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> tuple[Any, tuple[int, int]]:
        if in_dims[1] is not None or in_dims[0] is None:
            raise NotImplementedError("only x is batched")
        return ScaledWithVmap.vmap(info, in_dims, x, w)


class GeneratedVmap(Function):
    """PyTorch operations all the way."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        return x.index_select(0, index) ** 2, index + 1

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        x, index = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, index)
        ctx.save_for_forward(x, index)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
        x, index = ctx.saved_tensors
        return torch.zeros_like(x).index_add(0, index, 2 * x.index_select(0, index) * g), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> tuple[Tensor, None]:
        x, index = ctx.saved_tensors
        return 2 * x.index_select(0, index) * t.index_select(0, index), None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(4), torch.tensor([0, 2, 2])


class DropoutUnderVmap(Function):
    """Another mask at each entry, or the same one: no loop draws like that."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
        mask = (torch.rand_like(x) > p).to(x.dtype)
        return x * mask / (1 - p), mask

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.p = inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return g * mask / (1 - ctx.p), None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(8), 0.5


class Derived(pullback.Function):
    """Neither jvp nor vmap: pullback finds both in backward and forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        y = torch.tanh(x @ w)
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w, y = ctx.saved_tensors
        slope = g.to(w.dtype) * (1 - y.to(w.dtype) ** 2)
        gx = slope @ w.mT if ctx.needs_input_grad[0] else None
        gw = x.mT @ slope if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3, 2), leaf(2, 4)


class OpaqueBatchedByItsReference(pullback.Function):
    """NumPy has no batches and no tangents; the formula beside it has."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(3 * x.detach().numpy() ** 2 * g.detach().numpy())

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
