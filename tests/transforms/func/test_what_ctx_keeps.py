"""F8, F12: tensors in unusual containers on ctx, and save_for_backward that is called again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import Draw, assert_exact
from tests.transforms.func.levels import assert_as_plain


class Key:
    """A key that looks like any other of its kind."""

    def __repr__(self) -> str:
        """The same for all."""
        return "Key()"


def test_keys_of_one_repr(draw: Draw) -> None:
    """Two entries of a dict whose keys read the same are two tensors."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            one, other = Key(), Key()
            ctx.order = (one, other)
            ctx.by_key = {one: x.exp(), other: x.sin()}
            return ctx.by_key[one] * ctx.by_key[other]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            exp, sin = (ctx.by_key[key] for key in ctx.order)
            return g * exp * (sin + (1 - sin * sin).sqrt())

    assert_as_plain(Product.apply, lambda x: x.exp() * x.sin(), draw.constant(3))


class Named(list[Any]):
    """A list with another constructor than list has."""

    def __init__(self, name: str, entries: list[Any]) -> None:
        """Take a name first."""
        super().__init__(entries)
        self.name = name


@pytest.mark.parametrize("intermediate", [False, True])
def test_lists_with_another_constructor(intermediate: bool, draw: Draw) -> None:
    """A subclass of list keeps its class and attributes, and the tensors in it are followed."""

    class Cube(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = Named("kept", [x * x if intermediate else x])
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            assert type(ctx.kept) is Named
            assert ctx.kept.name == "kept"
            (kept,) = ctx.kept
            return 3 * g * (kept if intermediate else kept * kept)

    assert_as_plain(Cube.apply, lambda x: x**3, draw.constant(3))


class SavedTwice(pullback.Function):
    """Saves a constant, thinks better of it, and saves an intermediate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The product of x and its exponential."""
        ctx.save_for_backward(x, constants=((x > 0).to(x),))
        exp = x.exp()
        ctx.save_for_backward(x, exp)
        return x * exp

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Its derivative."""
        x, exp = ctx.saved_tensors
        return g * (exp + x * exp)


def test_saved_twice_under_transforms(draw: Draw) -> None:
    """The last save_for_backward counts: the constants of an earlier one don't make constants of its tensors."""
    assert_as_plain(SavedTwice.apply, lambda x: x * x.exp(), draw.constant(3))


def test_saved_twice_in_eager_mode(draw: Draw) -> None:
    """The same by plain autograd, to third order."""
    assert_exact(SavedTwice.apply, lambda x: x * x.exp(), [draw.leaf(3)])


def test_constants_saved_last(draw: Draw) -> None:
    """And where the last call declares constants, those are the ones."""

    class SquaredRelu(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.exp())
            mask = (x > 0).to(x)
            ctx.save_for_backward(x, constants=(mask,))
            return x * x * mask

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, mask = ctx.saved_tensors
            return 2 * g * x * mask

    assert_as_plain(SquaredRelu.apply, lambda x: torch.relu(x) ** 2, draw.constant(6, low=-1.0, high=1.0))
