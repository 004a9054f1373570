"""The probe `linearity`: a vector-Jacobian product is linear in the vector."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probes import linearity
from pullback.finding import Status
from tests.battery.repros import shows_the_fault
from tests.battery.running import leaf, rules, run_probe


def with_backward(backward: Any, base: Any = Function) -> Any:
    """2x with a backward of one's own."""

    class Made(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

    Made.backward = staticmethod(backward)
    return Made


@pytest.mark.parametrize(
    "backward",
    [lambda ctx, g: g * 2, lambda ctx, g: g.flip(0), lambda ctx, g: torch.zeros_like(g), lambda ctx, g: None],
)
def test_linear_backwards_pass(backward: Any) -> None:
    """Right or wrong, they are linear."""
    assert run_probe(linearity.PROBE, with_backward(backward), (leaf(3),))[1] == ()


@pytest.mark.parametrize(
    "backward",
    [
        lambda ctx, g: g.clamp(-0.1, 0.1),
        lambda ctx, g: g / g.norm(),
        lambda ctx, g: g.sign(),
        lambda ctx, g: g * 2 + 1,
        lambda ctx, g: g.abs(),
        lambda ctx, g: g**2,
    ],
)
def test_clipping_normalising_and_offsets_are_found(backward: Any) -> None:
    """PB211."""
    assert rules(run_probe(linearity.PROBE, with_backward(backward), (leaf(3),))[1]) == ["PB211"]


@pytest.mark.parametrize("share", [1e-3, 1e-5])
def test_elements_that_are_left_out_beside_larger_ones_are_found(share: float) -> None:
    """PB211: a cotangent of one size has none of them."""

    def thinned(ctx: Any, g: Tensor) -> Tensor:
        return 2 * torch.where(g.abs() < share * g.abs().max(), 0, g) if g.numel() else 2 * g

    function = with_backward(thinned)
    _, (finding,) = run_probe(linearity.PROBE, function, (leaf(5),))
    assert finding.rule == "PB211"
    assert "some elements far smaller" in finding.message
    assert shows_the_fault(finding, Made=function)


def test_a_backward_that_stops_at_a_residual_of_the_whole_is_let_be() -> None:
    """As a solver does: its error is a share of the largest element, and no sum of cotangents gives just the sum."""

    def solved(ctx: Any, g: Tensor) -> Tensor:
        found, rest = torch.zeros_like(g), 2 * g
        while bool(rest.norm() > 1e-4 * g.norm()):
            step = 0.6 * rest
            found, rest = found + step, rest - step * torch.linspace(0.8, 1.0, g.numel(), dtype=g.dtype)
        return found * torch.linspace(0.8, 1.0, g.numel(), dtype=g.dtype)

    function = with_backward(solved)
    assert not [f for f in run_probe(linearity.PROBE, function, (leaf(5),))[1] if "far smaller" in f.message]


def test_a_declared_nonlinear_backward_is_taken_at_its_word() -> None:
    """Skipped."""
    cls = with_backward(lambda ctx, g: g.sign(), pullback.Function)
    cls.nonlinear_backward = True
    outcome, _ = run_probe(linearity.PROBE, cls, (leaf(3),))
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "backward is declared not to be linear")


def test_a_gradient_that_is_not_finite_is_a_note() -> None:
    """NaN is no proof of anything."""
    outcome, findings = run_probe(linearity.PROBE, torch.sqrt, (torch.tensor([-1.0], dtype=torch.float64),))
    assert findings == ()
    assert "isn't finite" in outcome.notes[0]
