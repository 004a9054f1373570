"""The other ways to write a Function, typed: setup_context, a ctx of one's own, declarations, companions."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import pullback


class ScaleContext(pullback.Context):
    """What Scale keeps beside its tensors; the type checker holds its author to it."""

    factor: float


class Scale(pullback.Function):
    """x times a factor, with forward and setup_context apart, and rules for jvp and vmap."""

    nondiff_argnames = ("factor",)
    contiguous_grads = True

    @staticmethod
    def forward(x: Tensor, factor: float = 2.0) -> Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: ScaleContext, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]
        ctx.mark_non_differentiable()
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: ScaleContext, grad_output: Tensor | None) -> tuple[Tensor | None, None]:
        return None if grad_output is None else grad_output * ctx.factor, None

    @staticmethod
    def jvp(ctx: ScaleContext, tangent: Tensor, factor: None) -> Tensor:
        return tangent * ctx.factor

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, None], x: Tensor, factor: float) -> tuple[Tensor, int | None]:
        return Scale.apply(x, factor), in_dims[0]

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, float]]:
        yield torch.rand(3, dtype=torch.float64), 3.0


class Cube(pullback.Function):
    """x cubed: gradients by name, a derivative of the derivative, a reference."""

    @staticmethod
    def forward(ctx: pullback.Context, x: Tensor) -> Tensor:
        square = x * x
        ctx.save_for_backward(x, constants=(x > 0,))
        ctx.shape = square.shape
        return x * square

    @staticmethod
    def backward(ctx: pullback.Context, grad_output: Tensor) -> dict[str, Tensor | None]:
        x, positive = ctx.saved_tensors
        return {"x": torch.where(positive, 3, 3) * x * x * grad_output if ctx.needs_input_grad[0] else None}

    @staticmethod
    def double_backward(ctx: pullback.Context, grad_grad_x: Tensor) -> Tensor:
        x, (grad_output,) = ctx.saved_tensors[0], ctx.grad_outputs
        return 6 * x * grad_output * grad_grad_x

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x**3


class Split(pullback.Function):
    """Two outputs, and a backward that the engine's own names are used in."""

    @staticmethod
    def forward(ctx: pullback.Context, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), -x

    @staticmethod
    def vjp(ctx: pullback.Context, grad_first: Tensor, grad_second: Tensor) -> tuple[Tensor]:
        return (grad_first - grad_second,)


def penalty(x: Tensor) -> Tensor:
    """A gradient penalty through them."""
    first, second = Split.apply(Cube.apply(Scale.apply(x, factor=3.0)))
    assert isinstance(first, Tensor)
    (gradient,) = torch.autograd.grad((first * second).sum(), x, create_graph=True)
    return gradient.square().sum()


@pullback.samples_for(Split)
def split_samples() -> Iterator[pullback.Sample]:
    """Samples for a class that has none of its own."""
    yield pullback.Sample((torch.rand(2, dtype=torch.float64),), vary=())


def proved() -> bool:
    """What the checker says of them."""
    pullback.assert_correct(Split)
    report: pullback.Report = pullback.check(Cube, (torch.rand(2),), reference=Cube.reference, seed=3)
    severities: set[pullback.Severity] = {finding.severity for finding in report.findings}
    return report.ok and not severities
