"""F8, F12: an argument that nothing saved, written to after the call, and a second derivative that would need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError, TransformError
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import assert_as_plain, assert_refused

FIRST = ("grad", "vjp", "jvp", "jacrev", "backward", "dual")
SECOND = ("grad of grad", "jvp of grad", "backward of grad", "dual of grad", "jacfwd of jacrev", "vmap of jvp of grad")


def formula(x: Tensor) -> Tensor:
    """What all Functions here compute."""
    return x.exp().sin()


class Sine(pullback.Function):
    """Saves its exponential alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The sine of the exponential."""
        exp = x.exp()
        ctx.save_for_backward(exp)
        return exp.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Its derivative."""
        (exp,) = ctx.saved_tensors
        return g * exp * exp.cos()


class WithReference(Sine):
    """The same with a reference."""

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        """The formula."""
        return formula(x)


class WithSurrogate(Sine):
    """The same with a surrogate."""

    @staticmethod
    def surrogate(x: Tensor) -> Tensor:
        """The formula."""
        return formula(x)


class Opaque(WithReference):
    """The same with a backward that leaves PyTorch."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """By NumPy."""
        exp = ctx.saved_tensors[0].numpy()
        return torch.from_numpy(g.numpy() * exp * np.cos(exp))


def written_to(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Call the function, and write to its argument afterwards."""

    def call(x: Tensor) -> Tensor:
        inner = x.sin()
        output = function(inner)
        inner.mul_(3)
        return output * inner

    return call


def plain(x: Tensor) -> Tensor:
    """The same without writing."""
    return formula(x.sin()) * x.sin() * 3


@pytest.mark.parametrize("function", [Sine, WithReference, WithSurrogate])
def test_first_derivatives(function: Any, draw: Draw) -> None:
    """backward doesn't read the argument, so what is written to it doesn't matter."""
    assert_as_plain(written_to(function.apply), plain, draw.constant(3), FIRST)


def test_forward_is_run_again_in_time(draw: Draw) -> None:
    """Without reference what forward saved is connected while the argument is as it was: two derivatives are right."""
    assert_as_plain(written_to(Sine.apply), plain, draw.constant(3), SECOND)


@pytest.mark.parametrize("function", [WithReference, WithSurrogate, Opaque])
def test_a_reference_comes_too_late(function: Any, draw: Draw) -> None:
    """A reference is run when the derivative is taken, which is too late: PB206 names the argument."""
    compositions = SECOND[:4] if function is Opaque else SECOND  # it takes no batch
    says = [function.__name__, "x, not being saved, was changed in place", "saved tensor 0"]
    assert_refused(written_to(function.apply), draw.constant(3), "PB206", says, compositions, HigherOrderError)


def test_a_batch_by_the_reference_comes_too_late(draw: Draw) -> None:
    """A backward that can't take a batch isn't replaced by the reference at another point: PB510."""
    says = ["Opaque.backward", "vmap"]
    assert_refused(
        written_to(Opaque.apply), draw.constant(3), "PB510", says, ["vmap of grad", "jacrev"], TransformError
    )


def test_without_writing(draw: Draw) -> None:
    """The same Functions, left alone, are right to second order, and in batches."""
    for function in (WithReference, WithSurrogate, Opaque):
        assert_as_plain(function.apply, formula, draw.constant(3), (*SECOND, "vmap of grad", "jacrev"))


class InPlaceByReference(pullback.Function):
    """Writes to its argument, saves an intermediate, and has a reference."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The square of the exponential, in place."""
        exp = x.exp()
        ctx.save_for_backward(exp)
        ctx.mark_dirty(x)
        return x.copy_(exp * exp)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Its derivative."""
        (exp,) = ctx.saved_tensors
        return 2 * g * exp * exp

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        """The formula."""
        return (2 * x).exp()


def in_place(x: Tensor) -> Tensor:
    """Call it on a tensor that may be written to."""
    return InPlaceByReference.apply(x.sin())


def test_in_place_with_a_reference(draw: Draw) -> None:
    """First derivatives are right; the second would be by the value that was written over, so PB206 is raised."""
    x = draw.constant(3)
    assert_as_plain(in_place, lambda x: (2 * x.sin()).exp(), x, ["grad", "jvp", "dual", "backward", "vjp"])
    says = ["InPlaceByReference", "saved tensor 0", "writes to an argument"]
    compositions = ["grad of grad", "jvp of grad", "grad of jvp", "jvp of jvp", "backward of grad"]
    assert_refused(in_place, x, "PB206", says, compositions, HigherOrderError)
