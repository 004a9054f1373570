"""Wrong in one leaf of a container; the containers themselves are tracked, each leaf with its own gradient."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import pullback


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class SwapsTwoLeaves(pullback.Function):
    """The gradients of the list come in the wrong order."""

    @staticmethod
    def forward(ctx: Any, xs: list[Tensor]) -> Tensor:
        ctx.save_for_backward(*xs)
        return xs[0] * xs[1].exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> list[Tensor]:
        a, b = ctx.saved_tensors
        return [g * a * b.exp(), g * b.exp()]  # expect: PB203

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield ([leaf(2), leaf(2)],)


class ForgetsTheBias(pullback.Function):
    """One of the names isn't given a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: dict[str, Tensor]) -> Tensor:
        ctx.save_for_backward(x, state["weight"])
        return x * state["weight"] + state["bias"]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> dict[str, Any]:
        x, weight = ctx.saved_tensors
        return {"x": g * weight, "state": {"weight": g * x, "bias": None}}  # expect: PB204

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), {"weight": leaf(3), "bias": leaf(3)}


class IgnoresPartOfADict(pullback.Function):
    """Of the dict that comes back, the cotangent of one entry is dropped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> dict[str, Tensor]:
        ctx.save_for_backward(x)
        return {"square": x**2, "cube": x**3}

    @staticmethod
    def backward(ctx: Any, grads: dict[str, Tensor]) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grads["square"]  # expect: PB209

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(2),)


class TransposesTheWeight(pullback.Function):
    """The layer is square, so the transposed gradient of its weight fits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:
        ctx.save_for_backward(x, layer.weight)
        result: Tensor = layer(x)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x, weight = ctx.saved_tensors
        g = g.to(weight.dtype)
        return g @ weight, {"weight": x.mT @ g, "bias": g.sum(0)}  # expect: PB203

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(4, 3), nn.Linear(3, 3, dtype=torch.float64)


class NestOnceOnly(pullback.Function):
    """What was saved is computed from a leaf of the list by NumPy, so the second derivative is lost."""

    @staticmethod
    def forward(ctx: Any, xs: list[Tensor]) -> Tensor:
        slope = torch.from_numpy(xs[0].detach().numpy() * 2)
        ctx.save_for_backward(slope)
        return torch.from_numpy(xs[0].detach().numpy() ** 2) + xs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> list[Tensor]:
        (slope,) = ctx.saved_tensors
        return [g * slope, g]  # expect: PB206

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield ([leaf(2), leaf(2)],)
