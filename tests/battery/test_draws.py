"""Random numbers: who draws them, and what another layout of an argument makes of them."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery.check import check, make_subject
from pullback.battery.draws import Draws, draws, same_draws
from pullback.battery.probes import layouts
from tests.battery.repros import shown, shows_the_fault
from tests.battery.running import leaf, rules, run_probe


class Noisy(Function):
    """Draws in forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.clone()


class NoisyBackward(Function):
    """Draws in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g + 1e-3 * torch.rand_like(g)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Noisy, Draws(forward=True, backward=False, generators=("torch",))),
        (NoisyBackward, Draws(forward=False, backward=True, generators=("torch",))),
        (torch.sin, Draws(forward=False, backward=False)),
        (lambda x: x * random.random(), Draws(forward=True, backward=False, generators=("random",))),
        (lambda x: x * float(np.random.rand()), Draws(True, False, generators=("numpy.random",))),
    ],
)
def test_who_draws_is_seen_by_the_generators(function: Any, expected: Draws) -> None:
    """Torch's, Python's and NumPy's; drawing itself is left undone afterwards."""
    subject = make_subject(function, (leaf(2, 3),))
    assert draws(subject, subject.cases[0]) == expected


def test_layouts_in_memory_order_get_the_same_numbers() -> None:
    """A sliced tensor does, a transposed one doesn't."""
    wide = torch.zeros(3, 8)
    assert same_draws(wide[:, ::2])
    assert not same_draws(wide.t())


def test_another_order_of_the_draws_is_no_fault_and_is_noted() -> None:
    """rand_like fills a transposed tensor column by column."""
    outcome, findings = run_probe(layouts.PROBE, Noisy, (leaf(3, 4),))
    assert findings == ()
    assert any("x transposed: forward draws random numbers" in note for note in outcome.notes)
    outcome, findings = run_probe(layouts.PROBE, NoisyBackward, (leaf(3, 4),))
    assert findings == ()
    assert any("backward draws random numbers" in note for note in outcome.notes)


def test_a_random_forward_is_still_compared_where_its_draws_are_the_same() -> None:
    """Memory read in order is found in a slice."""

    class Raw(Noisy):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            raw = torch.as_strided(x.detach(), x.shape, (x.shape[1], 1))
            return raw + torch.randn_like(x)

    assert rules(run_probe(layouts.PROBE, Raw, (leaf(3, 4),))[1]) == ["PB407"]


class DrawnAgain(Function):
    """A mask that backward draws for itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (torch.rand_like(g) > 0.5)


class Kept(DrawnAgain):
    """The same, with the mask on ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mask = torch.rand_like(x) > 0.5
        return x * ctx.mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.mask


class Factor(Function):
    """A gradient with noise from Python's generator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (1.5 + random.random())


def test_a_mask_that_is_drawn_again_is_found_and_told_as_what_it_is() -> None:
    """backward starts from another random state than forward, as in use: only what is kept is the same mask."""
    sample = (leaf(6),)
    report = check(DrawnAgain, sample, only=("first_order", "linearity", "second_order"))
    (finding,) = report.findings
    assert finding.rule == "PB203"
    assert finding.message.endswith("backward draws random numbers")
    assert finding.remedy.startswith("If they are to be those that forward drew, a mask for instance, keep that on ctx")
    assert shows_the_fault(finding, DrawnAgain=DrawnAgain)
    assert check(Kept, sample, only=("first_order", "linearity", "second_order")).ok


def test_the_lines_of_a_gradient_that_draws_are_the_same_each_time() -> None:
    """Noise is seeded wherever the lines differentiate; it can be declared as what is meant."""
    findings = check(Factor, (leaf(3),), only=("first_order", "repeats", "linearity")).findings
    assert findings
    for finding in findings:
        assert "nonlinear_backward = True" in finding.remedy
        assert len({shown(finding, Factor=Factor) for _ in range(3)}) == 1
        assert shows_the_fault(finding, Factor=Factor)

    class Declared(Factor):
        nonlinear_backward = True

    assert check(Declared, (leaf(3),), skip=("compiled",)).ok
