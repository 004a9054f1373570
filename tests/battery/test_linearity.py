"""The probe `linearity`: a vector-Jacobian product is linear in the vector."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.battery.probes import linearity
from pullback.finding import Status
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
