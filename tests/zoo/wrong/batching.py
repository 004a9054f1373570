"""Wrong for a batch only, of arguments or of cotangents: forward and backward are right for one."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import pullback


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class _Product(Function):
    """x · w, whose vmap is left to each inhabitant."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        gx = g * w if ctx.needs_input_grad[0] else None
        gw = g * x if ctx.needs_input_grad[1] else None
        return gx, gw

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(2, 2), leaf(2, 2)


def in_front(tensor: Tensor, dim: int | None) -> Tensor:
    """The tensor with its batch in front, where it has one."""
    return tensor if dim is None else tensor.movedim(dim, 0)


class VmapSaysTheWrongDimension(_Product):
    """The batch of the result is in front, and vmap says that it comes second."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
        return _Product.apply(in_front(x, in_dims[0]), in_front(w, in_dims[1])), 1  # expect: PB509


class VmapForgetsWhatIsShared(_Product):
    """in_dims is None for an argument that all entries share; here it is taken as a dimension."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
        return _Product.apply(x.movedim(in_dims[0], 0), w.movedim(in_dims[1], 0)), 0  # expect: PB509


class VmapTakesTheBatchToBeInFront(_Product):
    """Right for in_dims=0, which is all that anyone tried."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
        return _Product.apply(x, w), 0  # expect: PB509


class VmapLosesTheGraph(_Product):
    """The batched kernel gets detached tensors, so a batch has no gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
        batch = in_front(x, in_dims[0]).detach()  # expect: PB509
        return _Product.apply(batch, in_front(w, in_dims[1])), 0


class VmapMixesTheBatch(Function):
    """The sum that normalises an entry is taken over the whole batch."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x / x.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        total = x.sum()
        return g / total - (g * x).sum() / total**2

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        return VmapMixesTheBatch.apply(x), in_dims[0]  # expect: PB509

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(4),)


class GeneratedThoughItReadsANumber(Function):
    """generate_vmap_rule promises PyTorch operations all the way; this forward reads a number out of its argument."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * float(x.isfinite().all())  # expect: PB509

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 1

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class DetachesAGradient(pullback.Function):
    """The reference gives the second derivative all the same, and a batch of cotangents can't be detached."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (g * x.cos()).detach()  # expect: PB509

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)
