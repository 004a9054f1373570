"""The gradient shapers: one value, another gradient, no bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import OperationError, TransformError
from pullback.ops import clip_gradient, reverse_gradient, scale_gradient, straight_through, straight_through_round
from pullback.ops.gradients import (
    ClipGradientNorm,
    ClipGradientValue,
    ScaleGradient,
    StraightThrough,
    StraightThroughRound,
)
from tests.saved_bytes import bytes_kept

CLASSES = (ClipGradientNorm, ClipGradientValue, ScaleGradient, StraightThrough, StraightThroughRound)


@pytest.mark.parametrize("function", CLASSES, ids=lambda function: function.__name__)
def test_proven(function: Any) -> None:
    """The whole battery finds nothing in each class: what is meant is declared, and holds."""
    report = pullback.check(function)
    assert report.ok, str(report)


def gradient(call: Callable[[Tensor], Tensor], cotangent: Tensor) -> Tensor:
    """The gradient of a call at ones, for a cotangent."""
    x = torch.ones_like(cotangent, requires_grad=True)
    return torch.autograd.grad(call(x), x, cotangent)[0]


def test_values_and_gradients() -> None:
    """Each gives the value it names and the gradient it names."""
    g = torch.tensor([3.0, -4.0, 0.5])
    assert torch.equal(gradient(reverse_gradient, g), -g)
    assert torch.equal(gradient(lambda x: reverse_gradient(x, 0.5), g), -0.5 * g)
    assert torch.equal(gradient(lambda x: scale_gradient(x, 0.25), g), 0.25 * g)
    assert torch.equal(gradient(straight_through_round, g), g)
    soft = torch.tensor([0.2, 0.7], requires_grad=True)
    hard = straight_through((soft > 0.5).float(), soft)
    assert hard.tolist() == [0.0, 1.0]
    assert torch.autograd.grad((hard * torch.tensor([2.0, 3.0])).sum(), soft)[0].tolist() == [2.0, 3.0]
    assert straight_through_round(torch.tensor([0.5, 1.5, -2.4])).tolist() == [0.0, 2.0, -2.0]


@pytest.mark.parametrize(
    "call", [reverse_gradient, straight_through_round, lambda x: clip_gradient(x, 1.0), lambda x: scale_gradient(x, 2)]
)
def test_nothing_is_kept(call: Callable[[Tensor], Tensor]) -> None:
    """No byte lies in the graph."""
    x = torch.randn(100, requires_grad=True)
    assert bytes_kept(lambda: call(x * 1)) == 0


def test_clipping_by_norm() -> None:
    """A long gradient keeps its direction, a short one is left alone; extreme ones lose no square."""
    assert torch.equal(gradient(lambda x: clip_gradient(x, 10.0), torch.tensor([3.0, 4.0])), torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(
        gradient(lambda x: clip_gradient(x, 1.0), torch.tensor([3.0, 4.0])), torch.tensor([0.6, 0.8])
    )
    huge = gradient(lambda x: clip_gradient(x, 1.0), torch.tensor([3e30, 4e30]))
    torch.testing.assert_close(huge, torch.tensor([0.6, 0.8]))
    half = gradient(lambda x: clip_gradient(x, 1.0), torch.tensor([300.0, 400.0], dtype=torch.float16))
    torch.testing.assert_close(half, torch.tensor([0.6, 0.8], dtype=torch.float16))
    assert gradient(lambda x: clip_gradient(x, 1.0), torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert gradient(lambda x: clip_gradient(x, 0.0), torch.ones(2)).tolist() == [0.0, 0.0]
    assert gradient(lambda x: clip_gradient(x, 1.0), torch.tensor([math.inf, 1.0])).isnan().all()
    assert gradient(lambda x: clip_gradient(x, 1.0), torch.zeros(0)).shape == (0,)


def test_clipping_by_value() -> None:
    """Each element is brought into the interval."""
    g = torch.tensor([3.0, -4.0, 0.5, math.inf])
    assert gradient(lambda x: clip_gradient(x, max_value=1.0), g).tolist() == [1.0, -1.0, 0.5, 1.0]


def test_clipping_one_example_of_a_batch() -> None:
    """Under vmap the norm is that of one example."""
    g = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    (found,) = torch.func.vmap(lambda g: torch.func.vjp(lambda x: clip_gradient(x, 1.0), torch.ones(2))[1](g))(g)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda x: clip_gradient(x), "got: neither"),
        (lambda x: clip_gradient(x, 1.0, max_value=2.0), "got: max_norm=1.0 and max_value=2.0"),
        (lambda x: clip_gradient(x, -1.0), "got: -1.0"),
        (lambda x: scale_gradient(x, math.inf), "got: inf"),
        (lambda x: reverse_gradient(x, math.nan), "got: nan"),
        (
            lambda x: straight_through(x, x.double()),
            "got: value (3,) of torch.float32, surrogate (3,) of torch.float64",
        ),
        (lambda x: straight_through(x, x[:2]), "got: value (3,) of torch.float32, surrogate (2,) of torch.float32"),
    ],
)
def test_what_they_refuse(call: Callable[[Tensor], Tensor], got: str) -> None:
    """PB130 says what came and what to do."""
    with pytest.raises(OperationError) as caught:
        call(torch.ones(3))
    assert str(caught.value).startswith("PB130 ")
    assert got in str(caught.value)
    assert "remedy: " in str(caught.value)


BY_NORM_AND_VALUE = pytest.mark.parametrize("options", [{"max_norm": 0.5}, {"max_value": 0.3}], ids=str)


@BY_NORM_AND_VALUE
def test_higher_derivatives_are_of_the_clipping(options: dict[str, float]) -> None:
    """A clipped gradient, differentiated by what it was before, is the clipping's own derivative."""
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    g = torch.tensor([0.75, -3.0, 0.03], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    due = g.clamp(-0.3, 0.3) if "max_value" in options else g * 0.5 / g.norm()
    (came,) = torch.autograd.grad(clip_gradient(x, **options), x, g, create_graph=True)
    torch.testing.assert_close(came, due)
    (second,) = torch.autograd.grad((came * weights).sum(), g)
    torch.testing.assert_close(second, torch.autograd.grad((due * weights).sum(), g)[0])


def test_a_second_derivative_that_passes_again_is_clipped_again() -> None:
    """Each gradient that goes back through the tensor is clipped, those of a gradient penalty too."""
    x = torch.tensor(0.1, requires_grad=True)
    (first,) = torch.autograd.grad(clip_gradient(x, max_value=0.3) ** 3, x, create_graph=True)
    torch.testing.assert_close(first, torch.tensor(0.03))  # 3 x², within the limit
    (second,) = torch.autograd.grad(first, x)
    torch.testing.assert_close(second, torch.tensor(0.3))  # of 6 x = 0.6


@pytest.mark.parametrize("limit", [0.0, 1.0, 100.0])
def test_no_derivative_divides_by_a_norm_of_0(limit: float) -> None:
    """A gradient of zeros stays, and what is differentiated by it is finite."""
    x, g = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    (first,) = torch.autograd.grad(clip_gradient(x, limit), x, g, create_graph=True)
    assert first.tolist() == [0, 0, 0]
    assert torch.autograd.grad(first.sum(), g)[0].isfinite().all()


@BY_NORM_AND_VALUE
def test_clipping_has_no_forward_mode(options: dict[str, float]) -> None:
    """It has no transpose, so there is no tangent, and the call says so."""
    with pytest.raises(TransformError, match="ClipGradient"):
        torch.func.jvp(lambda x: clip_gradient(x, **options), (torch.ones(3),), (torch.ones(3),))


@BY_NORM_AND_VALUE
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch's tracer
def test_clipping_when_compiled(options: dict[str, float]) -> None:
    """In one piece it clips as eager does."""
    g = torch.tensor([3.0, -0.1, 0.2])
    compiled = torch.compile(lambda x: clip_gradient(x, **options) * 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(gradient(compiled, g), gradient(lambda x: clip_gradient(x, **options), g))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_the_norm_of_a_complex_gradient(dtype: torch.dtype) -> None:
    """Real and imaginary parts both count: a gradient comes out as long as the limit."""
    x = torch.zeros(3, dtype=dtype, requires_grad=True)
    g = torch.tensor([3 + 4j, 1j, 5 + 0j], dtype=dtype)
    (got,) = torch.autograd.grad(clip_gradient(x, 1.0), x, g)
    torch.testing.assert_close(got, g / math.sqrt(51))
    (same,) = torch.autograd.grad(clip_gradient(x, 10.0), x, g)
    assert torch.equal(same, g)
