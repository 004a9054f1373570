"""What is cheap to compute again: the table, and when it applies."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pullback
from pullback.memory.cheap import CHEAP
from tests.memory.models import Residual


def leaf(*shape: int) -> Tensor:
    """Return a tensor that requires grad."""
    return torch.randn(*shape, requires_grad=True)


def cheap(ledger: pullback.memory.ledger.Ledger) -> dict[str, int]:
    """Return the bytes of each operation's argument that is cheap."""
    return {str(entry.first): entry.bytes for entry in ledger.entries if entry.recompute}


def test_an_activation_of_something_kept_is_cheap() -> None:
    """silu keeps its input, so what the next operation keeps of its output could be computed again."""
    x, w = leaf(4, 8), leaf(8, 8)
    with pullback.saved_memory() as ledger:
        y = F.silu(x @ w) @ w
    assert cheap(ledger) == {"MmBackward0.self": 128}
    assert ledger.recomputable == 128
    assert "SiluBackward0: an activation, elementwise" in str(ledger)
    assert y.requires_grad


def test_an_activation_of_something_that_is_not_kept_is_not() -> None:
    """relu and tanh keep their output alone: to compute that again, their input would have to be kept instead."""
    x, w = leaf(4, 8), leaf(8, 8)
    for activation in (torch.relu, torch.tanh):
        with pullback.saved_memory() as ledger:
            y = activation(x @ w) @ w
        assert cheap(ledger) == {}
        assert ledger.recomputable == 0
    assert "cheap to compute again" not in str(ledger)
    assert y.requires_grad


def test_products_of_cheap_things_are_cheap() -> None:
    """In a gated feed-forward block all but gate and up can be computed again: the activation, and the product."""
    block, x = Residual(16, 2), torch.randn(1, 6, 16)
    with pullback.saved_memory() as ledger:
        y = block(x)
    wide = 6 * 32 * 4
    found = [
        (entry.operation, entry.argument, bool(entry.recompute)) for entry in ledger.entries if entry.bytes == wide
    ]
    assert found == [
        ("SiluBackward0", "self", False),  # the gate
        ("MulBackward0", "other", False),  # what goes up
        ("MulBackward0", "self", True),  # the activation
        ("MmBackward0", "self", True),  # the product
    ]
    assert y.requires_grad


def test_the_output_of_a_matrix_product_is_not() -> None:
    """However much is kept, a matrix product is not done again for it."""
    x, w = leaf(4, 8), leaf(8, 8)
    with pullback.saved_memory() as ledger:
        y = (x @ w).sin() + (x @ w).exp()
    assert cheap(ledger) == {}
    assert y.requires_grad


def test_a_norm_of_something_kept_is_cheap() -> None:
    """layer_norm keeps its input, so that its output, which a linear layer keeps, is cheap."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)), torch.randn(4, 8)
    with pullback.saved_memory() as ledger:
        y = model(x)
    assert cheap(ledger) == {"AddmmBackward0.mat1 in Sequential.2": 128}
    assert y.requires_grad


@pytest.mark.parametrize("module", [True, False])
def test_dropout_masks_are_cheap(module: bool) -> None:
    """Nothing in the graph says what a mask is: the module does, or, for the function, its values."""
    x = leaf(20, 10)
    with pullback.saved_memory() as ledger:
        y = nn.Dropout(0.25)(x) if module else F.dropout(x, 0.25)
    (entry,) = ledger.entries
    assert entry.recompute == "a dropout mask, drawn again from the state of the generator"
    assert y.requires_grad


def test_a_factor_that_is_no_mask_is_not() -> None:
    """A constant with other values, or a mask of zeros and ones, was not drawn by dropout."""
    x = leaf(20, 10)
    with pullback.saved_memory() as ledger:
        y = x * torch.randn(20, 10) + x * torch.randn(20, 10).round().clamp(0, 1)
    assert cheap(ledger) == {}
    assert y.requires_grad


def test_a_users_function_is_not_taken_for_an_operation_of_the_same_name() -> None:
    """A Function called Exp may be anything."""

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
            return grad

    x = leaf(4, 4)
    with pullback.saved_memory() as ledger:
        y = Exp.apply(x * 2).sin()
    assert "SinBackward0.self" not in cheap(ledger)
    assert y.requires_grad


def test_the_table_has_names_of_pytorch() -> None:
    """Each name in the table is that of a derivative, so that no entry is dead; one is for other devices."""
    known = {type(function(leaf(2, 4)).grad_fn).__name__.partition("Backward")[0] for function in FUNCTIONS}
    assert set(CHEAP) - known <= {"FusedRmsNorm"}


FUNCTIONS = (
    *(F.silu, F.gelu, F.relu, F.leaky_relu, F.elu, F.celu, F.hardswish, F.hardsigmoid, F.hardtanh, F.mish),
    *(F.softplus, F.logsigmoid, torch.sigmoid, torch.tanh, F.softshrink, F.hardshrink, F.glu),
    lambda x: F.threshold(x, 0.1, 0.0),
    *(torch.neg, torch.abs, torch.square, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.exp, torch.log, torch.log1p),
    *(torch.sin, torch.cos, torch.erf, torch.clone, lambda x: x + x, lambda x: x - x, lambda x: 1 - x, lambda x: x * x),
    *(lambda x: x / x, lambda x: x**3, lambda x: x.clamp(0, 1), lambda x: x.clamp_min(0), lambda x: x.clamp_max(0)),
    *(lambda x: torch.where(x > 0, x, 0), lambda x: x.masked_fill(x > 0, 1), lambda x: torch.addcmul(x, x, x)),
    *(lambda x: torch.lerp(x, x, 0.5), lambda x: torch.maximum(x, x), lambda x: torch.minimum(x, x)),
    *(
        lambda x: F.layer_norm(x, (4,)),
        lambda x: F.group_norm(x, 2),
        lambda x: F.batch_norm(x, None, None, training=True),
    ),
    *(lambda x: x.double(), lambda x: x.softmax(-1), lambda x: x.log_softmax(-1)),
)
