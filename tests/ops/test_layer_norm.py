"""What is special to layer_norm: PyTorch's own numbers, the sums over rows in low precision, bytes and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pullback
from pullback.errors import OperationError
from pullback.ops import layer_norm
from pullback.ops.layer_norm import LayerNorm
from tests.ops.runs import gradients
from tests.ops.test_rms_norm import LOW, drawn
from tests.saved_bytes import bytes_kept


def arguments(rows: int, length: int, dtype: torch.dtype) -> tuple[Tensor, tuple[int, ...], Tensor, Tensor]:
    """Rows whose mean isn't 0, weight and bias."""
    x = (drawn(rows, length, dtype=torch.float64).detach() + 0.5).to(dtype).requires_grad_()
    return x, (length,), drawn(length, dtype=dtype, seed=1), drawn(length, dtype=dtype, seed=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_it_is_pytorchs_bit_by_bit(dtype: torch.dtype) -> None:
    """In float32 and float64, values and gradients are those of F.layer_norm to the last bit."""
    given = arguments(37, 19, dtype)
    torch.testing.assert_close(gradients(layer_norm, given), gradients(F.layer_norm, given), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_values_in_low_precision_are_pytorchs(dtype: torch.dtype) -> None:
    """Forward is the same kernel, told to keep its statistics in float32: the values stay the same."""
    given = arguments(300, 1024, dtype)
    torch.testing.assert_close(layer_norm(*given), F.layer_norm(*given), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("has_weight", [True, False], ids=["weight", "no weight"])
def test_gradients_in_low_precision_are_within_two_thousandths(dtype: torch.dtype, has_weight: bool) -> None:
    """Over 2,048 rows the gradients of weight and bias are within 2e-3 of float64's, beside the rounding to dtype."""
    x, shape, w, b = arguments(2048, 256, dtype)
    given = (x, shape, w if has_weight else None, b)
    exact = tuple(a.detach().double().requires_grad_() if isinstance(a, Tensor) else a for a in given)
    # The cotangents are rounded to dtype in both.
    y, due = layer_norm(*given), F.layer_norm(*exact)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    leaves = [[a for a in each if isinstance(a, Tensor)] for each in (given, exact)]
    found = torch.autograd.grad(y, leaves[0], g)
    expected = torch.autograd.grad(due, leaves[1], g.double())
    rounding = torch.finfo(dtype).eps / 2
    for got, right in zip(found, expected, strict=True):
        assert got.dtype == dtype
        error = ((got.double() - right).abs() - rounding * right.abs()).max() / right.abs().max()
        assert error < 2e-3, float(error)


def test_pytorchs_own_gradients_in_bfloat16_are_not() -> None:
    """The bound above says something: F.layer_norm's gradient of the weight breaks it ten times over."""
    x, shape, w, b = arguments(2048, 256, torch.bfloat16)
    g = torch.randn(2048, 256, generator=torch.Generator().manual_seed(3)).bfloat16()
    (found,) = torch.autograd.grad(F.layer_norm(x, shape, w, b), w, g)
    wide = w.detach().double().requires_grad_()
    (right,) = torch.autograd.grad(F.layer_norm(x.double(), shape, wide, b.double()), wide, g.double())
    assert (found.double() - right).abs().max() / right.abs().max() > 2e-2


def test_statistics_of_low_precision_are_kept_in_float32() -> None:
    """The two numbers of a row are float32 whether or not there is a weight that asks for it."""
    for dtype in LOW:
        x, shape, w, b = arguments(6, 8, dtype)
        for parameters in ((w, b), (w, None), (None, b), (None, None)):
            beside = [a for a in (x, *parameters) if a is not None]
            kept = bytes_kept(lambda x=x, shape=shape, p=parameters: layer_norm(x, shape, *p), beside)
            assert kept == 6 * 8, (dtype, parameters)


def test_parameters_of_another_dtype() -> None:
    """float32 parameters beside a bfloat16 input, and bfloat16 ones beside float32, which PyTorch's CPU refuses."""
    x, shape, w, b = arguments(6, 8, torch.float32)
    for low_input in (True, False):
        given = [x, w, b]
        given = [a.detach().bfloat16() if (a is x) == low_input else a.detach() for a in given]
        x_, w_, b_ = (a.requires_grad_() for a in given)
        (y,), found = gradients(layer_norm, (x_, shape, w_, b_))
        assert y.dtype == x_.dtype
        assert [g.dtype for g in found] == [x_.dtype, w_.dtype, b_.dtype]
        torch.testing.assert_close(
            y.float(), F.layer_norm(x_.float(), shape, w_.float(), b_.float()), rtol=1e-2, atol=1e-2
        )


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
def test_compiled_in_bfloat16() -> None:
    """Compiled in one piece, bfloat16 gives eager's values and gradients within two roundings."""
    torch._dynamo.reset()
    given = arguments(9, 16, torch.bfloat16)
    compiled = torch.compile(layer_norm, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(compiled, given), gradients(layer_norm, given), rtol=1.6e-2, atol=1.6e-2)
    torch._dynamo.reset()


def test_rows_without_variance() -> None:
    """A constant row gives the bias, and what an infinite row gives is PyTorch's."""
    x, shape, w, b = arguments(3, 4, torch.float32)
    values = x.detach().clone()
    values[0], values[1, 2] = 3.0, torch.inf
    torch.testing.assert_close(layer_norm(values, shape, w, b), F.layer_norm(values, shape, w, b), equal_nan=True)
    torch.testing.assert_close(layer_norm(values, shape, w, b)[0], b)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((torch.ones(2, 4), 3), r"PB130 layer_norm .*got: normalized_shape \[3\]"),
        ((torch.ones(2, 4, dtype=torch.bool), 4), r"got: input of torch.bool"),
        ((torch.ones(2, 4), 4, None, torch.ones(2, 4)), r"one entry of `bias`.*got: bias of shape \[2, 4\]"),
    ],
    ids=["shape", "dtype", "bias"],
)
def test_what_is_refused(given: tuple[Any, ...], text: str) -> None:
    """Shapes and dtypes that don't fit are named, with what was expected."""
    with pytest.raises(OperationError, match=f"(?s){text}"):
        layer_norm(*given)


def test_the_class_is_proven_on_its_own_samples() -> None:
    """The Function itself, not only the public function, passes the battery."""
    report = pullback.check(LayerNorm)
    assert report.ok, str(report)
