"""F1: what PyTorch reads off the class at each call may change after the class was first applied."""

from typing import Any

import torch
from torch import Tensor

import pullback


class Doubled(pullback.Function):
    """y = 2x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2


def test_a_subclass_that_pullback_was_not_told_of_has_its_own_forward() -> None:
    """A mixin may swallow __init_subclass__: the subclass still runs its own methods, not those of its base."""
    Doubled.apply(torch.ones(1, requires_grad=True))

    class Silent:
        def __init_subclass__(cls, **kwargs: Any) -> None:
            pass

    class Tripled(Silent, Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 3

    x = torch.ones(1, requires_grad=True)
    y = Tripled.apply(x)
    y.backward()
    assert y.item() == 3
    assert x.grad is not None
    assert x.grad.item() == 3


def test_forward_may_be_replaced_by_one_with_other_parameters() -> None:
    """As in PyTorch, methods that are put on the class after its first call are the ones that run."""

    class Changed(Doubled):
        pass

    x = torch.ones(1, requires_grad=True)
    Changed.apply(x)
    Changed.forward = staticmethod(lambda ctx, x, k: x * k)
    Changed.backward = staticmethod(lambda ctx, g: (g * 5, None))
    y = Changed.apply(x, 5)
    (gradient,) = torch.autograd.grad(y, x)
    assert (y.item(), gradient.item()) == (5, 5)


def test_the_style_may_change() -> None:
    """A class that gets a setup_context later is run in that style from then on."""

    class Changed(Doubled):
        pass

    x = torch.ones(1, requires_grad=True)
    Changed.apply(x)
    Changed.forward = staticmethod(lambda x: x * 7)
    Changed.setup_context = staticmethod(lambda ctx, inputs, output: None)
    assert Changed.apply(x).item() == 7
