"""What is special to rope: which arguments it keeps, that it is a rotation, low precision and errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import OperationError
from pullback.ops import rope
from pullback.ops.rope import Rope
from tests.ops.kinds.rope import formula
from tests.ops.test_rms_norm import drawn
from tests.saved_bytes import bytes_kept


def tables(length: int, width: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions times frequencies, of half the width."""
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def test_it_keeps_the_tables_and_not_its_input() -> None:
    """With fixed tables the graph keeps these alone; where one is learned, the input too."""
    x = drawn(2, 3, 5, 8)
    cos, sin = tables(5, 8, torch.float32)
    size = cos.numel() * 4
    assert bytes_kept(lambda: rope(x, cos, sin)) == 2 * size
    cos.requires_grad_()
    assert bytes_kept(lambda: rope(x, cos, sin)) == 2 * size + x.numel() * 4
    assert bytes_kept(lambda: rope(x.detach(), cos, sin)) == 2 * size + x.numel() * 4


def test_the_input_is_freed() -> None:
    """What is rotated dies with its last other user, though its gradient is still due."""
    leaf = drawn(2, 3, 5, 8)
    hidden = leaf * 1.0
    before = hidden._version
    y = rope(hidden, *tables(5, 8, torch.float32))
    hidden.zero_()  # of a tensor that the graph kept, backward would complain
    assert hidden._version == before + 1
    y.sum().backward()
    assert leaf.grad is not None


def test_half_tables_and_full_ones_agree() -> None:
    """A table of H/2 stands for both halves, bit by bit, in values and gradients."""
    x = drawn(2, 3, 5, 8, dtype=torch.float64)
    half = tables(5, 8)
    full = tuple(torch.cat((table, table), -1) for table in half)
    g = drawn(2, 3, 5, 8, dtype=torch.float64, seed=1).detach()
    results = []
    for pair in (half, full):
        y = rope(x, *pair)
        results.append((y.detach(), *torch.autograd.grad(y, x, g)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_backward_turns_back() -> None:
    """The gradient of a rotation is the rotation by minus the angle, and lengths stay what they were."""
    x, (cos, sin) = drawn(2, 3, 5, 8, dtype=torch.float64), tables(5, 8)
    y = rope(x, cos, sin)
    (back,) = torch.autograd.grad(y, x, y.detach())
    torch.testing.assert_close(back, x.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rope(y, cos, -sin), x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-12, atol=1e-12)


def test_scores_depend_on_the_distance_alone() -> None:
    """The product of a query and a key is the same wherever the two stand, at the same distance."""
    query, key = drawn(8, dtype=torch.float64).detach(), drawn(8, dtype=torch.float64, seed=1).detach()
    cos, sin = tables(9, 8)
    scores = rope(query.expand(9, 8), cos, sin) @ rope(key.expand(9, 8), cos, sin).T
    for distance in range(-4, 5):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision(dtype: torch.dtype) -> None:
    """In a low dtype each element is within two roundings of its pair's length from the exact one."""
    x = drawn(2, 3, 64, 16, dtype=dtype).detach()
    cos, sin = tables(64, 16, dtype)
    exact = formula(x.double(), cos.double(), sin.double())
    length = torch.cat((x[..., :8].double().hypot(x[..., 8:].double()),) * 2, -1)
    y = rope(x, cos, sin)
    assert y.dtype == dtype
    assert ((y.double() - exact).abs() <= torch.finfo(dtype).eps * length).all()


def test_tables_of_a_higher_precision_raise_the_result() -> None:
    """float32 tables on a bfloat16 input give float32, as the formula does; the gradient is bfloat16."""
    x = drawn(2, 5, 8, dtype=torch.bfloat16)
    cos, sin = tables(5, 8, torch.float32)
    y = rope(x, cos, sin)
    torch.testing.assert_close(y, formula(x, cos, sin))
    assert torch.autograd.grad(y.sum(), x)[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((torch.ones(2, 3), torch.ones(3), torch.ones(3)), r"odd number.*got: input of shape \[2, 3\]"),
        ((torch.tensor(1.0), torch.ones(2), torch.ones(2)), r"isn't there.*got: input of shape \[\]"),
        ((torch.ones(2, 4), torch.ones(4), torch.ones(2)), r"`sin` has another.*sin of shape \[4\].*shape \[2\]"),
        ((torch.ones(2, 4), torch.ones(4), torch.ones(4).double()), r"got: sin of shape \[4\], of torch.float64"),
        ((torch.ones(2, 4), torch.ones(3), torch.ones(3)), r"expected: cos and sin of shape \(…, 4\) or \(…, 2\)"),
        ((torch.ones(2, 4), torch.tensor(1.0), torch.tensor(1.0)), r"got: cos and sin of shape \[\]"),
    ],
    ids=["odd", "0-d", "shapes", "dtypes", "width", "0-d tables"],
)
def test_what_is_refused(given: tuple[Tensor, Tensor, Tensor], text: str) -> None:
    """Shapes and dtypes that don't fit are named, with what was expected."""
    with pytest.raises(OperationError, match=f"(?s)PB130 rope .*{text}"):
        rope(*given)


@pytest.mark.parametrize("batched", [0, 1, 2], ids=["input", "cos", "sin"])
def test_vmap_over_each_argument(batched: int) -> None:
    """Under vmap any one of the arguments may have the batch, the others none."""
    given = [drawn(3, 5, 8, dtype=torch.float64).detach(), *tables(5, 8)]
    given[batched] = torch.stack((given[batched], 2 * given[batched]))
    dims = tuple(0 if index == batched else None for index in range(3))
    torch.testing.assert_close(torch.func.vmap(rope, dims)(*given), torch.func.vmap(formula, dims)(*given))


def test_the_class_is_proven_on_its_own_samples() -> None:
    """The Function itself, not only the public function, passes the battery."""
    report = pullback.check(Rope)
    assert report.ok, str(report)
