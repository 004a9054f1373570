"""Operations that several rows share, each written in the way that its library's own documentation teaches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.where.want import CUSTOM_OP, Operation, classes, custom_op, vjp


def cube(base: type) -> Any:
    """A class with ctx that saves its argument."""

    class Cube(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad_output

    return Cube


def cube_function(x: Tensor) -> Tensor:
    """What custom_vjp decorates and custom_op wraps."""
    return x**3


CUBE = Operation(
    "cube",
    lambda x: x**3,
    {
        **classes(cube),
        **vjp("cube", cube_function, lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,)),
        **custom_op(
            "cube",
            "(Tensor x) -> Tensor",
            cube_function,
            lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
            lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
            fake=torch.empty_like,
        ),
    },
)
"""Saves its argument."""


def swish(base: type) -> Any:
    """A class that saves an intermediate beside its argument."""

    class Swish(base):
        @staticmethod
        def forward(ctx, x):
            s = torch.sigmoid(x)
            ctx.save_for_backward(x, s)
            return x * s

        @staticmethod
        def backward(ctx, grad_output):
            x, s = ctx.saved_tensors
            return grad_output * s * (1 + x * (1 - s))

    return Swish


def swish_fwd(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The forward of custom_vjp, with its residuals."""
    s = torch.sigmoid(x)
    return x * s, (x, s)


def swish_bwd(residuals: tuple[Tensor, Tensor], g: Tensor) -> tuple[Tensor]:
    """The backward of custom_vjp."""
    x, s = residuals
    return (g * s * (1 + x * (1 - s)),)


def swish_op_backward(ctx: Any, g: Tensor, unused: Tensor) -> Tensor:
    """The backward of custom_op, where an intermediate can only be saved if it is returned."""
    x, s = ctx.saved_tensors
    return g * s * (1 + x * (1 - s))


def swish_op() -> Any:
    """What a caller gets of the custom_op: the first of its outputs."""
    (make,) = custom_op(
        "swish",
        "(Tensor x) -> (Tensor, Tensor)",
        lambda x: (x * torch.sigmoid(x), torch.sigmoid(x)),
        swish_op_backward,
        lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output[1]),
    ).values()
    op = make()
    return lambda x: op(x)[0]


def plain_swish(x: Tensor) -> Tensor:
    """x times its sigmoid."""
    return x * torch.sigmoid(x)


SWISH = Operation(
    "swish",
    plain_swish,
    {**classes(swish), **vjp("swish", plain_swish, swish_fwd, swish_bwd), CUSTOM_OP: swish_op},
)
"""Saves an intermediate that varies with its argument."""


def on_ctx(base: type) -> Any:
    """A class that keeps an intermediate as an attribute of ctx."""

    class SwishKept(base):
        @staticmethod
        def forward(ctx, x):
            ctx.s = torch.sigmoid(x)
            ctx.save_for_backward(x)
            return x * ctx.s

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * ctx.s * (1 + x * (1 - ctx.s))

    return SwishKept


KEPT = Operation("SwishKept", plain_swish, classes(on_ctx))
"""Keeps an intermediate on ctx, where no hook sees it."""


def set_up(base: type) -> Any:
    """A class in PyTorch's newer style, with a rule for vmap that PyTorch generates."""

    class CubeSetUp(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad_output

    return CubeSetUp


SET_UP = Operation("CubeSetUp", lambda x: x**3, classes(set_up))
"""setup_context style."""


def set_up_with_jvp(base: type) -> Any:
    """The same with a jvp by hand."""

    class CubeSetUp(set_up(base)):
        @staticmethod
        def jvp(ctx, tangent):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * tangent

    return CubeSetUp


WITH_JVP = Operation("CubeSetUp", lambda x: x**3, classes(set_up_with_jvp))
"""setup_context style, with a jvp."""


def dropout(base: type) -> Any:
    """A random forward that saves its mask."""

    class DropHalf(base):
        @staticmethod
        def forward(ctx, x):
            mask = torch.rand_like(x) < 0.5
            ctx.save_for_backward(mask)
            return x * mask * 2

        @staticmethod
        def backward(ctx, grad_output):
            (mask,) = ctx.saved_tensors
            return grad_output * mask * 2

    return DropHalf


def plain_dropout(x: Tensor) -> Tensor:
    """The same from PyTorch's operations."""
    return x * (torch.rand_like(x) < 0.5) * 2


def dropout_fwd(x: Tensor) -> tuple[Tensor, Tensor]:
    """The forward of custom_vjp."""
    mask = torch.rand_like(x) < 0.5
    return x * mask * 2, mask


DROPOUT = Operation(
    "DropHalf",
    plain_dropout,
    {
        **classes(dropout),
        **vjp("DropHalf", plain_dropout, dropout_fwd, lambda mask, g: (g * mask * 2,)),
        **custom_op(
            "DropHalf",
            "(Tensor x) -> (Tensor, Tensor)",
            lambda x: (lambda mask: (x * mask * 2, mask))(torch.rand_like(x) < 0.5),
            lambda ctx, g, _: g * ctx.saved_tensors[0] * 2,
            lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
        ),
    },
)
"""A random forward."""
