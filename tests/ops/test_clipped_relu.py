"""clipped_relu: PyTorch's hardtanh and relu, for one bit an element."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.errors import OperationError
from pullback.ops import clipped_relu
from tests.saved_bytes import bytes_kept

SPECIAL = (0.0, -0.0, 6.0, 5.9, 6.1, math.inf, -math.inf, math.nan, 1e-30, -1e-30)


@pytest.mark.parametrize("max_val", [6.0, 0.5, math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients_are_pytorchs_bit_for_bit(dtype: torch.dtype, max_val: float) -> None:
    """Kinks and infinities included: gradient 0 at both ends, as for relu6 and relu. NaN stays NaN.

    Its gradient is left out: in PyTorch's own kernel it depends on where the element lies in memory.
    """

    def formula(x: Tensor) -> Tensor:
        return F.relu(x) if max_val == math.inf else F.hardtanh(x, 0.0, max_val)

    results = []
    for call in (lambda x: clipped_relu(x, max_val), formula):
        x = torch.tensor([*SPECIAL, max_val, *range(-20, 20)]).to(dtype).requires_grad_()
        y = call(x)
        (g,) = torch.autograd.grad(y, x, torch.arange(1, x.numel() + 1).to(dtype))
        results.append((y.detach(), g.where(~x.isnan(), 0)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 63, 64, 65, 1001])
def test_one_bit_an_element(count: int) -> None:
    """ceil(n / 8) bytes, whatever the dtype; the input can go."""
    for dtype in (torch.float64, torch.bfloat16):
        x = torch.randn(count).to(dtype).requires_grad_()
        assert bytes_kept(lambda x=x: clipped_relu(x * 1, 6.0)) == math.ceil(count / 8)


def test_an_upstream_infinity_does_not_reach_what_was_clipped() -> None:
    """Outside the ends the gradient is 0 even for a cotangent of infinity or NaN."""
    x = torch.tensor([-1.0, 7.0, 1.0], requires_grad=True)
    (g,) = torch.autograd.grad(clipped_relu(x, 6.0), x, torch.tensor([math.inf, math.nan, math.inf]))
    assert g.tolist() == [0.0, 0.0, math.inf]


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ((torch.ones(2).long(), 6.0), "got: input of torch.int64"),
        ((torch.ones(2), -1.0), "got: max_val=-1.0"),
        ((torch.ones(2), math.nan), "got: max_val=nan"),
        ((torch.ones(2), torch.tensor(6.0)), "got: max_val=tensor(6.)"),
    ],
)
def test_what_it_refuses(arguments: tuple[Tensor, object], got: str) -> None:
    """PB130 says what came and what to do."""
    with pytest.raises(OperationError) as caught:
        clipped_relu(*arguments)
    assert str(caught.value).startswith("PB130 clipped_relu: ")
    assert got in str(caught.value)
    assert "remedy: " in str(caught.value)


@pytest.mark.parametrize("shape", [(3, 5), (2, 8)])
def test_a_batch_of_cotangents(shape: tuple[int, int]) -> None:
    """With is_grads_batched each cotangent meets the same bits."""
    x, g = torch.randn(shape).requires_grad_(), torch.randn(4, *shape)
    y = clipped_relu(x, 0.5)
    (got,) = torch.autograd.grad(y, x, g, retain_graph=True, is_grads_batched=True)
    each = [torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in g]
    assert torch.equal(got, torch.stack(each))


def test_memory_that_is_used_again_is_its_own() -> None:
    """No argument, cotangent or result is written to, and a second backward gives the same."""
    x, g = torch.randn(2, 8).requires_grad_(), torch.randn(2, 8)
    y = clipped_relu(x, 0.5)
    before = [tensor.detach().clone() for tensor in (x, g, y)]
    (first,) = torch.autograd.grad(y, x, g, retain_graph=True)
    kept = first.clone()
    assert torch.equal(torch.autograd.grad(y, x, g)[0], kept)
    assert all(map(torch.equal, (first, x, g, y), (kept, *before)))


def test_second_order_where_the_input_is_gone() -> None:
    """A gradient penalty is exact though the input is no leaf and wasn't kept: the bits say all."""
    x = torch.tensor([-1.0, 0.2, 0.4, 3.0], dtype=torch.float64, requires_grad=True)
    results = []
    for call in (clipped_relu, lambda x, max_val: F.hardtanh(x, 0.0, max_val)):
        (first,) = torch.autograd.grad(call(x * x * x, 0.5).sum(), x, create_graph=True)
        results.append(torch.autograd.grad((first * first).sum(), x)[0])
    assert torch.equal(results[0], results[1])
    assert results[0].count_nonzero() == 2


@pytest.mark.parametrize(
    ("dtype", "max_val"), [(torch.float16, 1e5), (torch.bfloat16, 1e39), (torch.float32, 10**400)], ids=str
)
def test_a_ceiling_above_all_numbers_of_the_dtype(dtype: torch.dtype, max_val: float) -> None:
    """It is none, as infinity is, where PyTorch's operators raise."""
    x = torch.tensor([-1.0, 2.0, math.inf]).to(dtype).requires_grad_()
    y = clipped_relu(x, max_val)
    assert y.tolist() == [0.0, 2.0, math.inf]
    assert torch.autograd.grad(y, x, torch.ones_like(y))[0].tolist() == [0.0, 1.0, 1.0]
