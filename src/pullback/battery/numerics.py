"""Derivatives by finite differences in float64, each with an error bar, and told apart from kinks.

For a smooth f the central differences C(h) and C(2h) give Richardson's R = (4 C(h) - C(2h)) / 3, whose error is of
order h⁴; |R - C(h)| bounds it generously, and the higher differences show how coarsely f itself is rounded. The
one-sided derivatives from 0, ±h, ±2h agree to order h² where f is smooth; where they don't, there is a kink within the
step, and a smaller step may be clear of it. A forward that computes in a lower dtype is a staircase for small steps,
and only the largest is of use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pullback.battery.tolerances import ERROR_BAR, KINK, STEPS

Curve = Callable[[float], torch.Tensor]
"""t -> a vector in float64: several functions of one variable at once."""

EPS = torch.finfo(torch.float64).eps
_COARSE_STEPS = (STEPS[-1], STEPS[-1] / 10)
"""The steps for what rounds to float32: the second where a kink lies within the first."""

_COARSE_EPS = torch.finfo(torch.float32).eps
_GOOD = 1e-7
_RESOLVED = 1e-9
_HOPELESS = 1e-2


@dataclass(frozen=True)
class Slopes:
    """The derivatives at 0 of a `Curve`'s components.

    Attributes:
        values: The derivatives.
        errors: An error bar for each.
        smooth: Whether each is one: False at a kink, at a jump, and where values aren't finite.
    """

    values: torch.Tensor
    errors: torch.Tensor
    smooth: torch.Tensor


def slopes(curve: Curve, size: float, magnitude: torch.Tensor, *, staircase: bool = False) -> Slopes:
    """Differentiate `curve` at 0.

    Args:
        curve: What to differentiate.
        size: The scale on which the curve varies; steps are relative to it.
        magnitude: For each component the sum of the absolute terms in it, which bounds its rounding.
        staircase: Whether it is known that only large steps are of use, from `is_staircase`.

    Returns:
        For each component the result of the step with the smallest error bar.
    """
    origin = curve(0.0)
    (first, *others), eps, enough = (_COARSE_STEPS, _COARSE_EPS, math.inf) if staircase else (STEPS, EPS, _GOOD)
    best = _at_step(curve, origin, first * size, magnitude, eps=eps)
    for step in others:
        good = best.errors <= enough * (best.values.abs() + magnitude)
        if bool((best.smooth & good).all()):
            break
        best = _better(best, _at_step(curve, origin, step * size, magnitude, eps=eps))
    hopeless = best.errors > _HOPELESS * (best.values.abs() + magnitude / size)
    smooth = best.smooth & ~hopeless
    if not staircase:
        smooth &= _confirmed(curve, best, min(STEPS) * size, magnitude)
    return Slopes(best.values, best.errors * ERROR_BAR, smooth)


def sharp_slopes(curve: Curve, size: float, magnitude: torch.Tensor) -> Slopes:
    """Differentiate a smooth `curve` at 0 to some eleven digits, to tell float64 from what was rounded on the way.

    The error bar is the difference of two results of order h⁴, so it is far tighter than that of `slopes`.
    """
    h = STEPS[0] * size
    near, twice, four = ((curve(k * h) - curve(-k * h)) / (2 * k * h) for k in (1, 2, 4))
    values, coarser = (4 * near - twice) / 3, (4 * twice - four) / 3
    errors = (values - coarser).abs() + 4 * EPS * magnitude / h
    return Slopes(values, errors, values.isfinite())


def certain_slopes(curve: Curve, size: float, magnitude: torch.Tensor) -> Slopes:
    """Differentiate `curve` at 0 as `sharp_slopes` does, and see whether it is smooth there; in eight calls.

    The bar is 0 for a component that never changes.
    """
    h, origin = STEPS[0] * size, curve(0.0)
    pairs = [(curve(k * h), curve(-k * h)) for k in (1, 2, 4)]
    near, twice, four = ((right - left) / (2 * k * h) for k, (right, left) in zip((1, 2, 4), pairs, strict=True))
    values, coarser = (4 * near - twice) / 3, (4 * twice - four) / 3
    still = torch.stack([(value == origin) for pair in pairs for value in pair]).all(0)
    errors = torch.where(still, 0.0, (values - coarser).abs() + 4 * EPS * magnitude / h)
    (right, left), (far_right, far_left) = pairs[:2]
    jump = ((-3 * origin + 4 * right - far_right) - (3 * origin - 4 * left + far_left)).abs() / (2 * h)
    smooth = (jump <= KINK * values.abs() + 32 * EPS * magnitude / h) & values.isfinite() & jump.isfinite()
    found = Slopes(values, errors, smooth)
    return Slopes(values, errors, smooth & _confirmed(curve, found, min(STEPS) * size, magnitude))


def single_difference(curve: Curve, size: float, magnitude: torch.Tensor) -> Slopes:
    """Differentiate `curve` at 0 by one central difference, which costs two calls and knows nothing of smoothness."""
    h = STEPS[1] * size
    values = (curve(h) - curve(-h)) / (2 * h)
    return Slopes(values, 4 * EPS * magnitude / h, values.isfinite())


def _confirmed(curve: Curve, found: Slopes, h: float, magnitude: torch.Tensor) -> torch.Tensor:
    """Whether the smallest step sees these slopes too: many steps of a step function look like a slope."""
    fine = (curve(h) - curve(-h)) / (2 * h)
    allowed = KINK * torch.maximum(fine.abs(), found.values.abs()) + ERROR_BAR * found.errors
    return (fine - found.values).abs() <= allowed + 8 * EPS * magnitude / h


def is_staircase(curve: Curve, size: float, magnitude: torch.Tensor) -> bool:
    """Whether `curve` has steps as narrow as those of float32: it rounds, and is no step function by intent.

    It stands still, or jumps, within a step that float64 resolves; and over a step of some thirty roundings of float32
    it rises as it does over a large one.
    """
    origin = curve(0.0)
    rough = _at_step(curve, origin, STEPS[-1] * size, magnitude).values
    h = _RESOLVED * size
    change = torch.maximum((curve(h) - origin).abs(), (origin - curve(-h)).abs())
    still = (change == 0) & (rough.abs() * h > 100 * EPS * magnitude)
    jumps = change > 100 * h * (rough.abs() + magnitude / size)
    if not bool((still | jumps).any()):
        return False
    h = min(STEPS) * size
    fine = (curve(h) - curve(-h)) / (2 * h)
    return bool(((fine - rough).abs() <= 0.2 * rough.abs() + 4 * _COARSE_EPS * magnitude / h).all())


def _at_step(curve: Curve, origin: torch.Tensor, h: float, magnitude: torch.Tensor, *, eps: float = EPS) -> Slopes:
    right, left, far_right, far_left = curve(h), curve(-h), curve(2 * h), curve(-2 * h)
    near, far = (right - left) / (2 * h), (far_right - far_left) / (4 * h)
    values = (4 * near - far) / 3
    rounding = 4 * eps * magnitude / h
    third = (far_right - 3 * right + 3 * origin - left).abs() / (4 * h)
    fourth = (far_right - 4 * right + 6 * origin - 4 * left + far_left).abs() / (4 * h)
    errors = torch.stack([(values - near).abs(), third, fourth]).amax(0) + rounding
    forward = (-3 * origin + 4 * right - far_right) / (2 * h)
    backward = (3 * origin - 4 * left + far_left) / (2 * h)
    jump = (forward - backward).abs()
    smooth = jump <= KINK * torch.maximum(forward.abs(), backward.abs()) + 8 * rounding
    return Slopes(values, errors, smooth & values.isfinite() & jump.isfinite())


def _better(old: Slopes, new: Slopes) -> Slopes:
    """Component by component: what is smooth, and among that the smaller error."""
    wins = (new.smooth & ~old.smooth) | ((new.smooth == old.smooth) & (new.errors < old.errors))
    return Slopes(
        torch.where(wins, new.values, old.values),
        torch.where(wins, new.errors, old.errors),
        torch.where(wins, new.smooth, old.smooth),
    )


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The real inner product in float64: for complex tensors that of real and imaginary parts, as autograd has it."""
    return (flat(a) * flat(b)).sum()


