"""Gradients that aren't those of the value, on purpose: straight through, reversed, scaled, clipped. They keep nothing.

With g the cotangent of the result, the gradients that go on are

    straight_through(v, s)     value v, gradient g to s       straight_through_round(x)   value round(x), gradient g
    reverse_gradient(x, λ)     value x, gradient −λ g         scale_gradient(x, λ)        value x, gradient λ g
    clip_gradient(x, …)        value x, gradient g min(1, c / ‖g‖), or min(max(g, −c), c)

The first four are derivatives of another function than the value, which each class names as its surrogate: s, x, −λ x
and λ x. So they can be proved, and higher derivatives are the surrogate's. What clips isn't linear in g, so it is no
derivative of anything: higher derivatives differentiate the clipping itself, and are clipped where they go back through
the tensor once more; forward mode raises.

Source: Y. Bengio, N. Léonard and A. Courville, Estimating or Propagating Gradients Through Stochastic Neurons for
Conditional Computation, 2013, arXiv:1308.3432, for straight through; Y. Ganin et al., Domain-Adversarial Training of
Neural Networks, JMLR 17, 2016, arXiv:1505.07818, for reversal; R. Pascanu, T. Mikolov and Y. Bengio, On the Difficulty
of Training Recurrent Neural Networks, 2013, arXiv:1211.5063, for the norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.context import Context
from pullback.errors import OperationError
from pullback.function import Function
from pullback.ops.arguments import check_tensors, is_number
from pullback.ops.samples import leaf


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """Take the value of one tensor and the gradient of another.

    Args:
        value: What comes out, of any shape. It gets no gradient.
        surrogate: What gets the gradient, of value's shape and dtype.

    Returns:
        A view of value, for ``surrogate + (value - surrogate).detach()`` without its rounding.

    Raises:
        OperationError: PB130, the shapes or dtypes differ.
    """
    check_tensors("straight_through", value=value, surrogate=surrogate)
    result: Tensor = StraightThrough.apply(value, surrogate)
    return result


def straight_through_round(input: Tensor) -> Tensor:
    """Round to integers, as ``torch.round`` does, with the gradient of the input itself.

    Args:
        input: Any shape.

    Returns:
        ``input.round()``.
    """
    check_tensors("straight_through_round", input=input)
    result: Tensor = StraightThroughRound.apply(input)
    return result


def reverse_gradient(input: Tensor, scale: float = 1.0) -> Tensor:
    """Return `input`, whose gradient is multiplied by −scale.

    Args:
        input: Any shape.
        scale: λ, a number.

    Returns:
        A view of input.

    Raises:
        OperationError: PB130, scale isn't a finite number.
    """
    _check_scale("reverse_gradient", input, scale)
    result: Tensor = ScaleGradient.apply(input, -float(scale))
    return result


def scale_gradient(input: Tensor, scale: float) -> Tensor:
    """Return `input`, whose gradient is multiplied by scale.

    Args:
        input: Any shape.
        scale: λ, a number; 0 lets no gradient through, but zeros.

    Returns:
        A view of input.

    Raises:
        OperationError: PB130, scale isn't a finite number.
    """
    _check_scale("scale_gradient", input, scale)
    result: Tensor = ScaleGradient.apply(input, float(scale))
    return result


def clip_gradient(input: Tensor, max_norm: float | None = None, *, max_value: float | None = None) -> Tensor:
    """Return `input`, whose gradient is clipped on its way back; exactly one limit is given.

    Args:
        input: Any shape.
        max_norm: The largest Euclidean norm that the gradient of this tensor as a whole may have; a longer one keeps
            its direction. Under ``torch.func.vmap`` that is the gradient of one example.
        max_value: The largest absolute value that one element of it may have.

    Returns:
        A view of input. Under max_norm, infinity or NaN in the gradient makes all of it NaN.

    Raises:
        OperationError: PB130, both limits or none are given, the limit isn't a number from 0 on, or max_value is given
            for complex numbers.
    """
    check_tensors("clip_gradient", input=input)
    limit = max_norm if max_value is None else max_value
    if limit is None or (max_norm is not None and max_value is not None):
        raise OperationError(
            "PB130",
            "clip_gradient: one limit is needed.",
            expected="either max_norm or max_value",
            got="neither" if limit is None else f"max_norm={max_norm!r} and max_value={max_value!r}",
            remedy="Clip twice, one call in the other, to have both.",
        )
    if not is_number(limit, 0):
        raise OperationError(
            "PB130",
            f"clip_gradient: {'max_norm' if max_value is None else 'max_value'} is no limit.",
            expected="a number from 0 on",
            got=repr(limit),
            remedy="Give the largest norm, or absolute value, that the gradient may have, as a Python number.",
        )
    if max_value is not None and input.is_complex():
        raise OperationError(
            "PB130",
            "clip_gradient: the elements of a complex gradient have no order, so max_value clips none.",
            expected="input of real numbers",
            got=f"input of {input.dtype}",
            remedy="Limit the norm with max_norm, or clip torch.view_as_real(input).",
        )
    result: Tensor = (ClipGradientNorm if max_value is None else ClipGradientValue).apply(input, float(limit))
    return result


class StraightThrough(Function):
    """y = value, with the gradient of surrogate."""

    nondiff_argnames = ("value",)

    @staticmethod
    def forward(ctx: Context, value: Tensor, surrogate: Tensor) -> Tensor:
        _check_alike(value, surrogate)
        return value.view_as(value)

    # of the surrogate s, dy = ds:   gs = g
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[None, Tensor]:
        return None, g

    @staticmethod
    def surrogate(value: Tensor, surrogate: Tensor) -> Tensor:
        return surrogate

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, Tensor]]:
        """Draw a hard choice, and what it was made from."""
        soft = leaf(3, 4)
        yield (soft.detach() > 0).double(), soft


class StraightThroughRound(Function):
    """y = round(x), with the gradient of x."""

    @staticmethod
    def forward(ctx: Context, input: Tensor) -> Tensor:
        return input.round()

    # of the surrogate x, dy = dx:   gx = g
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> Tensor:
        return g

    @staticmethod
    def surrogate(input: Tensor) -> Tensor:
        return input

    @staticmethod
    def samples() -> Iterator[tuple[Tensor]]:
        """Draw numbers around 0."""
        yield (leaf(3, 4),)


class ScaleGradient(Function):
    """y = x, with the gradient of scale · x."""

    @staticmethod
    def forward(ctx: Context, input: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return input.view_as(input)

    # of the surrogate λ x, dy = λ dx:   gx = λ g
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.scale, None

    @staticmethod
    def surrogate(input: Tensor, scale: float) -> Tensor:
        return input * scale

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, float]]:
        """Draw one that is reversed, and one that is made smaller."""
        yield leaf(3, 4), -1.0
        yield leaf(5), 0.25


class ClipGradientNorm(Function):
    """y = x; the gradient is scaled down to a norm of max_norm."""

    nonlinear_backward = True

    @staticmethod
    def forward(ctx: Context, input: Tensor, max_norm: float) -> Tensor:
        ctx.max_norm = max_norm
        return input.view_as(input)

    # gx = g min(1, c / ‖g‖), no vector-Jacobian product. ‖g‖ = m ‖g / m‖ for any m > 0: with m the largest element no
    # square is lost, neither to infinity nor to 0, in float16 or for a gradient that has exploded. m drops out of the
    # formula, so nothing is differentiated by it. Where g is short, no derivative divides by its norm, which may be 0.
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        if g.numel() == 0:
            return g, None
        precise = torch.float64 if g.dtype in (torch.float64, torch.complex128) else torch.float32
        largest = torch.linalg.vector_norm(g.detach(), math.inf).to(precise).clamp(min=torch.finfo(precise).tiny)
        norm = torch.linalg.vector_norm((g if g.is_complex() else g.to(precise)) / largest)
        limit = ctx.max_norm / largest
        longer = ~(norm <= limit)  # or NaN, which then is in all of the gradient
        factor = torch.where(longer, limit / torch.where(longer, norm, 1), 1)
        return (g * factor).to(g.dtype), None

    @staticmethod
    def expected_backward(
        inputs: tuple[Tensor, float], outputs: tuple[Tensor], grad_outputs: tuple[Tensor]
    ) -> tuple[Tensor, None]:
        """Say the same in other words: a gradient within the limit goes on, another one becomes as long as it."""
        _, max_norm = inputs
        (g,) = grad_outputs
        norm = g.abs().square().sum().sqrt()
        return torch.where(norm > max_norm, g / norm * max_norm, g), None

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, float]]:
        """Draw a limit that random cotangents exceed, and one that they don't."""
        yield leaf(3, 4), 0.5
        yield leaf(3, 4), 100.0


