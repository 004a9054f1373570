"""What the ledger calls cheap is freed, byte for byte, by recompute around the part that makes and reads it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pullback
from pullback import ops
from pullback.memory.cheap import CHEAP, OWN

Part = Callable[..., Tensor]


class Scaled(torch.autograd.Function):
    """Keeps its input on ctx, where no hook sees it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.x


def leaf(*shape: int) -> Tensor:
    """Return a tensor that requires grad."""
    return torch.randn(*shape, requires_grad=True)


WEIGHT, BIAS, FROZEN, SQUARE = leaf(64), leaf(64), torch.randn(64), leaf(64, 64)
TABLES = torch.randn(32, 64), torch.randn(32, 64)
NORM = nn.BatchNorm1d(64)
CONVOLUTIONS = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 2, 3))

ACTIVATIONS = (
    *(F.silu, F.gelu, F.relu, F.leaky_relu, F.elu, F.celu, F.hardswish, F.hardsigmoid, F.hardtanh, F.mish, F.softplus),
    *(F.logsigmoid, torch.sigmoid, torch.tanh, F.softshrink, F.hardshrink, torch.exp, torch.sin, torch.cos, torch.erf),
    *(torch.neg, torch.abs, torch.square),
)

WITHOUT: dict[str, Part] = {
    "relu of what nothing keeps": lambda h: F.relu(h) @ SQUARE,
    "tanh of what nothing keeps": lambda h: torch.tanh(h) @ SQUARE,
    "dropout of what nothing keeps": lambda h: F.dropout(h + h, 0.5),
    "a sum with a tensor that nothing keeps": lambda h: (h.sin() + torch.randn(32, 64)).exp(),
    "where, with a tensor that nothing keeps": lambda h: torch.where(h.sin() > 0, h, torch.randn(32, 64)) @ SQUARE,
    "clipped_relu of what nothing keeps": lambda h: ops.clipped_relu(h, 6) @ SQUARE,
    "dropout_add of what nothing keeps": lambda h, u: ops.dropout_add(h, u, 0.5) @ SQUARE,
    "rope of what nothing keeps": lambda h: ops.rope(h, *TABLES) @ SQUARE,
}
"""Where recompute would keep as much as it frees."""

PARTS: dict[str, Part] = {
    "relu of a norm": lambda h: F.relu(F.layer_norm(h, (64,), WEIGHT, BIAS)) @ SQUARE,
    "a norm without a weight": lambda h: F.layer_norm(h, (64,)) @ SQUARE,
    "a norm without a bias": lambda h: F.layer_norm(h, (64,), WEIGHT) @ SQUARE,
    "a norm of frozen weights": lambda h: F.layer_norm(h, (64,), FROZEN, FROZEN) @ SQUARE,
    "a group norm without a weight": lambda h: F.group_norm(h, 4) @ SQUARE,
    "a group norm with a weight": lambda h: F.group_norm(h, 4, WEIGHT, BIAS) @ SQUARE,
    "a batch norm without a weight": lambda h: F.batch_norm(h, None, None, training=True) @ SQUARE,
    "a batch norm, as a module": lambda h: NORM(h) @ SQUARE,
    "convolution, batch norm, relu, convolution": lambda h: CONVOLUTIONS(h.unsqueeze(1)),
    "softmax of a norm": lambda h: F.layer_norm(h, (64,)).softmax(-1) @ SQUARE,
    "a product of activations": lambda h, u: (F.silu(h) * F.gelu(u)) @ SQUARE,
    "a product with a number": lambda h: (F.silu(h) * 2.0) @ SQUARE,
    "half of what is kept": lambda h: F.relu(F.layer_norm(h[:, :32], (32,))) @ SQUARE[:32],
    "dropout after relu": lambda h: F.dropout(F.relu(h), 0.5) @ SQUARE,
    "ops.swiglu": lambda h, u: ops.swiglu(h, u) @ SQUARE,
    "ops.swiglu with a constant": lambda h, u: ops.swiglu(h, u.detach()) @ SQUARE,
    "ops.geglu": lambda h, u: ops.geglu(h, u) @ SQUARE,
    "ops.rms_norm": lambda h: ops.rms_norm(h, (64,), WEIGHT) @ SQUARE,
    "ops.layer_norm": lambda h: ops.layer_norm(h, (64,), WEIGHT, BIAS) @ SQUARE,
    "ops.layer_norm without a weight": lambda h: ops.layer_norm(h, (64,)) @ SQUARE,
    "ops.clipped_relu of a norm": lambda h: ops.clipped_relu(ops.layer_norm(h, (64,)), 6) @ SQUARE,
    "ops.dropout_add of what is kept": lambda h, u: ops.dropout_add(h.sin(), u.cos(), 0.5) @ SQUARE,
    "ops.rope of a norm": lambda h: ops.rope(ops.rms_norm(h, (64,)), *TABLES) @ SQUARE,
}
"""Where it frees something."""