def terms(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The terms of that product; where b is 0 they are 0, even where a is NaN."""
    weights = flat(b)
    return torch.where(weights == 0, 0.0, flat(a) * weights)


def terms_with(b: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """a -> ``terms(a, b)``, for a b that meets many."""
    weights = flat(b)
    zero = weights == 0
    if bool(zero.any()):
        return lambda a: torch.where(zero, 0.0, flat(a) * weights)
    return lambda a: flat(a) * weights


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a float64 vector, complex numbers as pairs."""
    if tensor.dtype is torch.float64 and tensor.layout is torch.strided:  # as nearly all are
        return tensor.detach().reshape(-1)
    tensor = tensor.detach().resolve_conj()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128)).reshape(-1)
    return tensor.to(torch.float64).reshape(-1)


def unflat(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The reverse of `flat`: a tensor of the shape and dtype of `like`."""
    if like.is_complex():
        return torch.view_as_complex(vector.reshape(*like.shape, 2)).to(like.dtype)
    return vector.reshape(like.shape).to(like.dtype)


def size_of(tensor: torch.Tensor) -> float:
    """The root mean square of a tensor's elements; 1 for zeros and for empty tensors."""
    elements = flat(tensor)
    square = float(elements.dot(elements))
    if not math.isfinite(square):
        elements = elements[elements.isfinite()]
        square = float((elements**2).sum())
    return (square / max(elements.numel(), 1)) ** 0.5 or 1.0


def normals(count: int, generator: torch.Generator) -> torch.Tensor:
    """A vector of random numbers, no two alike: it breaks ties that signs would leave."""
    return torch.randn((count,), generator=generator, dtype=torch.float64)


def signs(count: int, generator: torch.Generator) -> torch.Tensor:
    """A vector of random signs: in a sum over it every element counts alike."""
    return torch.randint(0, 2, (count,), generator=generator).to(torch.float64) * 2 - 1


def dense(count: int, generator: torch.Generator) -> torch.Tensor:
    """A vector along which no element is near 0, and no two are alike."""
    return signs(count, generator) * (torch.rand(count, generator=generator, dtype=torch.float64) + 0.5)


def half(count: int, generator: torch.Generator) -> torch.Tensor:
    """The same, in which about half of the elements are 0."""
    return dense(count, generator) * (signs(count, generator) > 0)
