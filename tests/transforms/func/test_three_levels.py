"""F10 to F12: where the derivative of backward comes from, under three levels and with batches between."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import INSIDE, assert_as_plain

MODES = [name for name in INSIDE if name != "vmap"]
THREE = [" of ".join(names) for names in product(("grad", "jvp", "backward"), ("grad", "jvp"), ("grad", "jvp"))]
WITH_BATCHES = ["vmap of grad of jvp of grad", "grad of vmap of jvp of grad", "jvp of grad of vmap of grad"]


def quartic(x: Tensor) -> Tensor:
    """What the reference and forward compute."""
    return x**4 + x.exp()


class ByReference(pullback.Function):
    """An opaque backward beside a reference."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Save an intermediate."""
        exp = x.exp()
        ctx.save_for_backward(x, exp)
        return x**4 + exp

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """The derivative."""
        x, exp = ctx.saved_tensors
        return torch.from_numpy(g.numpy() * (4 * np.power(x.numpy(), 3) + exp.numpy()))

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        """The formula."""
        return quartic(x)


class ByDoubleBackward(ByReference):
    """A double_backward instead, itself made of PyTorch operations."""

    reference = None

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """The derivative."""
        x, exp = ctx.saved_tensors
        return g * (4 * x**3 + exp)

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> Tensor:
        """The second derivative, elementwise."""
        x, exp = ctx.saved_tensors
        return gg * (12 * x * x + exp)


class ByBackward(ByDoubleBackward):
    """Nothing but forward and backward."""

    double_backward = None


def smooth(x: Tensor) -> Tensor:
    """What stands for rounding in derivatives."""
    return x + 0.1 * torch.sin(6 * x)


class SoftRound(pullback.Function):
    """Rounds, with the derivative of something smooth."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Round."""
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """The derivative of the surrogate."""
        return g * (1 + 0.6 * torch.cos(6 * ctx.saved_tensors[0]))

    @staticmethod
    def surrogate(x: Tensor) -> Tensor:
        """What is differentiated."""
        return smooth(x)


def straight_through(x: Tensor) -> Tensor:
    """Plain PyTorch with the value of rounding and all derivatives of the surrogate."""
    found = smooth(x)
    return found + (x.round() - found).detach()


@pytest.mark.parametrize(
    "function", [ByReference, ByDoubleBackward, ByBackward], ids=lambda function: function.__name__
)
@pytest.mark.parametrize("composition", THREE + WITH_BATCHES)
def test_three_derivatives(function: Any, composition: str, draw: Draw) -> None:
    """Third derivatives by the reference, by double_backward and by backward are the formula's."""
    assert_as_plain(function.apply, quartic, draw.constant(3), [composition])


def squared(function: Any) -> Any:
    """A function of the output, so that its value matters as well as its derivative."""
    return lambda x: function(x.sin() * 3) ** 2


@pytest.mark.parametrize("composition", [*THREE, *WITH_BATCHES, *(f"{a} of {b}" for a, b in product(MODES, MODES))])
def test_a_surrogate(composition: str, draw: Draw) -> None:
    """All derivatives are the surrogate's at the value that forward has, in each order of modes."""
    assert_as_plain(squared(SoftRound.apply), squared(straight_through), draw.constant(3), [composition])
