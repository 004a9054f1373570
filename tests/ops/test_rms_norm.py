"""What is special to rms_norm and add_rms_norm: PyTorch's own numbers, eps, dtypes, bytes, autocast and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pullback
from pullback.errors import OperationError
from pullback.ops import add_rms_norm, rms_norm
from pullback.ops.rms_norm import RMSNorm
from tests.ops.runs import gradients
from tests.saved_bytes import bytes_kept

LOW = (torch.bfloat16, torch.float16)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """A leaf that requires grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *LOW], ids=str)
def test_eps_of_none_is_that_of_what_is_computed_in(dtype: torch.dtype) -> None:
    """Where the mean square is no larger than eps, the values are PyTorch's: they tell which eps was taken."""
    small = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps ** 0.5
    x = torch.full((2, 4), small).to(dtype)
    torch.testing.assert_close(rms_norm(x, (4,)), F.rms_norm(x, (4,)))
    assert (rms_norm(x, (4,)) - rms_norm(x, (4,), eps=0.0)).abs().min() > 0.2


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("rows", [1, 63, 300], ids=str)
def test_low_precision_is_rounded_once(dtype: torch.dtype, rows: int) -> None:
    """Values and gradients are PyTorch's, which computes in float32 and rounds once: at most the last bit differs.

    There are fewer rows than are widened at a time, and more.
    """
    given = drawn(rows, 1024, dtype=dtype), (1024,), drawn(1024, dtype=dtype, seed=1)
    (y,), found = gradients(rms_norm, given)
    (due,), expected = gradients(F.rms_norm, given)
    for got, right in zip((y, *found), (due, *expected), strict=True):
        largest = float(right.abs().max())
        torch.testing.assert_close(got, right, rtol=torch.finfo(dtype).eps, atol=1e-6 * largest)
        assert (got != right).double().mean() < 0.01  # where the two lie on both sides of a tie


