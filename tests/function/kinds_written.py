"""Kinds of Function by the way in which they are written: styles, arguments, inheritance, and changes afterwards."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from tests.function.kinds import Kinds, leaf, two_leaves
from tests.torch_features import needs_keywords

T = TypeVar("T")
WRITTEN = Kinds()


@WRITTEN.add()
def forward_takes_ctx(base: type) -> Any:
    """forward saves what backward needs."""

    class Square(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Square


@WRITTEN.add()
def setup_context_apart(base: type) -> Any:
    """setup_context saves, forward only computes."""

    class Square(base):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Square


@WRITTEN.add()
def vjp_in_place_of_backward(base: type) -> Any:
    """The older name for backward."""

    class Square(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def vjp(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    return Square


@WRITTEN.add()
def vjp_with_setup_context(base: type) -> Any:
    """Both of the less usual forms at once."""

    class Square(base):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def vjp(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    return Square


@WRITTEN.add()
def without_staticmethod(base: type) -> Any:
    """Plain functions, which PyTorch fetches from the class and never binds."""

    class Square(base):
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    return Square


@WRITTEN.add()
def only_backward_without_staticmethod(base: type) -> Any:
    """The decorator forgotten on backward alone."""

    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    return Triple


@WRITTEN.add()
def classmethods(base: type) -> Any:
    """Class methods, which read a constant of their class."""

    class Scale(base):
        factor = 3

        @classmethod
        def forward(cls, ctx: Any, x: Tensor) -> Tensor:
            return x * cls.factor

        @classmethod
        def backward(cls, ctx: Any, g: Tensor) -> Tensor:
            return g * cls.factor

    return Scale


@WRITTEN.add()
def inherited_forward(base: type) -> Any:
    """forward in one class, backward in its child."""

    class Parent(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

    class Sine(Parent):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0].cos()

    return Sine


@WRITTEN.add()
def overridden_backward(base: type) -> Any:
    """A child with a backward of its own that calls its parent's."""

    class Parent(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    class Negated(Parent):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return -Parent.backward(ctx, g)

    return Negated


@WRITTEN.add()
def abstract_parent(base: type) -> Any:
    """A parent without forward, whose backward reads what its children set."""

    class Scale(base):
        factor: float

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.factor

    class Triple(Scale):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.factor = 3
            return x * 3

    return Triple


@WRITTEN.add()
def methods_from_a_mixin(base: type) -> Any:
    """Methods that come from an ordinary class, before the base in the order of resolution."""

    class Mixin:
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    class Triple(Mixin, base):
        pass

    return Triple


@WRITTEN.add()
def generic_class(base: type) -> Any:
    """A class that also derives from typing.Generic."""

    class Triple(base, Generic[T]):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    return Triple


@WRITTEN.add(arguments=lambda: (leaf(3, seed=1), leaf(3, seed=2), leaf(3, seed=3)))
def variadic(base: type) -> Any:
    """As many arguments as the caller likes."""

    class Total(base):
        @staticmethod
        def forward(ctx: Any, *tensors: Tensor) -> Tensor:
            ctx.count = len(tensors)
            return torch.stack(tensors).sum(0)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return (g,) * ctx.count

    return Total


@WRITTEN.add()
def defaults_left_out(base: type) -> Any:
    """Two defaults that aren't passed, and a None for each of them nevertheless."""

    class Scale(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, factor: float = 3, shift: float = 1) -> Tensor:
            ctx.factor = factor
            return x * factor + shift

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.factor, None, None

    return Scale


@WRITTEN.add()
def defaults_with_setup_context(base: type) -> Any:
    """A default that arrives in setup_context though it wasn't passed."""

    class Scale(base):
        @staticmethod
        def forward(x: Tensor, factor: float = 3) -> Tensor:
            return x * factor

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            _, ctx.factor = inputs

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.factor, None

    return Scale


@WRITTEN.add(arguments=two_leaves, call=lambda function, x, y: function.apply(x, y=y), needs=(needs_keywords,))
def keywords(base: type) -> Any:
    """One argument passed by keyword."""

    class Product(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, y = ctx.saved_tensors
            return g * y, g * x

    return Product


@WRITTEN.add(arguments=two_leaves, call=lambda function, x, y: function.apply(y=y, x=x), needs=(needs_keywords,))
def keywords_with_setup_context(base: type) -> Any:
    """All arguments passed by keyword, in another order."""

    class Ratio(base):
        @staticmethod
        def forward(x: Tensor, y: Tensor) -> Tensor:
            return x / y

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, y = ctx.saved_tensors
            return g / y, -g * x / y**2

    return Ratio


@WRITTEN.add(arguments=lambda: (leaf(3), None, "text", 2.0, len))
def arguments_that_are_no_tensors(base: type) -> Any:
    """None, text, a number and a function among the arguments."""

    class Scale(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, nothing: None, text: str, factor: float, count: Any) -> Tensor:
            ctx.factor = factor * count(text)
            return x * ctx.factor

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.factor, None, None, None, None

    return Scale


def _applied_with_stash(function: Any, x: Tensor) -> Any:
    stash: dict[str, Any] = {"list": [1]}
    y = function.apply(x, stash["list"], stash)
    # The very objects went through: what forward wrote is here.
    return y, stash["list"], stash["forward"]


@WRITTEN.add(call=_applied_with_stash)
def containers_as_side_channels(base: type) -> Any:
    """A list and a dict that forward and backward write to, as a way around the graph."""

    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, calls: list[int], stash: dict[str, Any]) -> Tensor:
            calls.append(2)
            stash["forward"] = stash["list"] is calls
            ctx.calls = calls
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            ctx.calls.append(3)
            return g * len(ctx.calls), None, None

    return Triple


@WRITTEN.add()
def apply_overridden(base: type) -> Any:
    """A class with an apply of its own that goes on to its parent's."""

    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * ctx.factor, None

        @classmethod
        def apply(cls, x: Tensor) -> Any:
            return super().apply(x, 3)

    return Triple
