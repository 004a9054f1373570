"""Kinds that differ in which methods their author wrote: setup_context, jvp, vmap, vjp, another Function inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import pullback
from tests.transforms.matrix.kind import Kinds, floats
from tests.transforms.matrix.saving import argument_saved, intermediate_saved

KINDS = Kinds()


class SetupCube(pullback.Function):
    """x³ in setup_context style."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * g


@KINDS.kind(lambda x: x**3, floats((3,)))
def setup_context() -> Any:
    """Write forward and setup_context."""

    class Cube(SetupCube):
        pass

    return Cube


@KINDS.kind(lambda x: x**3, floats((3,)))
def generated_vmap() -> Any:
    """Let PyTorch generate a vmap rule."""

    class Cube(SetupCube):
        generate_vmap_rule = True

    return Cube


@KINDS.kind(lambda x: x**3, floats((3,)))
def setup_with_vmap() -> Any:
    """Write a vmap beside setup_context."""

    class Cube(SetupCube):
        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
            return Cube.apply(x), in_dims[0]

    return Cube


@KINDS.kind(lambda x: x**3, floats((3,)))
def setup_with_jvp() -> Any:
    """Write a jvp beside setup_context, and let PyTorch generate a vmap rule."""

    class Cube(SetupCube):
        generate_vmap_rule = True

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * t

    return Cube


@KINDS.kind(lambda x, y: x * y.sin(), floats((3,), (3,)))
def with_jvp() -> Any:
    """Write a jvp beside a forward that takes ctx."""

    class TimesSin(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            ctx.save_for_forward(x, y)
            return x * y.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return g * y.sin(), g * x * y.cos()

        @staticmethod
        def jvp(ctx: Any, s: Tensor, t: Tensor) -> Tensor:
            x, y = ctx.saved_tensors
            return s * y.sin() + t * x * y.cos()

    return TimesSin


@KINDS.kind(lambda x: x.exp() * x, floats((3,)))
def jvp_with_intermediate() -> Any:
    """Write a jvp that reads an intermediate."""

    class TimesExp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            e = x.exp()
            ctx.save_for_backward(x, e)
            ctx.save_for_forward(x, e)
            return x * e

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, e = ctx.saved_tensors
            return g * (e + x * e)

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            x, e = ctx.saved_tensors
            return t * (e + x * e)

    return TimesExp


@KINDS.kind(lambda x, w: x @ w, floats((2, 3), (3,)))
def with_vmap() -> Any:
    """Write a vmap beside a forward that takes ctx, for two arguments of which either may be shared."""

    class MatrixVector(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return (x * w.unsqueeze(-2)).sum(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return g.unsqueeze(-1) * w.unsqueeze(-2), (g.unsqueeze(-1) * x).sum(-2)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
            moved = [
                t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
                for t, dim in zip((x, w), in_dims, strict=True)
            ]
            return MatrixVector.apply(*moved), 0

    return MatrixVector


@KINDS.kind(lambda x: (x.sin(), x.cos()), floats((3,)))
def all_methods() -> Any:
    """Write jvp, vmap and backward for two outputs."""

    class SinCos(pullback.Function):
        @staticmethod
        def forward(x: Tensor) -> tuple[Tensor, Tensor]:
            return x.sin(), x.cos()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
            ctx.save_for_backward(*output)
            ctx.save_for_forward(*output)

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
            s, c = ctx.saved_tensors
            return g * c - h * s

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> tuple[Tensor, Tensor]:
            s, c = ctx.saved_tensors
            return t * c, -t * s

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[tuple[Tensor, Tensor], Any]:
            return SinCos.apply(x), (in_dims[0], in_dims[0])

    return SinCos


@KINDS.kind(lambda x, y: x * y, floats((3,), (3,)))
def vjp_and_names() -> Any:
    """Call backward vjp, and return gradients by name."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def vjp(ctx: Any, g: Tensor) -> dict[str, Tensor]:
            x, y = ctx.saved_tensors
            return {"y": g * x, "x": g * y}

    return Product


@KINDS.kind(lambda x: 2 * x * x.exp(), floats((3,)))
def inherited() -> Any:
    """Inherit forward, and write another backward on top of the inherited one."""
    base = intermediate_saved()

    class Twice(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            found: Tensor = 2 * base.forward(ctx, x)
            return found

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            found: Tensor = base.backward(ctx, 2 * g)
            return found

    return Twice


@KINDS.kind(lambda x: 4 * x**3, floats((3,)))
def contiguous_grads() -> Any:
    """Ask for contiguous gradients."""

    class Cube(pullback.Function):
        contiguous_grads = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return 4 * x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 12 * ctx.saved_tensors[0] ** 2 * g

    return Cube


@KINDS.kind(lambda x: x.sin() ** 3, floats((3,)))
def calls_another() -> Any:
    """Call another Function in forward and in backward."""
    cube = argument_saved()

    class SinCube(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            found: Tensor = cube.apply(x.sin())
            return found

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            # sin² cos, as 1 - cos² times cos: the cube comes from the other Function.
            found: Tensor = 3 * g * (x.cos() - cube.apply(x.cos()))
            return found

    return SinCube


@KINDS.kind(lambda x: x * x.exp(), floats((3,)), use=lambda f, x: f(0.3 * f(0.5 * x)))
def chained() -> Any:
    """Take its own output as the argument."""
    return intermediate_saved()


@KINDS.kind(lambda x: x.sin() * x, floats((3,)))
def autograd_in_backward() -> Any:
    """Compute the gradient inside backward with autograd, on the saved argument."""

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
