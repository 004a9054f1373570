"""Kinds of Function to be put into surroundings: each beside its formula, and, where torch takes it, on any base."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction

import pullback
from tests.surroundings.kind import KINDS, Called, kind
from tests.torch_features import BOXES

__all__ = ["KINDS", "each_kind", "each_on_torch"]


@kind(lambda x, y: x * x * y, 2)
def saves_inputs(base: Any) -> Called:
    """Save the arguments and nothing else."""

    class Product(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * x * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return 2 * g * x * y, g * x * x

    return Product.apply


def _sinh(base: Any) -> Any:
    class Sinh(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            e, n = x.exp(), (-x).exp()
            ctx.save_for_backward(x, e, n)
            return (e - n) / 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            _, e, n = ctx.saved_tensors
            return g * (e + n) / 2

    return Sinh


@kind(torch.sinh)
def saves_intermediates(base: Any) -> Called:
    """Save what forward computed: a second derivative takes a replay."""
    return _sinh(base).apply


@kind(torch.sinh)
def adopted(base: Any) -> Called:
    """The same, written on torch's class and adopted."""
    made = _sinh(TorchFunction)
    return (made if base is TorchFunction else pullback.adopt(made)).apply


@kind(torch.exp)
def saves_output(base: Any) -> Called:
    """Save the output, in setup_context style."""

    class Exp(base):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.exp()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return Exp.apply


@kind(lambda x: (2 * x) ** 3)
def keeps_on_ctx(base: Any) -> Called:
    """Keep an intermediate on ctx."""

    class Power(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.kept = [2 * x]
            return (2 * x) ** 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 6 * ctx.kept[0] ** 2 * g

    return Power.apply


def _opaque_cube(base: Any) -> Any:
    class Cube(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.from_numpy(x.detach().numpy() ** 3)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.from_numpy(3 * np.square(ctx.saved_tensors[0].detach().numpy()) * g.detach().numpy())

    return Cube


@kind(lambda x: x**3)
def reference(base: Any) -> Called:
    """Compute in NumPy, with a reference in plain PyTorch."""
    made = _opaque_cube(base)
    made.reference = staticmethod(lambda x: x**3)
    return made.apply


@kind(lambda x: x**3)
def double_backward(base: Any) -> Called:
    """Compute in NumPy, with a double_backward."""
    made = _opaque_cube(base)
    made.double_backward = staticmethod(lambda ctx, gg: 6 * ctx.saved_tensors[0] * gg)
    return made.apply


@kind(lambda x: x.tanh() + (x.round() - x.tanh()).detach())
def surrogate(base: Any) -> Called:
    """Round, with the gradient of tanh."""

    class Rounded(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, 1 - x.tanh() ** 2)
            return x.round()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

        @staticmethod
        def surrogate(x: Tensor) -> Tensor:
            return x.tanh()

    return Rounded.apply


@kind(lambda x, y: (x * y, x**2 * y), 2, on_torch=False)
def nests(base: Any) -> Called:
    """Take a dict and return a list, with an intermediate saved."""

    class Pairwise(base):
        @staticmethod
        def forward(ctx: Any, n: dict[str, Tensor]) -> list[Tensor]:
            square = n["x"] ** 2
            ctx.save_for_backward(n["x"], n["y"], square)
            return [n["x"] * n["y"], square * n["y"]]

        @staticmethod
        def backward(ctx: Any, grads: list[Tensor]) -> Any:
            (x, y, square), (g, h) = ctx.saved_tensors, grads
            return {"n": {"x": g * y + 2 * h * x * y, "y": g * x + h * square}}

    return lambda x, y: tuple(Pairwise.apply({"x": x, "y": y}))


@kind(lambda x, y: (x * 3).sin() * y, 2, on_torch=False)
def keyword_only(base: Any) -> Called:
    """Take a tensor and a number by keyword only."""

    class Wave(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *, y: Tensor, rate: float = 2.0) -> Tensor:
            ctx.save_for_backward(x, y)
            ctx.rate = rate
            return (x * rate).sin() * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, y = ctx.saved_tensors
            return {"x": g * ctx.rate * (x * ctx.rate).cos() * y, "y": g * (x * ctx.rate).sin()}

    return lambda x, y: Wave.apply(x, y=y, rate=3.0)


@kind(lambda x: (x * 1.5) ** 2)
def writes_its_argument(base: Any) -> Called:
    """Square the argument in place, after it was saved as a copy."""

    class SquareInPlace(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.mul_(1.5)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 1.5

    return lambda x: SquareInPlace.apply(x * 1) ** 2


@kind(lambda x: (x.sin(), x * x))
def several_outputs(base: Any) -> Called:
    """Return two outputs and two that aren't differentiable, without zeros for those that aren't used."""

    class Split(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
            ctx.set_materialize_grads(False)
            order, rounded = x.argsort(), x.round()
            ctx.mark_non_differentiable(order, rounded)
            ctx.save_for_backward(x, x.cos())
            return x.sin(), x * x, order, rounded

        @staticmethod
        def backward(ctx: Any, g: Tensor | None, h: Tensor | None, *_: None) -> Tensor | None:
            x, cos = ctx.saved_tensors
            first = None if g is None else g * cos
            second = None if h is None else 2 * h * x
            return second if first is None else first if second is None else first + second

    return Split.apply


@kind(lambda x: x**3, once=True)
def clears_on_access(base: Any) -> Called:
    """Let go of the saved tensors as they are read."""

    class Cube(base):
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, x * x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            _, square = ctx.saved_tensors
            return 3 * square * g

    return Cube.apply


@kind(lambda x: x**3)
def boxed(base: Any) -> Called:
    """Take the gradients as one list, which backward empties."""

    class Cube(base):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, x * x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grads: list[Tensor]) -> Tensor:
            _, square = ctx.saved_tensors
            return 3 * square * grads.pop()

    return Cube.apply


@kind(lambda x: (x * torch.rand_like(x)) ** 2)
def random(base: Any) -> Called:
    """Draw random numbers, and save an intermediate of them."""

    class Noisy(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            noise = torch.rand_like(x)
            scaled = x * noise
            ctx.save_for_backward(x, noise, scaled)
            return scaled**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            _, noise, scaled = ctx.saved_tensors
            return 2 * g * scaled * noise

    return Noisy.apply


@kind(lambda x, y: x.sin() * y, 2, on_torch=False)
def custom_vjp(base: Any) -> Called:
    """Decorate a function with its reverse rule."""

    @pullback.custom_vjp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x.sin() * y

    product.defvjp(
        lambda x, y: (x.sin() * y, {"x": x, "cos": x.cos(), "y": y}),
        lambda kept, g: (g * kept["cos"] * kept["y"], g * kept["x"].sin()),
    )
    return product


@kind(lambda x, y: x.sin() * y, 2, on_torch=False)
def custom_jvp(base: Any) -> Called:
    """Decorate a function with its forward rule."""

    @pullback.custom_jvp
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x.sin() * y

    product.defjvps(lambda x_dot, result, x, y: x.cos() * x_dot * y, lambda y_dot, result, x, y: x.sin() * y_dot)
    return product


if not BOXES:  # to a torch that can't, the declaration means nothing
    del KINDS["boxed"]

each_kind = pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in KINDS.items()])

each_on_torch = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name) for name, kind in KINDS.items() if kind.on_torch]
)
"""The kinds whose source torch's own Function takes: what surroundings make of them there can be compared."""
