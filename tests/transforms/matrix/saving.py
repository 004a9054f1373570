"""Kinds that differ in what forward leaves for backward, and where."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import pullback
from tests.transforms.matrix.kind import Kinds, floats

KINDS = Kinds()


@KINDS.kind(lambda x: x**3, floats((3,)))
def argument_saved() -> Any:
    """Save the argument."""

    class Cube(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * g

    return Cube


@KINDS.kind(torch.tanh, floats((2, 3)))
def output_saved() -> Any:
    """Save the output."""

    class Tanh(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.tanh()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * (1 - ctx.saved_tensors[0] ** 2)

    return Tanh


@KINDS.kind(lambda x: x * x.exp(), floats((3,)))
def intermediate_saved() -> Any:
    """Save the argument and an intermediate."""

    class TimesExp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            e = x.exp()
            ctx.save_for_backward(x, e)
            return x * e

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, e = ctx.saved_tensors
            return g * (e + x * e)

    return TimesExp


@KINDS.kind(lambda x: x.exp().sin(), floats((3,)), unsaved="PB206")
def only_intermediate_saved() -> Any:
    """Save an intermediate and not the argument."""

    class SinExp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            e = x.exp()
            ctx.save_for_backward(e)
            return e.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (e,) = ctx.saved_tensors
            return g * e.cos() * e

    return SinExp


@KINDS.kind(lambda x, w, b: (x * w + b).sigmoid() * (x - w).tanh(), floats((3,), (3,), (3,)))
def two_intermediates() -> Any:
    """Save two intermediates of three arguments."""

    class Gate(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            s, t = (x * w + b).sigmoid(), (x - w).tanh()
            ctx.save_for_backward(x, w, b, s, t)
            return s * t

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
            x, w, _, s, t = ctx.saved_tensors
            ds, dt = g * t * s * (1 - s), g * s * (1 - t * t)
            return ds * w + dt, ds * x - dt, ds

    return Gate


@KINDS.kind(lambda x: x.exp().square(), floats((3,)), unsaved="PB206")
def intermediate_on_ctx() -> Any:
    """Keep the argument and an intermediate as attributes of ctx."""

    class ExpSquare(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x, ctx.e = x, x.exp()
            return ctx.e * ctx.e

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * ctx.e * ctx.x.exp()

    return ExpSquare


@KINDS.kind(lambda x: (2 * x) ** 3, floats((3,)))
def intermediate_in_dict() -> Any:
    """Keep an intermediate in a list in a dict on ctx."""

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


@KINDS.kind(lambda x: (x @ x.mT).tril().sin(), floats((2, 2)))
def argument_on_ctx() -> Any:
    """Keep the argument itself as an attribute of ctx."""

    class Gram(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x = x
            return (x @ x.mT).tril().sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            inner = g.tril() * (ctx.x @ ctx.x.mT).cos()
            return (inner + inner.mT) @ ctx.x

    return Gram


@KINDS.kind(lambda x, y: 3 * x - 0.5 * y, floats((3,), (3,)))
def nothing_saved() -> Any:
    """Save nothing: a linear function, whose gradient is constant."""

    class Combination(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            return 3 * x - 0.5 * y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            return 3 * g, -0.5 * g

    return Combination


@KINDS.kind(lambda x: x.cumsum(-1), floats((3,)))
def linear() -> Any:
    """A linear function that isn't elementwise."""

    class RunningSum(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.cumsum(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.flip(-1).cumsum(-1).flip(-1)

    return RunningSum


@KINDS.kind(lambda x: torch.where(x > 0.7, x * x, 0.5 * x), floats((3,)))
def constants_declared() -> Any:
    """Save a mask of floats that is declared constant."""

    class Bend(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask = (x > 0.7).to(x)
            ctx.save_for_backward(x, constants=(mask,))
            return mask * x * x + (1 - mask) * 0.5 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, mask = ctx.saved_tensors
            return g * (mask * 2 * x + (1 - mask) * 0.5)

    return Bend


@KINDS.kind(torch.relu, lambda draw: (draw.constant(3, low=-1.0, high=1.0),))
def bool_saved() -> Any:
    """Save a mask of bools alone."""

    class Relu(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x > 0)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return Relu


@KINDS.kind(lambda x, w: (x * w).sin() / w, floats((3,), (3,)))
def input_and_output_saved() -> Any:
    """Save arguments and output, and compute the rest again."""

    class SinOver(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            y = (x * w).sin() / w
            ctx.save_for_backward(x, w, y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w, y = ctx.saved_tensors
            slope = (x * w).cos()
            return g * slope, g * (slope * x - y) / w

    return SinOver


@KINDS.kind(lambda x: x.sin() * x, floats((3,), dtype=torch.float32))
def single_precision() -> Any:
    """Compute in float32, with an intermediate saved."""

    class TimesSin(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            s = x.sin()
            ctx.save_for_backward(x, s)
            return s * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, s = ctx.saved_tensors
            return g * (x.cos() * x + s)

    return TimesSin


@KINDS.kind(lambda z: z.exp() * z, floats((2,), dtype=torch.complex128))
def complex_holomorphic() -> Any:
    """Take and give complex numbers, with an intermediate saved."""

    class TimesExp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            e = z.exp()
            ctx.save_for_backward(z, e)
            return z * e

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            z, e = ctx.saved_tensors
            return g * (e + z * e).conj()

    return TimesExp


@KINDS.kind(
    lambda z, x: (z * z.conj()).real * x, lambda draw: (draw.constant(2, dtype=torch.complex128), draw.constant(2))
)
def complex_to_real() -> Any:
    """Take complex and real numbers and give real ones."""

    class Energy(pullback.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor, x: Tensor) -> Tensor:
            ctx.save_for_backward(z, x)
            return (z * z.conj()).real * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            z, x = ctx.saved_tensors
            return 2 * g * x * z, g * (z * z.conj()).real

    return Energy
