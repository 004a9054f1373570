"""Right Functions of lists, dicts, tuples and modules: a finding about one of them is a false alarm."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import pullback


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


class WeightedSum(pullback.Function):
    """A list of tensors, and a list of their gradients."""

    @staticmethod
    def forward(ctx: Any, xs: list[Tensor], by: float = 2.0) -> Tensor:
        ctx.by, ctx.count = by, len(xs)
        return by * torch.stack(xs).sum(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[list[Tensor], None]:
        return [ctx.by * g for _ in range(ctx.count)], None

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield [leaf(2), leaf(2)], 3.0
        yield [leaf(2), torch.ones(2, dtype=torch.float64), leaf(2)], -1.0


class Affine(pullback.Function):
    """A dict of parameters beside a plain argument, gradients by name, and the second derivative by what was saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: dict[str, Tensor]) -> Tensor:
        ctx.save_for_backward(x, state["weight"])
        return x * state["weight"] + state["bias"]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> dict[str, Any]:
        x, weight = ctx.saved_tensors
        return {"x": g * weight, "state": {"weight": g * x, "bias": g}}

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(3), {"weight": leaf(3), "bias": leaf(3)}


class Pair(NamedTuple):
    """Two results by name."""

    sine: Tensor
    cosine: Tensor


class SineAndCosine(pullback.Function):
    """A named tuple comes back, and its cotangents come as one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Pair:
        ctx.save_for_backward(x)
        return Pair(x.sin(), x.cos())

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x.cos() - h * x.sin()

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class Split(pullback.Function):
    """A dict with a list in it comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> dict[str, Any]:
        ctx.save_for_backward(x)
        return {"square": x**2, "rest": [x * 3, x.exp()]}

    @staticmethod
    def backward(ctx: Any, grads: dict[str, Any]) -> Tensor:
        (x,) = ctx.saved_tensors
        triple, exponential = grads["rest"]
        result: Tensor = 2 * x * grads["square"] + 3 * triple + exponential * x.exp()
        return result

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield (leaf(3),)


class ThroughALayer(pullback.Function):
    """A module is a nest of its parameters, its gradients a dict by their names."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:
        ctx.save_for_backward(x, layer.weight)
        result: Tensor = layer(x)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x, weight = ctx.saved_tensors
        g = g.to(weight.dtype)
        return g @ weight, {"weight": g.mT @ x, "bias": g.sum(0)}

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield leaf(4, 3), nn.Linear(3, 2, dtype=torch.float64)


class ByKeywordOnly(pullback.Function):
    """Arguments that go by keyword alone, a nest among them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *, shift: tuple[Tensor, Tensor], gain: float = 2.0) -> Tensor:
        ctx.gain = gain
        return gain * x + shift[0] - shift[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> dict[str, Any]:
        return {"x": ctx.gain * g, "shift": (g, -g)}

    @staticmethod
    def samples() -> Iterator[pullback.Sample]:
        yield pullback.Sample((leaf(3),), {"shift": (leaf(3), leaf(3)), "gain": 3.0})


class ClipsItsList(pullback.Function):
    """Not linear on purpose; what it should return is a nest as well."""

    nonlinear_backward = True

    @staticmethod
    def forward(ctx: Any, xs: list[Tensor]) -> list[Tensor]:
        return [x * 2 for x in xs]

    @staticmethod
    def backward(ctx: Any, grads: list[Tensor]) -> list[Tensor]:
        return [(2 * g).clamp(-1, 1) for g in grads]

    @staticmethod
    def expected_backward(inputs: Any, outputs: Any, grad_outputs: Any) -> list[Tensor]:
        return [(2 * g).clamp(-1, 1) for g in grad_outputs[0]]

    @staticmethod
    def samples() -> Iterator[tuple[object, ...]]:
        yield ([leaf(3), leaf(2)],)
