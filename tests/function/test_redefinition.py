"""F1: what PyTorch reads off the class at each call may change after the class was first applied."""

from typing import Any

import pytest
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


def _applied_twice(cls: Any) -> float:
    """The value after a call that is watched and one that isn't."""
    x = torch.ones(1, requires_grad=True)
    cls.apply(x)
    value: float = cls.apply(x).item()
    return value


@pytest.mark.parametrize("style", ["ctx", "setup_context"])
@pytest.mark.parametrize("where", ["the class", "a base", "a mixin", "a mixin that had none", "an adopted class"])
def test_a_method_may_be_replaced_wherever_it_comes_from(where: str, style: str) -> None:
    """As in PyTorch, a call runs the forward that there is now, whichever class it lies on."""

    def times(factor: int) -> Any:
        """A forward of `style`."""
        return staticmethod(lambda *arguments: arguments[-1] * factor)

    body = {"forward": times(2), "backward": staticmethod(lambda ctx, g: g)}
    if style == "setup_context":
        body["setup_context"] = staticmethod(lambda ctx, inputs, output: None)
    if where == "an adopted class":
        holder: Any = type("Theirs", (torch.autograd.Function,), body)
        cls: Any = pullback.adopt(holder)
    elif where == "a mixin":
        holder = type("Mixin", (), body)
        cls = type("Mixed", (holder, pullback.Function), {})
    elif where == "a mixin that had none":
        holder = type("Mixin", (), {})
        cls = type("Mixed", (holder, type("Base", (pullback.Function,), body)), {})
    else:
        holder = type("Base", (pullback.Function,), body)
        cls = holder if where == "the class" else type("Derived", (holder,), {})
    assert _applied_twice(cls) == 2
    holder.forward = times(3)
    assert _applied_twice(cls) == 3
