"""F12, F15: transforms beside other machinery of PyTorch: saved-tensor hooks, checkpoint, functionalize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import pullback
from pullback.errors import TransformError
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import score, under


def formula(x: Tensor) -> Tensor:
    """What the Function computes."""
    return x * x.exp()


class Product(pullback.Function):
    """The product of x and its exponential, with an intermediate that is saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Save both."""
        exp = x.exp()
        ctx.save_for_backward(x, exp)
        return x * exp

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """The derivative."""
        x, exp = ctx.saved_tensors
        return g * (exp + x * exp)


FORWARD = ("jvp", "jacfwd", "dual", "vmap of jvp", "jvp of vmap", "dual of vmap")


@pytest.mark.parametrize("composition", [*FORWARD, "jvp of jvp", "backward of jvp", "vmap", "backward of vmap"])
def test_forward_mode_inside_of_hooks(composition: str, draw: Draw) -> None:
    """Forward mode, derived by reverse mode inside, works where saved-tensor hooks are active, as PyTorch's does."""
    x = draw.constant(3)
    expected = under(composition, formula)(x)
    with save_on_cpu():
        found = under(composition, Product.apply)(x)
    torch.testing.assert_close(found, expected)


def test_the_hooks_are_left_as_they_were(draw: Draw) -> None:
    """After forward mode the hooks are active again, and in their order."""
    order: list[str] = []

    def named(name: str) -> Any:
        def pack(tensor: Tensor) -> Tensor:
            order.append(name)
            return tensor

        return saved_tensors_hooks(pack, lambda tensor: tensor)

    x = draw.constant(3)
    with named("outer"):
        with named("inner"):
            torch.func.jvp(Product.apply, (x,), (x,))
            order.clear()
            x.clone().requires_grad_().exp()
        x.clone().requires_grad_().exp()
    assert order == ["inner", "outer"]


@pytest.mark.parametrize("composition", ["jvp", "vmap", "jacfwd", "vmap of jvp"])
def test_checkpoint_around(composition: str, draw: Draw) -> None:
    """A checkpoint around a transform runs it again in backward, with the same gradients."""

    x = draw.constant(3)

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        leaf = x.clone().requires_grad_()
        output = checkpoint(under(composition, function), leaf, use_reentrant=False)
        return torch.autograd.grad(score(output), leaf)[0]

    torch.testing.assert_close(gradient(Product.apply), gradient(formula))


def test_dual_numbers_through_a_checkpoint(draw: Draw) -> None:
    """Dual numbers go through a checkpoint; tangents and gradients are the formula's."""
    x, t = draw.constant(3), draw.constant(3)

    def taken(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        with forward_ad.dual_level():
            output = checkpoint(function, forward_ad.make_dual(leaf, t), use_reentrant=False)
            primal, tangent = forward_ad.unpack_dual(output)
            assert tangent is not None
            return tangent, torch.autograd.grad(score(primal), leaf)[0]

    torch.testing.assert_close(taken(Product.apply), taken(formula))


@pytest.mark.parametrize(
    "around",
    [
        lambda function: torch.func.functionalize(function),
        lambda function: torch.func.functionalize(torch.func.grad(lambda x: function(x).sum())),
        lambda function: torch.func.grad(torch.func.functionalize(lambda x: function(x).sum())),
        lambda function: torch.func.vmap(torch.func.functionalize(function)),
    ],
    ids=["outermost", "around grad", "inside grad", "inside vmap"],
)
def test_functionalize_is_refused(around: Callable[[Any], Callable[[Tensor], Tensor]], draw: Draw) -> None:
    """PB514 names class and transform, and what works instead."""
    with pytest.raises(TransformError) as caught:
        around(Product.apply)(draw.constant(3))
    assert caught.value.rule == "PB514"
    assert "Product is called under torch.func.functionalize" in str(caught.value)
    assert "vmap" in caught.value.remedy


class MarksAnother(pullback.Function):
    """Marks as changed what is no argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Write to a tensor of its own."""
        own = x * 1
        own.mul_(3)
        ctx.mark_dirty(own)
        return own

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """The derivative."""
        return 3 * g


@pytest.mark.parametrize("composition", ["grad", "jvp", "dual", "vmap", "jacrev", "jvp of grad"])
def test_mark_dirty_of_a_tensor_of_its_own(composition: str, draw: Draw) -> None:
    """PyTorch warns of that in eager mode, and goes on; under transforms it means nothing."""
    x = draw.constant(3)
    torch.testing.assert_close(under(composition, MarksAnother.apply)(x), under(composition, lambda x: 3 * x)(x))


class Sine(pullback.Function):
    """The sine."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Save the argument."""
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """The derivative."""
        return g * ctx.saved_tensors[0].cos()


@pytest.mark.parametrize("entry", [(), (3,), (0,), (2, 0)], ids=str)
def test_a_batch_of_no_entries(entry: tuple[int, ...]) -> None:
    """A batch of size 0, of numbers too, goes through vmap with its derivatives around and inside."""
    empty = torch.zeros(0, *entry, dtype=torch.float64)

    def summed(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: function(x).sum()

    def taken(function: Callable[[Tensor], Tensor]) -> list[Any]:
        mapped = torch.func.vmap(function)
        return [
            mapped(empty),
            torch.func.vmap(torch.func.grad(summed(function)))(empty),
            torch.func.grad(summed(mapped))(empty),
            torch.func.jvp(mapped, (empty,), (empty,)),
        ]

    torch.testing.assert_close(taken(Sine.apply), taken(torch.sin))
