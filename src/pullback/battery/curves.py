"""forward along a line: the arguments moved by t times a direction, and the slopes of its outputs at t = 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pullback.battery.case import Case, Inputs, Output, with_tensors
from pullback.battery.leaves import is_float
from pullback.battery.numerics import EPS, Curve, Slopes, flat, is_staircase, signs, size_of, slopes, terms_with, unflat
from pullback.battery.raised import ForwardRaised
from pullback.battery.subject import Subject
from pullback.battery.tolerances import KINK, STEPS

CurveMaker = Callable[[str, torch.Tensor], Slopes]

_SMOOTHNESS_DIRECTIONS = 3


class Lines:
    """<cotangent, output> for each differentiable output, along lines through a point.

    Args:
        subject: Whose.
        point: Where.
        oracle: What is called; forward itself if None.
        positions: Those of the differentiable outputs.
        cotangents: One for each of them.

    Attributes:
        sizes: Those of the leaves, by name: steps are relative to them.
        magnitude: For each output the sum of the absolute terms, which bounds its rounding.

    Raises:
        ForwardRaised: If forward refuses the point.
    """

    def __init__(
        self,
        subject: Subject,
        point: Case,
        oracle: Callable[..., Any] | None,
        positions: tuple[int, ...],
        cotangents: tuple[torch.Tensor, ...],
    ) -> None:
        self._subject, self._point, self._oracle, self._positions = subject, point, oracle, positions
        self._products = [_terms_with(cotangent) for cotangent in cotangents]
        inputs = subject.fresh(point, requires=())
        self.sizes = {leaf.name: size_of(leaf.tensor) for leaf in inputs.leaves}
        parts = self._terms(inputs)
        self._origin = torch.stack([part.sum() for part in parts])
        self.magnitude = torch.stack([part.abs().sum() for part in parts])

    def curve(self, directions: Mapping[str, torch.Tensor]) -> Curve:
        """t -> the inner products where some leaves are moved by t times a direction each."""

        def move(name: str, tensor: torch.Tensor, t: float) -> torch.Tensor:
            return tensor + unflat(t * directions[name], tensor) if name in directions else tensor

        def curve(t: float) -> torch.Tensor:
            if t == 0.0:
                return self._origin
            there = self._subject.fresh(self._point, requires=(), change=lambda name, tensor: move(name, tensor, t))
            return torch.stack([part.sum() for part in self._terms(there)])

        return curve

    def _terms(self, inputs: Inputs) -> list[torch.Tensor]:
        outputs = self._subject.call(inputs, self._oracle)
        return [terms(outputs[place].tensor) for place, terms in zip(self._positions, self._products, strict=True)]


def curve_maker(
    subject: Subject,
    point: Case,
    oracle: Callable[..., Any] | None,
    positions: tuple[int, ...],
    cotangents: tuple[torch.Tensor, ...],
) -> CurveMaker:
    """(leaf, direction) -> the slopes of <cotangent, output> for each differentiable output."""
    lines = Lines(subject, point, oracle, positions, cotangents)
    coarse: dict[str, bool] = {}

    def slopes_along(name: str, direction: torch.Tensor) -> Slopes:
        curve, size = lines.curve({name: direction}), lines.sizes[name]
        if name not in coarse:
            in_lower = oracle is None and not point.exact
            coarse[name] = in_lower or is_staircase(curve, size, lines.magnitude)
        return slopes(curve, size, lines.magnitude, staircase=coarse[name])

    return slopes_along


def shifted(
    subject: Subject, point: Case, name: str, direction: torch.Tensor, t: float, *, track: bool = False
) -> Inputs:
    """The case's arguments with one leaf moved by t times `direction`."""

    def move(leaf: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + unflat(t * direction, tensor) if leaf == name else tensor

    return subject.fresh(point, requires=None if track else (), change=move)


def along(
    subject: Subject,
    point: Case,
    direction: Mapping[str, torch.Tensor],
    positions: tuple[int, ...],
    cotangents: tuple[torch.Tensor, ...],
    size: float,
) -> tuple[float, float] | None:
    """The derivative of <cotangents, outputs> along a direction over several leaves at once, and its error bar.

    None where it isn't smooth in steps relative to `size`, and where forward refuses.
    """
    terms_at = _terms_at(subject, point, direction, positions, cotangents)
    try:
        magnitude = terms_at(0.0).abs().sum()
        found = slopes(lambda t: terms_at(t).sum(0, True), size, magnitude.reshape(1))
    except ForwardRaised:
        return None
    if not bool(found.smooth.all()) or not bool(found.errors.isfinite().all()):
        return None
    return float(found.values[0]), float(found.errors[0])


def confirms(
    subject: Subject,
    point: Case,
    direction: Mapping[str, torch.Tensor],
    positions: tuple[int, ...],
    cotangents: tuple[torch.Tensor, ...],
    size: float,
    slope: float,
    allowed: float,
) -> bool:
    """Whether a single difference along the direction agrees with `slope`, to within `allowed`.

    Where it does, the slope is right: that costs two calls, where `along` takes eight. Where not, nothing is known.
    """
    terms_at = _terms_at(subject, point, direction, positions, cotangents)
    h = STEPS[1] * size
    try:
        right, left = terms_at(h), terms_at(-h)
    except ForwardRaised:
        return False
    rounding = 4 * EPS * float(right.abs().sum() + left.abs().sum()) / h
    return abs(float((right.sum() - left.sum()) / (2 * h)) - slope) + rounding <= allowed


def _terms_at(
    subject: Subject,
    point: Case,
    direction: Mapping[str, torch.Tensor],
    positions: tuple[int, ...],
    cotangents: tuple[torch.Tensor, ...],
) -> Curve:
    """The terms of <cotangents, outputs>, with the leaves moved by t times the direction."""
    oracle = subject.surrogate or subject.reference
    products = [_terms_with(cotangent) for cotangent in cotangents]

    def terms_at(t: float) -> torch.Tensor:
        def move(name: str, tensor: torch.Tensor) -> torch.Tensor:
            return tensor + unflat(t * direction[name], tensor) if name in direction else tensor

        outputs = _selected(subject.call(subject.fresh(point, requires=(), change=move), oracle), positions)
        return torch.cat([terms(output) for output, terms in zip(outputs, products, strict=True)])

    return terms_at


def _terms_with(cotangent: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The terms of <cotangent, output>; NaN for an output of another size, so that there is no slope where it changes.

    The size of ``x[x > 0]`` depends on values.
    """
    terms, undefined = terms_with(cotangent), torch.full_like(flat(cotangent), float("nan"))

    def terms_of(output: torch.Tensor) -> torch.Tensor:
        return terms(output) if output.numel() == cotangent.numel() else undefined

    return terms_of


def _selected(outputs: Sequence[Output], positions: tuple[int, ...]) -> list[torch.Tensor]:
    return [outputs[position].tensor for position in positions]


def is_smooth(subject: Subject, point: Case, name: str) -> bool:
    """Whether the function has a derivative by one leaf at `point`, as far as random directions tell."""
    inputs = subject.fresh(point)
    outputs = subject.call(inputs)
    positions = tuple(place for place, output in enumerate(outputs) if output.tensor.requires_grad)
    cotangents = tuple(subject.cotangent(outputs[position].tensor) for position in positions)
    slopes_along = curve_maker(subject, point, None, positions, cotangents)
    count = flat(inputs.leaf(name).tensor).numel()
    known = [
        (direction, slopes_along(name, direction)) for direction in (signs(count, subject.random) for _ in range(2))
    ]
    return all(bool(found.smooth.all()) for _, found in known) and additive(subject, name, known, slopes_along)


def additive(
    subject: Subject, name: str, known: Sequence[tuple[torch.Tensor, Slopes]], slopes_along: CurveMaker
) -> bool:
    """Whether the slope along a random combination of directions is that combination of their slopes.

    At a tie, say of a median, every line may be smooth, and yet there is no derivative.
    """
    factors = torch.rand(len(known), generator=subject.random, dtype=torch.float64) + 0.5
    factors *= signs(len(known), subject.random)
    combined = torch.stack([factor * direction for factor, (direction, _) in zip(factors, known, strict=True)]).sum(0)
    there = slopes_along(name, combined)
    terms = torch.stack([factor * found.values for factor, (_, found) in zip(factors, known, strict=True)])
    bars = torch.stack([factor.abs() * found.errors for factor, (_, found) in zip(factors, known, strict=True)])
    allowed = KINK * (terms.norm(dim=0) + there.values.abs()) + there.errors + bars.sum(0)
    return bool((there.smooth & ((terms.sum(0) - there.values).abs() <= allowed)).all())


def moved_off(subject: Subject, case: Case) -> Case:
    """The case with every element of its varying tensors moved by 2 to 10 percent of their size."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if not is_float(tensor) or id(tensor) not in wanted:
            return tensor
        count = flat(tensor).numel()
        steps = signs(count, subject.random) * (torch.rand(count, generator=subject.random, dtype=torch.float64) + 0.25)
        return tensor.detach() + unflat(0.08 * size_of(tensor) * steps, tensor)

    wanted = {id(tensor) for name, _, tensor in subject.named_tensors(case.sample) if name in case.varying}
    return Case(case.index, with_tensors(case.sample, move), case.varying, case.exact, moved=True)