class ClipGradientValue(Function):
    """y = x; each element of the gradient is clipped to [−max_value, max_value]."""

    nonlinear_backward = True

    @staticmethod
    def forward(ctx: Context, input: Tensor, max_value: float) -> Tensor:
        ctx.max_value = max_value
        return input.view_as(input)

    # gx = min(max(g, −c), c), no vector-Jacobian product
    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, None]:
        return g.clamp(-ctx.max_value, ctx.max_value), None

    @staticmethod
    def expected_backward(
        inputs: tuple[Tensor, float], outputs: tuple[Tensor], grad_outputs: tuple[Tensor]
    ) -> tuple[Tensor, None]:
        """Say the same in other words: an element keeps its sign, and is no larger than the limit."""
        _, limit = inputs
        (g,) = grad_outputs
        return torch.where(g.abs() > limit, limit * g.sign(), g), None

    @staticmethod
    def samples() -> Iterator[tuple[Tensor, float]]:
        """Draw a limit that random cotangents do exceed."""
        yield leaf(3, 4), 0.5


def _check_scale(name: str, input: Tensor, scale: float) -> None:
    check_tensors(name, input=input)
    if not is_number(scale) or scale in (-math.inf, math.inf):
        raise OperationError(
            "PB130",
            f"{name}: scale is no factor.",
            expected="a finite number",
            got=repr(scale),
            remedy="Give a Python number; a factor that is trained belongs into the formula, x * scale.",
        )


def _check_alike(value: Tensor, surrogate: Tensor) -> None:
    if value.shape != surrogate.shape or value.dtype != surrogate.dtype:
        raise OperationError(
            "PB130",
            "straight_through: value and surrogate differ in shape or dtype.",
            expected="one shape and one dtype for both",
            got=f"value {tuple(value.shape)} of {value.dtype}, surrogate {tuple(surrogate.shape)} of {surrogate.dtype}",
            remedy="Convert the value first: value.to(surrogate.dtype).expand_as(surrogate).",
        )
