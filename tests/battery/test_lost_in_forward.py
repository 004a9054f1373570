"""What every right Function shows in a lower dtype, or where it saturates, is no fault; one of its own still is."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.probes import linearity, precision, second_order, shapes
from tests.battery.running import leaf, rules, run_probe

F64 = torch.float64


def own(forward: Any, backward: Any) -> Any:
    """A Function of one argument x from what it computes, and its gradient from x and grad_output."""

    class Made(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return backward(x, g)

    return Made


def similarity(z: Tensor) -> Tensor:
    """The mean cross entropy of each row with itself: 0 to the bit for long rows."""
    return -(z @ z.mT / 0.05).log_softmax(-1).diagonal().mean()


def similarity_backward(z: Tensor, g: Tensor) -> Tensor:
    """Its vjp."""
    d = ((z @ z.mT / 0.05).softmax(-1) - torch.eye(z.shape[0], dtype=z.dtype)) * g / (0.05 * z.shape[0])
    return (d + d.mT) @ z


def rows() -> Tensor:
    """Four rows of length 1."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4, 8, dtype=F64, generator=generator)
    return torch.nn.functional.normalize(z, dim=-1).requires_grad_()


def test_a_tail_that_no_value_shows_is_no_wrong_gradient() -> None:
    """The loss saturates at exactly 0 for larger sizes, where the gradient is 1e-87."""
    assert run_probe(shapes.PROBE, own(similarity, similarity_backward), (rows(),))[1] == ()


def test_a_wrong_gradient_at_larger_sizes_is_found_all_the_same() -> None:
    """PB203: it isn't small."""
    wrong = own(similarity, lambda z, g: similarity_backward(z, g) + (g if z.shape[-1] > 8 else 0 * g))
    assert rules(run_probe(shapes.PROBE, wrong, (rows(),))[1]) == ["PB203"]


@pytest.mark.parametrize(
    ("forward", "x"),
    [
        (
            lambda x: (x.unsqueeze(-1) * 2.0 ** torch.arange(8, dtype=x.dtype) * math.pi).sin(),
            torch.tensor([1.54, -0.29]),
        ),
        (lambda x: x**50, torch.tensor([1.17, 0.9])),
    ],
    ids=["frequencies", "power"],
)
def test_second_derivatives_beyond_float16_are_not_asked_for(forward: Any, x: Tensor) -> None:
    """Above 65504 everybody gets infinities."""
    assert run_probe(second_order.PROBE, forward, (x.to(F64).requires_grad_(),))[1] == ()


def test_values_beyond_float16_are_not_asked_for() -> None:
    """A right Function that multiplies by 65536, and PB219 for one that is another where there is room."""
    x = torch.tensor([1.541, -0.2934, -2.1788], dtype=F64, requires_grad=True)
    large = own(lambda x: x * 65536.0, lambda x, g: g * 65536.0)
    assert run_probe(precision.PROBE, large, (x,))[1] == ()
    small = own(lambda x: x * (1.0 if x.dtype is torch.float16 else 2.0), lambda x, g: g * 2.0)
    assert rules(run_probe(precision.PROBE, small, (x,))[1]) == ["PB219"]


def _solve(b: Tensor) -> Tensor:
    return torch.linalg.solve((1 / (torch.arange(5)[:, None] + torch.arange(5) + 1.0)).to(b), b)


@pytest.mark.parametrize(
    "function",
    [
        own(lambda x: (1 + x / 256) ** 256, lambda x, g: g * (1 + x / 256) ** 255),
        own(_solve, lambda x, g: _solve(g)),
    ],
    ids=["power of nearly 1", "badly conditioned solve"],
)
def test_digits_that_forward_loses_too_may_be_lost(function: Any) -> None:
    """Nobody could keep them."""
    x = torch.tensor([[1.541], [-0.2934], [-2.1788], [0.5684], [-1.0845]], dtype=F64, requires_grad=True)
    assert run_probe(precision.PROBE, function, (x,))[1] == ()


