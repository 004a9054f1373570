"""F12: a forward that makes a graph of its own and leaves it on ctx, for backward to go through."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError, TransformError
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import TWICE, assert_as_plain, assert_refused


def formula(x: Tensor) -> Tensor:
    """What all Functions here compute."""
    return (x * x).exp() * x.flip(-1)


class PullKept(pullback.Function):
    """Keeps the pullback that torch.func.vjp made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Run the formula under vjp."""
        output, ctx.pull = torch.func.vjp(formula, x)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Call it."""
        return ctx.pull(g)[0]


class TwinOnCtx(pullback.Function):
    """Keeps a leaf of its own and what autograd recorded behind it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Run the formula with autograd on."""
        with torch.enable_grad():
            ctx.leaf = x.detach().requires_grad_()
            ctx.output = formula(ctx.leaf)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Go through what was recorded."""
        return torch.autograd.grad(ctx.output, ctx.leaf, g, retain_graph=True)[0]


class TwinSaved(pullback.Function):
    """The same by save_for_backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Run the formula with autograd on."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            output = formula(leaf)
        ctx.save_for_backward(leaf, output)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Go through what was recorded."""
        leaf, output = ctx.saved_tensors
        return torch.autograd.grad(output, leaf, g, retain_graph=True)[0]


class TwinFollowed(TwinOnCtx):
    """The same, with a backward that autograd can follow."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Go through what was recorded, and have that recorded."""
        return torch.autograd.grad(ctx.output, ctx.leaf, g, create_graph=True)[0]


TWINS = (TwinOnCtx, TwinSaved, TwinFollowed)
each_twin = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)


def test_a_pullback_is_right_to_second_order(draw: Draw) -> None:
    """What torch.func.vjp returned may stay on ctx: all numbers are the formula's, batches and second order too."""
    assert_as_plain(PullKept.apply, formula, draw.constant(4))


@each_twin
def test_first_gradients_of_a_twin(twin: Any, draw: Draw) -> None:
    """Under a level of reverse mode forward runs on plain tensors, so that it can make leaves of its own."""
    assert_as_plain(twin.apply, formula, draw.constant(4), ["grad", "vjp", "jacrev", "backward"])


def test_forward_mode_of_a_twin(draw: Draw) -> None:
    """Where backward records what it does, forward mode is its transpose."""
    assert_as_plain(TwinFollowed.apply, formula, draw.constant(4), ["jvp", "jacfwd", "dual"])


@pytest.mark.parametrize("twin", [TwinOnCtx, TwinSaved], ids=lambda twin: twin.__name__)
def test_forward_mode_of_a_twin_that_records_nothing(twin: Any, draw: Draw) -> None:
    """A backward that isn't recorded can't be transposed: PB511."""
    says = [twin.__name__, "autograd can't follow"]
    assert_refused(twin.apply, draw.constant(4), "PB511", says, ["jvp", "jacfwd", "dual"], TransformError)


@each_twin
def test_second_derivatives_of_a_twin_are_refused(twin: Any, draw: Draw) -> None:
    """The graph on ctx starts at a leaf of its own, so nothing leads on to the argument: PB206 names it, never 0."""
    says = [twin.__name__, "saved tensor 1" if twin is TwinSaved else "ctx.output", "being differentiated"]
    assert_refused(twin.apply, draw.constant(4), "PB206", says, TWICE, HigherOrderError)


@each_twin
def test_a_twin_can_not_be_batched(twin: Any, draw: Draw) -> None:
    """PyTorch makes no leaves inside of vmap: PB510."""
    says = [f"{twin.__name__}.forward", "vmap", "requires_grad_"]
    assert_refused(twin.apply, draw.constant(4), "PB510", says, ["vmap", "vmap of grad", "jvp of vmap"], TransformError)