def kept(part: Part, recomputed: bool = False) -> tuple[int, int]:
    """Return the bytes that are kept for a part between two matrix products, and how many of them are cheap."""
    x, weights = torch.randn(32, 64), [leaf(64, 64) for _ in inspect.signature(part).parameters]
    run = pullback.recompute(part) if recomputed else part
    run(*[x @ weight for weight in weights])  # what a recomputed module learns from its first call
    with pullback.saved_memory() as ledger:
        y = run(*[x @ weight for weight in weights])
    state = torch.get_rng_state().nbytes
    assert y.requires_grad
    # The random state of a recompute is no part of the promise: the calls of a step share it while they draw nothing.
    total = sum(entry.bytes for entry in ledger.entries if (entry.dtype, entry.bytes) != ("uint8", state))
    if part in PARTS.values() and not recomputed:
        assert ledger.recomputable > 0, str(ledger)
    return total, ledger.recomputable


@pytest.mark.parametrize("name", PARTS)
def test_what_is_cheap_is_freed(name: str) -> None:
    """Something is claimed, and at least that much is gone under recompute."""
    plain, cheap = kept(PARTS[name])
    under_recompute, _ = kept(PARTS[name], recomputed=True)
    assert plain - under_recompute >= cheap


@pytest.mark.parametrize("function", ACTIVATIONS, ids=lambda function: function.__name__)
def test_an_activation_of_a_norm_is_cheap_whatever_it_keeps(function: Callable[[Tensor], Tensor]) -> None:
    """Whether it keeps its input or its result, both are there again once the norm is done again."""
    part: Part = lambda h: function(F.layer_norm(h, (64,))) @ SQUARE  # noqa: E731 - a part as in the tables
    plain, cheap = kept(part)
    under_recompute, _ = kept(part, recomputed=True)
    assert cheap >= 32 * 64 * 4
    assert plain - under_recompute >= cheap


@pytest.mark.parametrize("name", WITHOUT)
def test_what_recompute_would_not_free_is_not_cheap(name: str) -> None:
    """Its input would be kept in its place."""
    plain, cheap = kept(WITHOUT[name])
    under_recompute, _ = kept(WITHOUT[name], recomputed=True)
    assert cheap <= max(0, plain - under_recompute)


def test_what_lies_on_ctx_is_not_cheap() -> None:
    """No rerun frees it, however cheap its operation is."""
    x = leaf(32, 64)
    with pullback.saved_memory() as ledger:
        y = Scaled.apply(x.sin())
    assert [entry.recompute for entry in ledger.entries] == [""]
    assert y.requires_grad


def test_a_mask_before_a_sum_is_what_dropout_add_does_without() -> None:
    """Whatever was dropped: the operation keeps a key of 16 bytes in the mask's place."""
    x, weight = torch.randn(32, 64), leaf(64, 64)

    def total(add: Part) -> tuple[int, int]:
        with pullback.saved_memory() as ledger:
            y = add(x @ weight, x)
        assert y.requires_grad
        return ledger.total, ledger.recomputable

    plain, cheap = total(lambda h, r: F.dropout(h, 0.5) + r)
    mended, _ = total(lambda h, r: ops.dropout_add(h, r, 0.5))
    assert cheap == plain - mended + 16 == 32 * 64 * 4


def test_a_long_chain_is_no_error() -> None:
    """What is many operations away isn't cheap, and looking that far ends."""
    x = leaf(8)
    with pullback.saved_memory() as ledger:
        y = x * 1.0
        for _ in range(3000):
            y = y + y
        z = y.exp()
    assert ledger.recomputable == 0
    assert z.requires_grad


def test_the_operations_of_pullback_in_the_table_are_there() -> None:
    """Each name is that of a Function in pullback.ops, and none is in the table of PyTorch's."""
    names = {
        name
        for info in pkgutil.iter_modules(ops.__path__)
        for name, value in vars(importlib.import_module(f"pullback.ops.{info.name}")).items()
        if isinstance(value, type) and issubclass(value, pullback.Function)
    }
    assert set(OWN) <= names
    assert not set(OWN) & set(CHEAP)