def test_a_weight_of_another_dtype() -> None:
    """A float32 weight beside a bfloat16 input gives bfloat16, and gets its gradient in float32."""
    x, w = drawn(5, 8, dtype=torch.bfloat16), drawn(8, seed=1)
    (y,), (gx, gw) = gradients(rms_norm, (x, 8, w))
    assert (y.dtype, gx.dtype, gw.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    exact = x.detach().double().requires_grad_(), (8,), w.detach().double().requires_grad_()
    _, (_, due) = gradients(F.rms_norm, exact)
    torch.testing.assert_close(gw.double(), due, rtol=1e-2, atol=1e-2)


def test_an_infinite_and_a_nan_row_stay_alone() -> None:
    """An infinite, a NaN and a zero row become what PyTorch makes of them, and leave the other rows alone."""
    x = drawn(5, 4).detach()
    x[1, 2], x[2, 0], x[3] = torch.inf, torch.nan, 0.0
    torch.testing.assert_close(rms_norm(x, 4), F.rms_norm(x, (4,)), equal_nan=True)
    torch.testing.assert_close(rms_norm(x, 4, eps=0.0), F.rms_norm(x, (4,), eps=0.0), equal_nan=True)


def test_rows_that_are_constant_lose_nothing_to_cancellation() -> None:
    """Where the gradient is a small difference of large terms, it is as close to float64 as PyTorch's."""
    x = (torch.ones(3, 64, dtype=torch.float64) + 1e-3 * drawn(3, 64, dtype=torch.float64).detach()).requires_grad_()
    g = torch.ones(3, 64, dtype=torch.float64)
    (exact,) = torch.autograd.grad(F.rms_norm(x, (64,)), x, g)
    low = x.detach().float().requires_grad_()
    (ours,) = torch.autograd.grad(rms_norm(low, 64), low, g.float())
    (plain,) = torch.autograd.grad(F.rms_norm(low, (64,)), low, g.float())
    assert (ours - exact).abs().max() <= 4 * (plain - exact).abs().max() + 1e-6


@pytest.mark.parametrize("moment", ["forward", "backward"])
def test_autocast_lowers_nothing(moment: str) -> None:
    """Under autocast, in forward or around backward, values and gradients are those outside."""
    x, w, g = drawn(6, 8), drawn(8, seed=1), drawn(6, 8, seed=2).detach()
    expected = torch.autograd.grad(rms_norm(x, 8, w), (x, w), g)
    with torch.autocast("cpu", torch.bfloat16, enabled=moment == "forward"):
        y = rms_norm(x, 8, w)
    with torch.autocast("cpu", torch.bfloat16, enabled=moment == "backward"):
        got = torch.autograd.grad(y, (x, w), g)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_no_seven_tensors() -> None:
    """In float32 PyTorch's own keeps at least one more tensor of the input's size; this keeps 4 bytes a row."""
    x, w = drawn(16, 32), drawn(32, seed=1)
    assert bytes_kept(lambda: rms_norm(x, 32, w), (x, w)) == 16 * 4
    assert bytes_kept(lambda: F.rms_norm(x, (32,), w), (x, w)) >= x.numel() * 4


def test_add_rms_norm_is_norm_and_sum_in_this_order() -> None:
    """It returns the norm of the sum, and the sum, which is the tensor that the graph keeps."""
    x, z, w = drawn(3, 4), drawn(3, 4, seed=1), drawn(4, seed=2)
    norm, total = add_rms_norm(x, z, 4, w)
    torch.testing.assert_close(total, x + z, rtol=0, atol=0)
    torch.testing.assert_close(norm, F.rms_norm(x + z, (4,), w))
    assert bytes_kept(lambda: add_rms_norm(x, z, 4, w), (x, z, w)) == total.numel() * 4 + 3 * 4


def test_add_rms_norm_with_one_output_unused() -> None:
    """The gradient of the sum alone goes to both arguments as it is; that of the norm alone is rms_norm's."""
    x, z = drawn(3, 4), drawn(3, 4, seed=1)
    norm, total = add_rms_norm(x, z, 4)
    g = drawn(3, 4, seed=2).detach()
    for found in torch.autograd.grad(total, (x, z), g, retain_graph=True):
        torch.testing.assert_close(found, g, rtol=0, atol=0)
    due = torch.autograd.grad(F.rms_norm(x + z, (4,)), (x, z), g)
    torch.testing.assert_close(torch.autograd.grad(norm, (x, z), g), due)


@pytest.mark.parametrize("call", [rms_norm, lambda x, *rest: add_rms_norm(x, x, *rest)], ids=["rms", "add"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((torch.ones(2, 4), 3), r"`normalized_shape` isn't their shape.*got: normalized_shape \[3\] .* shape \[2, 4\]"),
        ((torch.ones(2, 4), ()), r"of at least one entry.*got: normalized_shape \[\]"),
        ((torch.ones(2, 4), (3, 2, 4)), r"got: normalized_shape \[3, 2, 4\]"),
        ((torch.ones(2, 4, dtype=torch.int64), 4), r"`input` has others.*got: input of torch.int64"),
        ((torch.ones(2, 4, dtype=torch.complex64), 4), r"got: input of torch.complex64"),
        ((torch.ones(2, 4), 4, torch.ones(3)), r"`weight` for each.*expected: weight of shape \[4\].*shape \[3\]"),
        ((torch.ones(2, 4), 4, torch.ones(4, dtype=torch.int32)), r"got: weight of shape \[4\], of torch.int32"),
    ],
    ids=["other", "none", "longer", "integers", "complex", "weight", "weight of integers"],
)
def test_what_is_refused(call: Callable[..., Any], arguments: tuple[Any, ...], text: str) -> None:
    """Shapes and dtypes that don't fit are named, with what was expected."""
    with pytest.raises(OperationError, match=f"(?s)PB130 .*{text}"):
        call(*arguments)


@pytest.mark.parametrize("other", [torch.ones(4), torch.ones(2, 4).double()], ids=["shape", "dtype"])
def test_a_residual_of_another_kind_is_refused(other: Tensor) -> None:
    """add_rms_norm broadcasts and promotes nothing."""
    with pytest.raises(
        OperationError, match=r"(?s)PB130 .*`residual` has another.*expected: residual of shape \[2, 4\]"
    ):
        add_rms_norm(torch.ones(2, 4), other, 4)


def test_the_class_is_proven_on_its_own_samples() -> None:
    """The Function itself, not only the public function, passes the battery."""
    report = pullback.check(RMSNorm)
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [300, 8192])
def test_a_sum_over_many_rows_loses_nothing(dtype: torch.dtype, rows: int) -> None:
    """The weight's gradient over thousands of rows is no further from float64 than PyTorch's, but for two roundings."""
    x, w, g = torch.randn(rows, 512).to(dtype), torch.randn(512).to(dtype), torch.randn(rows, 512).to(dtype)

    def gradient(call: Callable[..., Tensor], to: torch.dtype) -> Tensor:
        weight = w.to(to).requires_grad_()
        return torch.autograd.grad(call(x.to(to), (512,), weight), weight, g.to(to))[0].double()

    exact = gradient(F.rms_norm, torch.float64)
    ours, plain = ((gradient(call, dtype) - exact).abs().max() for call in (rms_norm, F.rms_norm))
    assert ours <= plain + 2 * torch.finfo(dtype).eps * exact.abs().max()


def test_products_that_are_larger_than_the_result() -> None:
    """Neither a large row times a large weight overflows, nor a small row times a small one vanishes."""
    x = torch.tensor([[1e18, -2e18, 1e18, 3e18], [1e-12, 2e-12, -1e-12, 1e-12]])
    weight = torch.tensor([1e22, 1e22, 1e-30, 1e-30])
    due = rms_norm(x.double(), (4,), weight.double(), 1e-24)
    torch.testing.assert_close(rms_norm(x, (4,), weight, 1e-24).double(), due, rtol=1e-5, atol=0)