@pytest.mark.parametrize(
    "function",
    [
        own(similarity, similarity_backward),
        lambda z: torch.nn.functional.cross_entropy(z @ z.mT / 0.05, torch.arange(z.shape[0])),
    ],
    ids=["by hand", "by autograd"],
)
def test_a_loss_of_sure_samples_loses_digits(function: Any) -> None:
    """Its value is the difference of two large numbers, in PyTorch's own kernel too; first and second order."""
    assert run_probe(precision.PROBE, function, (rows(),))[1] == ()
    assert run_probe(second_order.PROBE, function, (rows(),))[1] == ()


def test_digits_that_backward_alone_loses_are_found() -> None:
    """PB214: forward is exact to a rounding, and backward adds what it subtracts again."""
    losing = own(lambda x: x * 1.7, lambda x, g: (g * 1.7 + 1e3) - 1e3 if g.dtype is torch.float32 else g * 1.7)
    assert rules(run_probe(precision.PROBE, losing, (leaf(5),))[1]) == ["PB214"]


def _exponential_backward(a: Tensor, g: Tensor) -> Tensor:
    n, zeros = a.shape[-1], torch.zeros_like(a)
    blocks = torch.cat([torch.cat([a.mT, g], -1), torch.cat([zeros, a.mT], -1)], -2)
    return torch.linalg.matrix_exp(blocks)[..., :n, n:]


def _solved(b: Tensor) -> Tensor:
    """(A Aᵀ + I)⁻¹ b by conjugate gradients."""
    m = torch.tensor([[5.1, 1.3, 0.2], [1.3, 3.2, -0.4], [0.2, -0.4, 2.6]], dtype=b.dtype)
    x, r, p, rs = torch.zeros_like(b), b, b, (b * b).sum()
    for _ in range(30):
        if not bool(rs > 1e-28):
            break
        mp = m @ p
        alpha = rs / (p * mp).sum()
        x, r = x + alpha * p, r - alpha * mp
        new = (r * r).sum()
        p, rs = r + new / rs * p, new
    return x


def test_an_algorithm_may_lose_digits_for_a_large_cotangent_below_float64() -> None:
    """matrix_exp takes other steps for a block that is larger."""
    a = torch.tensor([[1.541, -0.293, -2.179], [0.568, -1.085, -1.399], [0.403, 0.838, -0.719]], dtype=F64)
    function = own(torch.linalg.matrix_exp, _exponential_backward)
    assert run_probe(linearity.PROBE, function, (a.requires_grad_(),))[1] == ()


def test_a_solver_has_room_for_its_squares_in_float16() -> None:
    """r·r overflows there, or vanishes, where neither r nor the solution does."""
    b = torch.tensor([-0.566, 0.373, -1.509], dtype=F64, requires_grad=True)
    assert run_probe(linearity.PROBE, own(_solved, lambda x, g: _solved(g)), (b,))[1] == ()


def test_a_detour_of_a_smaller_range_below_float64_is_found() -> None:
    """PB214: infinities for a cotangent that float32 holds."""
    detour = own(lambda x: x * 2, lambda x, g: (g.half() if g.dtype is torch.float32 else g).to(g.dtype) * 2)
    assert rules(run_probe(linearity.PROBE, detour, (leaf(3),))[1]) == ["PB214"]


@pytest.mark.parametrize(("size", "lost"), [(1e-9, False), (1.0, True)])
def test_what_a_dtype_has_no_numbers_for_is_lost_to_everybody(size: float, lost: bool) -> None:
    """1e-9 is 0 in float16; a value that need not be 0 there is found."""

    def small(x: Tensor) -> Tensor:
        return size * torch.sin(x) * (0.0 if lost and x.dtype is torch.float16 else 1.0)

    findings = run_probe(precision.PROBE, small, (leaf(3),))[1]
    assert [finding.rule for finding in findings] == (["PB219"] if lost else [])
