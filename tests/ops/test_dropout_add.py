"""dropout_add: numbers that are random enough, repeated by seed, the same in backward as in forward."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pullback.errors import OperationError
from pullback.ops import dropout_add
from pullback.ops.draws import COLUMNS, kept
from tests.saved_bytes import bytes_kept


def mask(seed: int, *shape: int, p: float = 0.5) -> Tensor:
    """Which elements stay, as float64."""
    torch.manual_seed(seed)
    return (dropout_add(torch.ones(shape), torch.zeros(shape), p) != 0).double()


def deviations(share: float, p: float, count: int) -> float:
    """How many standard deviations a share of `count` draws is off."""
    return abs(share - p) / math.sqrt(p * (1 - p) / count)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped(p: float) -> None:
    """Over a million elements and twenty seeds it is p, within five standard deviations; each seed within five too."""
    shares = [1 - float(mask(seed, 1_000_000, p=p).mean()) for seed in range(20)]
    assert all(deviations(share, p, 1_000_000) < 5 for share in shares)
    assert deviations(sum(shares) / 20, p, 20_000_000) < 5


@pytest.mark.parametrize("apart", [1, 2, 3, 7, 64, 1000, 1024, COLUMNS - 1, COLUMNS, COLUMNS + 1, 2 * COLUMNS])
def test_elements_apart_are_independent(apart: int) -> None:
    """Neighbours, and elements a row or more apart, are both kept in a quarter of the cases."""
    drawn = mask(3, 2_000_000)
    both = drawn[:-apart] * drawn[apart:]
    assert deviations(float(both.mean()), 0.25, both.numel()) < 5


def test_rows_and_columns_of_the_grid_are_even() -> None:
    """Each of 64 rows, and each 1,024th of the columns, has its share: chi-square within five deviations."""
    drawn = mask(5, 64 * COLUMNS).view(64, COLUMNS)
    for sums, count in ((drawn.sum(1), COLUMNS), (drawn.sum(0).view(64, -1).sum(1), COLUMNS)):
        chi = float(((sums - count / 2) ** 2 / (count / 4)).sum())
        assert abs(chi - sums.numel()) < 5 * math.sqrt(2 * sums.numel())


def test_seeds_are_independent() -> None:
    """Neighbouring seeds, and keys that differ in one bit, agree in half of the elements."""
    one = mask(1, 1_000_000)
    assert deviations(float((one == mask(2, 1_000_000)).double().mean()), 0.5, 1_000_000) < 5
    key = torch.tensor([12345, 67890])
    base = kept(key, 300_000, 0.5, torch.float32)
    for bit in (0, 1, 31, 32, 33, 62):
        for word in (0, 1):
            other = key.clone()
            other[word] ^= 1 << bit
            same = (kept(other, 300_000, 0.5, torch.float32) == base).double().mean()
            assert deviations(float(same), 0.5, 300_000) < 5, (bit, word)


def test_seed_repeats_and_calls_differ() -> None:
    """The same seed gives the same elements, the next call others."""
    torch.manual_seed(4)
    one, two = (dropout_add(torch.ones(100), torch.zeros(100)) for _ in range(2))
    torch.manual_seed(4)
    again = dropout_add(torch.ones(100), torch.zeros(100))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)


def test_backward_drops_what_forward_dropped() -> None:
    """In any layout and dtype, also after other numbers were drawn, and in a second backward."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = torch.ones(6, 5).to(dtype).t().requires_grad_()
        y = dropout_add(x, torch.zeros(5, 6, dtype=dtype), 0.4)
        torch.rand(7)
        for _ in range(2):
            (g,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
            assert torch.equal(g, y.detach())


def test_layout_and_dtype_do_not_matter() -> None:
    """The element's logical place decides."""
    masks = []
    for x in (torch.ones(7, 9), torch.ones(9, 7).t(), torch.ones(7, 9).double(), torch.ones(1).expand(7, 9)):
        torch.manual_seed(6)
        masks.append(dropout_add(x, torch.zeros(7, 9, dtype=x.dtype)) != 0)
    assert all(torch.equal(masks[0], other) for other in masks[1:])


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_under_vmap(randomness: str) -> None:
    """One mask for all examples, or one for each."""
    x = torch.ones(4, 1000)
    y = torch.func.vmap(lambda x: dropout_add(x, torch.zeros_like(x)), randomness=randomness)(x)
    same = [torch.equal(y[0], y[row]) for row in range(1, 4)]
    assert same == [randomness == "same"] * 3
    assert all(deviations(float((row != 0).double().mean()), 0.5, 1000) < 5 for row in y)


def test_bytes() -> None:
    """16 of them in training; none where nothing is dropped, or everything."""
    x, r = torch.randn(50, requires_grad=True), torch.randn(50, requires_grad=True)
    cases: list[tuple[dict[str, Any], int]] = [({"p": 0.3}, 16), ({"p": 0.0}, 0), ({"training": False}, 0)]
    for options, size in cases:
        assert bytes_kept(lambda options=options: dropout_add(x, r, **options), [x, r]) == size
    assert torch.equal(dropout_add(x, r, 1.0), r + 0 * x)


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ((torch.ones(2), torch.ones(2), 1.5), "got: p=1.5"),
        ((torch.ones(2), torch.ones(2), -0.1), "got: p=-0.1"),
        ((torch.ones(2), torch.ones(2), math.nan), "got: p=nan"),
        ((torch.ones(2), torch.ones(3)), "got: (2,) and (3,)"),
        ((torch.ones(2).long(), torch.ones(2)), "got: torch.int64 and torch.float32"),
    ],
)
def test_what_it_refuses(arguments: tuple[Any, ...], got: str) -> None:
    """PB130 says what came and what to do."""
    with pytest.raises(OperationError) as caught:
        dropout_add(*arguments)
    assert str(caught.value).startswith("PB130 dropout_add: ")
    assert got in str(caught.value)
    assert "remedy: " in str(caught.value)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_drops_the_same_again(use_reentrant: bool) -> None:
    """What is run again in backward drops what was dropped in forward, wherever the generator stands then."""
    x = torch.ones(40, requires_grad=True)
    y = checkpoint(dropout_add, x, torch.zeros(40), use_reentrant=use_reentrant)
    torch.rand(10)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y)


def test_a_batch_of_cotangents() -> None:
    """With is_grads_batched each cotangent meets the same mask."""
    x, g = torch.randn(3, 5).requires_grad_(), torch.randn(4, 3, 5)
    y = dropout_add(x, torch.zeros(3, 5))
    (got,) = torch.autograd.grad(y, x, g, retain_graph=True, is_grads_batched=True)
    each = [torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in g]
    assert torch.equal(got, torch.stack(each))


def test_second_order_where_the_input_is_gone() -> None:
    """A gradient penalty is exact though the input is no leaf and wasn't kept: the key says all."""
    x = torch.linspace(0.5, 2, 20, dtype=torch.float64).requires_grad_()
    y = dropout_add(x**3, torch.zeros(20, dtype=torch.float64))
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), x)
    stays = (y != 0).double()
    torch.testing.assert_close(second, 2 * (2 * stays * 3 * x**2) * (2 * 6 * x))
    assert 0 < stays.sum() < 20
