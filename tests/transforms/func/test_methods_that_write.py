"""F12: a backward that writes to its cotangent, a jvp to its tangent: the caller's stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import assert_as_plain


def formula(x: Tensor) -> Tensor:
    """What all Functions here compute."""
    return x**3


class WritesCotangent(pullback.Function):
    """Saves memory in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The cube."""
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Multiply in place."""
        return g.mul_(3 * ctx.saved_tensors[0] ** 2)


class WritesTangent(WritesCotangent):
    """Saves memory in jvp."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Make a new tensor."""
        return g * 3 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        """Multiply in place."""
        return t.mul_(3 * ctx.saved_tensors[0] ** 2)


class WritesBoth(WritesTangent):
    """Saves memory in both."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Multiply in place."""
        return g.mul_(3 * ctx.saved_tensors[0] ** 2)


each_writer = pytest.mark.parametrize("writer", [WritesCotangent, WritesTangent, WritesBoth])


@each_writer
def test_all_compositions(writer: Any, draw: Draw) -> None:
    """One and two derivatives, with batches, are the formula's; forward mode isn't refused."""
    assert_as_plain(writer.apply, formula, draw.constant(3))


def test_a_cotangent_is_used_twice(draw: Draw) -> None:
    """The pullback of torch.func.vjp, called twice with one cotangent, gives the same gradient."""
    x, g = draw.constant(3), draw.constant(3)
    before = g.clone()
    _, pull = torch.func.vjp(WritesCotangent.apply, x)
    expected = 3 * x**2 * before
    torch.testing.assert_close(pull(g)[0], expected)
    torch.testing.assert_close(pull(g)[0], expected)
    assert torch.equal(g, before)


@each_writer
def test_a_tangent_is_used_twice(writer: Any, draw: Draw) -> None:
    """A tangent that was given to jvp is as it was afterwards, and gives the same again."""
    x, t = draw.constant(3), draw.constant(3)
    before = t.clone()
    for _ in range(2):
        torch.testing.assert_close(torch.func.jvp(writer.apply, (x,), (t,))[1], 3 * x**2 * before)
    assert torch.equal(t, before)


def test_a_write_to_a_view_of_the_cotangent(draw: Draw) -> None:
    """Writing to a part of the cotangent counts as well."""

    class FirstHalved(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.cat([x[:1] ** 2 / 2, x[1:] ** 2])

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            g[:1] /= 2
            return 2 * g * ctx.saved_tensors[0]

    assert_as_plain(FirstHalved.apply, lambda x: torch.cat([x[:1] ** 2 / 2, x[1:] ** 2]), draw.constant(3))
