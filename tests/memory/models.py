"""Ten kinds of models, small, each with what it is called with: a ledger has to be right on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pullback
from pullback.ops.swiglu import swiglu

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Residual(nn.Module):
    """A block of a Llama-like model: norm, attention and a gated feed-forward, each beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        """Make its parts."""
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def attend(self, x: Tensor) -> Tensor:
        """Return causal attention over (B, T, H)."""
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first(x))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Two such blocks between an embedding and logits."""

    def __init__(self) -> None:
        """Make its parts."""
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList([Residual(16, 2) for _ in range(2)])
        self.norm, self.head = nn.RMSNorm(16), nn.Linear(16, 50, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())


class Recurrent(nn.Module):
    """A recurrent layer and a linear one on its last output."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        """Make its parts."""
        super().__init__()
        self.recurrent, self.head = kind(5, 7, num_layers=2, batch_first=True), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


class Classifier(nn.Module):
    """An embedding and PyTorch's own encoder."""

    def __init__(self) -> None:
        """Make its parts."""
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1)).log_softmax(-1)


class UNet(nn.Module):
    """Down, up, and a skip connection between."""

    def __init__(self) -> None:
        """Make its parts."""
        super().__init__()
        self.inner, self.down = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = F.leaky_relu(self.inner(x))
        below = F.gelu(self.down(across))
        return self.out(torch.cat((across, F.interpolate(self.up(below), across.shape[2:])), 1))


class Attention(nn.Module):
    """Attention written out, with a mask that is a buffer."""

    def __init__(self) -> None:
        """Make its parts."""
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).mT / 8**0.5
        weights = scores.masked_fill(~self.mask, -torch.inf).softmax(-1)
        return F.dropout(weights, 0.2, self.training) @ self.v(x)


class TorchSquare(torch.autograd.Function):
    """PyTorch's own kind of Function; it keeps a clone on ctx as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.sign())
        ctx.twice = {"twice": 2 * x}
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.twice["twice"]


class Square(pullback.Function):
    """The same, pullback's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        twice = 2 * x
        ctx.save_for_backward(x, twice)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[1]


class Custom(nn.Module):
    """Functions of both kinds, and an operation of pullback's."""

    def __init__(self) -> None:
        """Make its parts."""
        super().__init__()
        self.gate, self.up = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        both = swiglu(self.gate(x), self.up(x))
        return Square.apply(both) + TorchSquare.apply(both.tanh())


def _mlp() -> Made:
    return nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)), (_x(5, 9),)


def _cnn() -> Made:
    layers = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3)), (_x(3, 2, 12, 12),)


def _autoencoder() -> Made:
    down = (nn.Linear(20, 10), nn.LayerNorm(10), nn.ELU(), nn.Dropout(0.3), nn.Linear(10, 3))
    return nn.Sequential(*down, nn.Linear(3, 10), nn.Sigmoid(), nn.Dropout(0.3), nn.Linear(10, 20)), (_x(7, 20),)


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape)


def _tokens(high: int) -> Tensor:
    return torch.randint(high, (2, 6))


MODELS: dict[str, Callable[[], Made]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "llama": lambda: (Llama(), (_tokens(50),)),
    "lstm": lambda: (Recurrent(nn.LSTM), (_x(3, 6, 5),)),
    "gru": lambda: (Recurrent(nn.GRU), (_x(3, 6, 5),)),
    "transformer": lambda: (Classifier(), (_tokens(30),)),
    "autoencoder": _autoencoder,
    "attention": lambda: (Attention(), (_x(2, 6, 8),)),
    "unet": lambda: (UNet(), (_x(2, 1, 8, 8),)),
    "custom": lambda: (Custom(), (_x(4, 6),)),
}
"""By name: makes a model, and the inputs of a step."""


def made(name: str) -> Made:
    """Make the model of this name and its inputs, always the same."""
    torch.manual_seed(0)
    return MODELS[name]()


def beside(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the tensors that are alive whether or not there is a graph."""
    return [*model.parameters(), *model.buffers(), *inputs]
