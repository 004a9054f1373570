"""Kinds whose derivatives come from elsewhere than backward alone: reference, surrogate, double_backward, NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import pullback
from tests.transforms.matrix.kind import Kinds, floats

KINDS = Kinds()


def numpy(tensor: Tensor) -> Any:
    """The values, out of autograd's sight."""
    return tensor.detach().numpy()


def tensor(array: Any) -> Tensor:
    """A tensor of an array."""
    return torch.from_numpy(np.asarray(array))


def numpy_cube(*, forward_too: bool, **companions: Any) -> Any:
    """Make x³ whose backward, and perhaps forward, is computed by NumPy."""

    class NumpyCube(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return tensor(numpy(x) ** 3) if forward_too else x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return tensor(3 * numpy(ctx.saved_tensors[0]) ** 2 * numpy(g))

    return type("NumpyCube", (NumpyCube,), {name: staticmethod(method) for name, method in companions.items()})


@KINDS.kind(
    lambda x: x**3,
    floats((3,)),
    opaque_forward=True,
    opaque_backward=True,
    no_forward_mode=True,
    numpy_backward=True,
    order=1,
)
def opaque() -> Any:
    """Compute all in NumPy, and give nothing."""
    return numpy_cube(forward_too=True)


@KINDS.kind(lambda x: x**3, floats((3,)), opaque_backward=True, no_forward_mode=True, numpy_backward=True)
def opaque_backward() -> Any:
    """Compute the gradient in NumPy."""
    return numpy_cube(forward_too=False)


@KINDS.kind(lambda x: x**3, floats((3,)), numpy_backward=True)
def opaque_with_reference() -> Any:
    """Compute all in NumPy, beside a reference."""
    return numpy_cube(forward_too=True, reference=lambda x: x**3)


@KINDS.kind(
    lambda x: x**3, floats((3,)), opaque_forward=True, opaque_backward=True, no_forward_mode=True, numpy_backward=True
)
def opaque_with_double_backward() -> Any:
    """Compute all in NumPy, beside the short form of double_backward."""
    return numpy_cube(forward_too=True, double_backward=lambda ctx, gg: 6 * ctx.saved_tensors[0] * gg)


@KINDS.kind(lambda x: x**3, floats((3,)), opaque_forward=True, opaque_backward=True, order=1, numpy_backward=True)
def opaque_with_jvp() -> Any:
    """Compute all in NumPy, beside a jvp in PyTorch."""

    class NumpyCube(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return tensor(numpy(x) ** 3)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return tensor(3 * numpy(ctx.saved_tensors[0]) ** 2 * numpy(g))

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * t

    return NumpyCube


@KINDS.kind(lambda x: x**3, floats((3,)), opaque_backward=True, no_forward_mode=True, order=1, numpy_backward=True)
def opaque_with_vmap() -> Any:
    """Compute all in NumPy, beside a vmap."""

    class NumpyCube(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return tensor(numpy(x) ** 3)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return tensor(3 * numpy(ctx.saved_tensors[0]) ** 2 * numpy(g))

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
            return NumpyCube.apply(x), in_dims[0]

    return NumpyCube


@KINDS.kind(lambda x, y: x * y * y, floats((3,), (3,)))
def double_backward_in_full() -> Any:
    """Write double_backward for two arguments, beside a backward that autograd can follow."""

    class TimesSquare(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return g * y * y, 2 * g * x * y

        @staticmethod
        def double_backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
            x, y = ctx.saved_tensors
            (g,) = ctx.grad_outputs
            # None stands for an argument that takes no part in this derivative.
            a, b = (torch.zeros_like(x) if part is None else part for part in (a, b))
            return a * y * y + 2 * b * x * y, 2 * b * g * y, 2 * a * g * y + 2 * b * g * x

    return TimesSquare


@KINDS.kind(lambda x: x.exp(), floats((3,)), unsaved="PB206")
def double_backward_short() -> Any:
    """Write the short form of double_backward, reading an intermediate."""

    class Exp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

        @staticmethod
        def double_backward(ctx: Any, gg: Tensor) -> Tensor:
            found: Tensor = ctx.saved_tensors[0] * gg
            return found

    return Exp


@KINDS.kind(lambda x: x.sin() * x, floats((3,)))
def once_with_reference() -> Any:
    """Mark backward once_differentiable, beside a reference."""

    class TimesSin(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin() * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g * (x.cos() * x + x.sin())

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x.sin() * x

    return TimesSin


@KINDS.kind(lambda x: x.sin() * x, floats((3,)), no_forward_mode=True, order=1)
def once_alone() -> Any:
    """Mark backward once_differentiable, and give nothing."""

    class TimesSin(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin() * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g * (x.cos() * x + x.sin())

    return TimesSin


@KINDS.kind(lambda x: x**2 + (x.round() - x**2).detach(), floats((3,)))
def surrogate() -> Any:
    """Round, with the gradient of another function."""

    class RoundLikeSquare(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.round()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

        @staticmethod
        def surrogate(x: Tensor) -> Tensor:
            return x**2

    return RoundLikeSquare


@KINDS.kind(lambda x: -x + (2 * x).detach(), floats((3,)), use=lambda f, x: f(x.sin()) ** 2)
def reversal() -> Any:
    """Pass a tensor through, and turn its gradient round."""

    class Reverse(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return -g

        @staticmethod
        def surrogate(x: Tensor) -> Tensor:
            return -x

    return Reverse


class Clipped(torch.autograd.Function):
    """The truth for a clipped gradient, which no plain function has: PyTorch's Function, in the style it transforms."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Leave nothing for backward."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clamp(-1, 1)


@KINDS.kind(Clipped.apply, floats((3,)), use=lambda f, x: f(x * x) ** 2, no_forward_mode=True)
def nonlinear_backward() -> Any:
    """Clip the gradient, which isn't linear, on purpose."""

    class Clip(pullback.Function):
        nonlinear_backward = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.clamp(-1, 1)

    return Clip


@KINDS.kind(lambda x: x.exp(), floats((3,)), use=lambda f, x: f(0.5 * x) ** 2, in_place=True)
def in_place() -> Any:
    """Write to the argument, say so, and save it as the output that it is."""

    class ExpInPlace(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.exp_()
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return ExpInPlace


@KINDS.kind(
    lambda x: x.sin(),
    floats((3,)),
    use=lambda f, x: f(0.5 * x) ** 2,
    in_place=True,
    order=1,
    order_code="PB206",
    unsaved="PB206",
)
def in_place_intermediate() -> Any:
    """Write to the argument, of which only an intermediate is saved: forward can't be run again."""

    class SinInPlace(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.cos())
            ctx.mark_dirty(x)
            return x.sin_()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return SinInPlace
