"""Operations that are exact to every order, each beside its formula, in the many forms in which they can be written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import pullback
from tests.torch_features import BOXES
from tests.transforms.derivatives import Draw, Formula


@dataclass(frozen=True)
class Operation:
    """A Function that is right, and its formula.

    Attributes:
        make: Makes the class anew, so that no test finds what another one's calls have taught it.
        formula: The same in plain PyTorch.
        shapes: The shapes of its arguments.
        dtype: The dtype of its arguments.
    """

    make: Callable[[], Any]
    formula: Formula
    shapes: tuple[tuple[int, ...], ...] = ((3,),)
    dtype: torch.dtype = torch.float64

    def leaves(self, draw: Draw) -> list[Tensor]:
        """Draw arguments."""
        return [draw.leaf(*shape, dtype=self.dtype) for shape in self.shapes]


def argument_saved() -> Any:
    """Save the argument: nothing is cut off."""

    class Square(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    return Square


def output_saved() -> Any:
    """Save the output, with forward and setup_context apart."""

    class Exp(pullback.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.exp()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return Exp


def intermediate_saved() -> Any:
    """Save the argument and what backward needs of it: forward is replayed."""

    class Sinh(pullback.Function):
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


def intermediate_with_setup_context() -> Any:
    """Save an intermediate by way of a second, non-differentiable output, as setup_context has it."""

    class Tanh(pullback.Function):
        @staticmethod
        def forward(x: Tensor) -> tuple[Tensor, Tensor]:
            slope = 1 - x.tanh() ** 2
            return x.tanh(), slope

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(inputs[0], output[1])

        @staticmethod
        def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

    return Tanh


def intermediate_on_ctx() -> Any:
    """Keep intermediates on ctx, in a list in a dict."""

    class Power(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.kept = {"parts": [2 * x, 3.0]}
            return (2 * x) ** 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            t, factor = ctx.kept["parts"]
            return 2 * factor * t**2 * g

    return Power


def vjp_for_backward() -> Any:
    """Write vjp, return gradients by name, and save only for the arguments that need it."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, y if ctx.needs_input_grad[0] else None)
            return x * y

        @staticmethod
        def vjp(ctx: Any, g: Tensor) -> dict[str, Tensor | None]:
            x, y = ctx.saved_tensors
            return {"x": None if y is None else g * y, "y": None if x is None else g * x}

    return Product


def boxed() -> Any:
    """Take gradients as one list, which backward empties."""

    class Cube(pullback.Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, x * x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grads: Any) -> Tensor:
            _, square = ctx.saved_tensors
            return 3 * square * (grads.pop() if BOXES else grads)

    return Cube


def two_outputs() -> Any:
    """Return two outputs, an integer one, and one more that isn't differentiable."""

    class Split(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            order, rounded = x.argsort(), x.round()
            ctx.mark_non_differentiable(order, rounded)
            s = x.sin()
            ctx.save_for_backward(x, s)
            return s, x * x, order, rounded

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
            x, s = ctx.saved_tensors
            first = None if grads[0] is None else grads[0] * torch.where(x.cos() > 0, 1, -1) * (1 - s * s).sqrt()
            second = None if grads[1] is None else 2 * x * grads[1]
            return second if first is None else first if second is None else first + second

    return Split


def linear_algebra() -> Any:
    """Multiply matrices and add a bias that is broadcast; its gradient is left for the engine to sum."""

    class Linear(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w + b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            x, w = ctx.saved_tensors
            return g @ w.mT, x.mT @ g, g

    return Linear


def complex_intermediate() -> Any:
    """Save an intermediate of complex numbers."""

    class Exp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            e = z.exp()
            ctx.save_for_backward(z, e)
            return e.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1].conj()

    return Exp


def nested() -> Any:
    """Call one Function from the forward and from the backward of another."""
    square = argument_saved()

    class Fourth(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = square.apply(x)
            ctx.save_for_backward(x, y)
            return square.apply(y)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, y = ctx.saved_tensors
            return 4 * x * y * g

    return Fourth


def autograd_inside() -> Any:
    """Recompute inside backward, on the saved argument itself, with autograd."""

    class Recomputed(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin() * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = x.sin() * x
            return torch.autograd.grad(y, x, g)[0]

    return Recomputed


def _two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x * x


EXACT: dict[str, Operation] = {
    "argument_saved": Operation(argument_saved, torch.square),
    "output_saved": Operation(output_saved, torch.exp),
    "intermediate_saved": Operation(intermediate_saved, torch.sinh),
    "intermediate_with_setup_context": Operation(intermediate_with_setup_context, torch.tanh),
    "intermediate_on_ctx": Operation(intermediate_on_ctx, lambda x: (2 * x) ** 3),
    "vjp_for_backward": Operation(vjp_for_backward, torch.mul, ((3,), (3,))),
    "boxed": Operation(boxed, lambda x: x**3),
    "two_outputs": Operation(two_outputs, _two),
    "linear_algebra": Operation(linear_algebra, lambda x, w, b: x @ w + b, ((2, 3), (3, 2), (2,))),
    "complex_intermediate": Operation(complex_intermediate, torch.exp, dtype=torch.complex128),
    "nested": Operation(nested, lambda x: x**4),
    "autograd_inside": Operation(autograd_inside, lambda x: x.sin() * x),
}
