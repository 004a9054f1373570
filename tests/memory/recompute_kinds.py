"""Models whose gradients recompute has to leave as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import pullback
from pullback import Context

DTYPE = torch.float64


class Cube(pullback.Function):
    """x³, which saves its argument."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        """Return x³."""
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        """Return 3 x² g."""
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Attention(nn.Module):
    """One head, with what else a call may have: keywords, containers, and what is no tensor."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor, extra: dict[str, Any] | None = None, *, causal: bool = False) -> dict[str, Any]:
        """Return the result and its shape."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        if extra is not None:
            y = y * extra["scale"] + extra["shifts"][0]
        return {"y": (y, x.shape), "causal": causal}


class Cubes(nn.Module):
    """A Function between other operations."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return a function of x that goes through Cube."""
        return Cube.apply(torch.tanh(self.linear(x))).sin()


@dataclass(frozen=True)
class Model:
    """A module, and what to give it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that a gradient is asked for."""
        tensors = torch.utils._pytree.tree_leaves((self.args, self.kwargs))
        return [*[leaf for leaf in tensors if isinstance(leaf, Tensor)], *self.module.parameters()]


def drawn(*shape: int) -> Tensor:
    """Return a leaf."""
    return torch.randn(*shape, dtype=DTYPE, requires_grad=True)


def mlp() -> Model:
    """Two layers with a pointwise operation between."""
    return Model(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Tanh()), (drawn(3, 4),), {})


def dropout() -> Model:
    """Random numbers, in two places."""
    return Model(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.3)), (drawn(3, 4),), {})


def batch_norm() -> Model:
    """A layer that counts its batches."""
    return Model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()), (drawn(5, 4),), {})


def frozen_batch_norm() -> Model:
    """The same layer, that uses what it has counted."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())
    return Model(module.eval(), (drawn(5, 4),), {})


def attention() -> Model:
    """Keywords, containers and what is no tensor."""
    extra = {"scale": drawn(3, 4), "shifts": [drawn(4), None]}
    return Model(Attention(), (drawn(2, 3, 4), extra), {"causal": True})


def lstm() -> Model:
    """A tuple in a tuple comes out."""
    return Model(nn.LSTM(4, 3), (drawn(5, 2, 4), (drawn(1, 2, 3), drawn(1, 2, 3))), {})


def heads() -> Model:
    """PyTorch's attention, which asks whether its arguments are one tensor."""
    x = drawn(2, 3, 4)
    return Model(nn.MultiheadAttention(4, 2, batch_first=True), (x, x, x), {"need_weights": False})


def convolution() -> Model:
    """Convolution and pooling, whose indices are integers."""
    return Model(nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.SiLU()), (drawn(2, 2, 6, 6),), {})


def functions() -> Model:
    """A pullback.Function inside."""
    return Model(Cubes(), (drawn(3, 4),), {})


MODELS: dict[str, Callable[[], Model]] = {
    make.__name__: make
    for make in (
        mlp, dropout, batch_norm, frozen_batch_norm, attention, lstm, heads, convolution, functions,
    )
}  # fmt: skip


def made(name: str) -> Model:
    """Return the model of this name, in float64."""
    model = MODELS[name]()
    model.module.to(DTYPE)
    return model


def score(outputs: Any) -> Tensor:
    """Return a number that depends on each output, not linearly."""
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return sum(((leaf * (1 + leaf)).sum() for leaf in leaves), torch.zeros((), dtype=DTYPE))


def derivatives(call: Callable[..., Any], model: Model) -> list[Tensor | None]:
    """Return value, gradients, and gradients of their squares, with the random numbers of one seed."""
    torch.manual_seed(5)
    with sdpa_kernel(SDPBackend.MATH):  # the one of PyTorch's forms of attention that has a second derivative
        value = score(call(*model.args, **model.kwargs))
        first = torch.autograd.grad(value, model.leaves, create_graph=True, allow_unused=True)
        square = sum((gradient.square().sum() for gradient in first if gradient is not None), value.detach() * 0)
        second = torch.autograd.grad(square, model.leaves, allow_unused=True)
    return [value, *first, *second]


def assert_equal(one: list[Tensor | None], other: list[Tensor | None]) -> None:
    """Check that all are the same to the last bit: the same operations ran, on the same numbers."""
    assert len(one) == len(other)
    for index, (left, right) in enumerate(zip(one, other, strict=True)):
        assert (left is None) == (right is None), index
        if left is not None and right is not None:
            assert torch.equal(left, right), index
