"""Ten activations with derivatives of their own: a small library, whose whole test file is test_activations.py.

Each keeps its argument and nothing else. PyTorch's formula stands beside each as its ``reference``; beside a kernel it
would stand there just the same.

In the derivations g is the cotangent of the output and σ the sigmoid. All are elementwise: the gradient is g f'(x).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import pullback
from pullback import Context


class Activation(pullback.Function):
    """What all of them have: arguments to be tried with."""

    @staticmethod
    def samples() -> Iterator[tuple[Tensor]]:
        """Draw a few ordinary numbers; the check adds zeros, infinities and others by itself."""
        yield (torch.randn(3, 4, dtype=torch.float64, requires_grad=True),)


class Square(Activation):
    """y = x²."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    # f' = 2 x
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x.square()


class SquaredReLU(Activation):
    """y = max(x, 0)²."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu() * x.relu()

    # f' = 2 max(x, 0)
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x.relu() * g

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return F.relu(x).square()


class SiLU(Activation):
    """y = x σ(x)."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    # f' = σ(x) (1 + x (1 - σ(x)))
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * s * (1 + x * (1 - s))

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return F.silu(x)


class Softplus(Activation):
    """y = log(1 + eˣ)."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.logaddexp(x, torch.zeros_like(x))

    # f' = eˣ / (1 + eˣ) = σ(x)
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(x)

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return F.softplus(x, threshold=math.inf)


class LogSigmoid(Activation):
    """y = log σ(x)."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return -torch.logaddexp(-x, torch.zeros_like(x))

    # f' = 1 - σ(x) = σ(-x)
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(-x)

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return F.logsigmoid(x)


class LogCosh(Activation):
    """y = log cosh x = x + log(1 + e⁻²ˣ) - log 2, which doesn't overflow."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x + torch.logaddexp(-2 * x, torch.zeros_like(x)) - math.log(2)

    # f' = tanh x
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * torch.tanh(x)

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x.cosh().log()


class Tanhshrink(Activation):
    """y = x - tanh x."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x - torch.tanh(x)

    # f' = tanh² x
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * torch.tanh(x).square()

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return F.tanhshrink(x)


class Softsign(Activation):
    """y = x / (1 + |x|)."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x / (1 + x.abs())

    # f' = 1 / (1 + |x|)²
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g / (1 + x.abs()).square()

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return F.softsign(x)


class GELU(Activation):
    """y = x Φ(x), with Φ(x) = (1 + erf(x / √2)) / 2 the distribution function of a standard normal number."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2

    # f' = Φ(x) + x φ(x), where φ = Φ' is the density exp(-x² / 2) / √(2π)
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
        return g * ((1 + torch.erf(x / math.sqrt(2))) / 2 + x * density)

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return F.gelu(x)


class Snake(Activation):
    """y = x + sin² x."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x + torch.sin(x).square()

    # f' = 1 + 2 sin x cos x = 1 + sin 2x
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (1 + torch.sin(2 * x))

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x + (1 - torch.cos(2 * x)) / 2
