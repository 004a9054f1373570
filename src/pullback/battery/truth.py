"""The right gradients of a case: from the surrogate or the reference by autograd, else from finite differences.

The truth is held for one cotangent of each differentiable output, output by output. A case on a kink, where no
derivative exists, is moved a little; all probes that need a smooth point take `Truth.case`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pullback.battery.compare import Mismatch, compare, natural_scale, number
from pullback.battery.curves import additive, curve_maker, moved_off
from pullback.battery.leaves import is_float
from pullback.battery.numerics import Slopes, flat, normals, signs
from pullback.battery.subject import Case, ForwardRaised, Leaf, Output, Subject, with_tensors
from pullback.battery.tolerances import (
    DIFFERENCES,
    DIRECTIONS,
    EVERY_ELEMENT_UP_TO,
    SMALLEST_SHARE,
    for_gradients,
)

_MOVES = 3
_SMOOTHNESS_DIRECTIONS = 3


@dataclass(frozen=True)
class Projection:
    """The derivative along one direction of one argument, for each differentiable output.

    Attributes:
        direction: A vector over the argument's elements.
        element: The element, where the direction is a single one.
        slopes: The derivatives.
    """

    direction: torch.Tensor
    element: int | None
    slopes: Slopes


@dataclass(frozen=True, eq=False)
class Truth:
    """The right gradients at one point.

    Attributes:
        subject: Whose.
        case: Where: the sample, or the point that it was moved to.
        outputs: The positions of the differentiable outputs among all.
        cotangents: One for each of them.
        source: ``surrogate``, ``reference`` or ``finite differences``.
        scales: Leaf -> the size of its gradients where nothing cancels.
        exact: (leaf, position in `outputs`) -> the gradient, where autograd gave it.
        projections: Leaf -> derivatives along directions, where finite differences gave them.
    """

    subject: Subject
    case: Case
    outputs: tuple[int, ...]
    cotangents: tuple[torch.Tensor, ...]
    source: str
    scales: dict[str, float]
    exact: dict[tuple[str, int], torch.Tensor | None]
    projections: dict[str, tuple[Projection, ...]]

    def judge(self, leaf: Leaf, output: int, gradient: torch.Tensor | None) -> Mismatch | None:
        """How the gradient of `leaf` for the output at a position differs from the truth; None where it is right."""
        if self.exact:
            dtype = leaf.tensor.dtype
            truth = self.exact[leaf.name, output]
            got = gradient.detach().to(_double(dtype)) if gradient is not None else None
            return compare(truth, got, for_gradients(dtype), scale=self.scales[leaf.name])
        for projection in self.projections[leaf.name]:
            mismatch = self._along(leaf, output, gradient, projection)
            if mismatch is not None:
                return mismatch
        return None

    def is_zero(self, leaf_name: str, output: int) -> bool:
        """Whether the true gradient is 0 within its error."""
        if self.exact:
            truth = self.exact[leaf_name, output]
            return truth is None or not bool(flat(truth).any())
        return all(
            abs(float(p.slopes.values[output])) <= float(p.slopes.errors[output]) for p in self.projections[leaf_name]
        )

    def _along(self, leaf: Leaf, output: int, gradient: torch.Tensor | None, along: Projection) -> Mismatch | None:
        elements = flat(gradient) if gradient is not None else torch.zeros_like(along.direction)
        excess, true, got = _excess(elements, along, output)
        if excess <= 0:
            return None
        if along.element is not None:
            place = along.element
        else:
            place, true, got = self._culprit(leaf, output, elements, along)
        place = place // 2 if leaf.tensor.is_complex() else place
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), leaf.tensor.shape))
        at = f" at {list(index)}" if index else ""
        came = "None" if gradient is None else f"{number(got)}{at}"
        return Mismatch(f"{number(true)}{at}", came, abs(true - got), index)

    def _culprit(self, leaf: Leaf, output: int, elements: torch.Tensor, along: Projection) -> tuple[int, float, float]:
        """Halve the direction until one wrong element is left."""
        support = along.direction.nonzero().reshape(-1)
        curve_for = curve_maker(self.subject, self.case, oracle_of(self.subject), self.outputs, self.cotangents)
        while support.numel() > 1:
            half = torch.zeros_like(along.direction)
            half[support[: support.numel() // 2]] = along.direction[support[: support.numel() // 2]]
            found = Projection(half, None, curve_for(leaf.name, half))
            wrong = _excess(elements, found, output)[0] > 0
            support = support[: support.numel() // 2] if wrong else support[support.numel() // 2 :]
        place = int(support[0])
        single = torch.zeros_like(along.direction)
        single[place] = 1.0
        true = float(curve_for(leaf.name, single).values[output])
        return place, true, float(elements[place])


def truth_of(subject: Subject, case: Case) -> Truth | str:
    """The truth for a case, or why there is none. It is found once for each case."""
    key = ("truth", case.index)
    if key not in subject.cache:
        with subject.drawing_for(f"truth of sample {case.index}"):
            subject.cache[key] = _find(subject, case)
    found: Truth | str = subject.cache[key]
    return found


def oracle_of(subject: Subject) -> Callable[..., Any] | None:
    """The function whose derivative backward should implement; None for forward itself."""
    return subject.surrogate or subject.reference


def differentiable(outputs: Sequence[Output]) -> tuple[int, ...]:
    """The positions of the outputs that require grad."""
    return tuple(position for position, output in enumerate(outputs) if output.tensor.requires_grad)


def _find(subject: Subject, case: Case) -> Truth | str:
    oracle = oracle_of(subject)
    if not case.exact and oracle is None:
        return f"{case.label}: float64 is refused and there is no reference"
    outputs = subject.call(subject.fresh(case))
    positions = differentiable(outputs)
    if not positions or not case.varying:
        return f"{case.label}: no output requires grad"
    cotangents = tuple(subject.cotangent(outputs[position].tensor) for position in positions)
    double = Case(case.index, with_tensors(case.sample, _doubled), case.varying, moved=case.moved)
    for attempt in range(_MOVES + 1):
        point = double if attempt == 0 else moved_off(subject, double)
        truth = _at(subject, case, point, oracle, positions, cotangents)
        if truth is not None:
            return truth
    return f"{case.label}: forward isn't smooth there, nor at {_MOVES} points nearby"


def _at(
    subject: Subject,
    case: Case,
    point: Case,
    oracle: Callable[..., Any] | None,
    positions: tuple[int, ...],
    cotangents: tuple[torch.Tensor, ...],
) -> Truth | None:
    """The truth at `point`; None where it isn't smooth."""
    try:
        exact = _by_autograd(subject, point, oracle, positions, cotangents)
        curve_for = curve_maker(subject, point, oracle, positions, cotangents)
        projections: dict[str, tuple[Projection, ...]] = {}
        for leaf in subject.fresh(point).varying:
            found = []
            for element, direction in _directions(subject, leaf, few=bool(exact)):
                found.append(Projection(direction, element, curve_for(leaf.name, direction)))
                if not bool(found[-1].slopes.smooth.all()):
                    return None
            known = [(projection.direction, projection.slopes) for projection in found]
            if known and not additive(subject, leaf.name, known, curve_for):
                return None
            projections[leaf.name] = tuple(found)
        where = point if case.exact else _in_dtype_of(point, case)
        if where.moved:
            subject.call(subject.fresh(where))
    except ForwardRaised:
        if point.moved:
            return None
        raise
    source = "surrogate" if subject.surrogate else "reference" if exact else "finite differences"
    start = subject.call(subject.fresh(point, requires=()), oracle)
    tensors = [start[position].tensor for position in positions]
    scales = {leaf.name: natural_scale(tensors, cotangents, leaf.tensor) for leaf in subject.fresh(point).varying}
    return Truth(subject, where, positions, cotangents, source, scales, exact, projections)


def _by_autograd(
    subject: Subject,
    point: Case,
    oracle: Callable[..., Any] | None,
    positions: tuple[int, ...],
    cotangents: tuple[torch.Tensor, ...],
) -> dict[tuple[str, int], torch.Tensor | None]:
    """The oracle's gradients; empty without an oracle, or where it is no differentiable PyTorch."""
    exact: dict[tuple[str, int], torch.Tensor | None] = {}
    for place, (position, cotangent) in enumerate(zip(positions, cotangents, strict=True)):
        if oracle is None:
            return {}
        inputs = subject.fresh(point)
        outputs = subject.call(inputs, oracle)
        if position >= len(outputs) or outputs[position].tensor.shape != cotangent.shape:
            return {}
        if not any(output.tensor.requires_grad for output in outputs):
            return {}
        chosen, high = outputs[position], cotangent.to(outputs[position].tensor.dtype)
        for leaf, gradient in zip(inputs.varying, subject.gradients([chosen], [high], inputs.varying), strict=True):
            exact[leaf.name, place] = gradient
    return exact


def _directions(subject: Subject, leaf: Leaf, *, few: bool) -> list[tuple[int | None, torch.Tensor]]:
    """Each element on its own for small arguments, else dense random signs."""
    count = flat(leaf.tensor).numel()
    if count == 0:
        return []
    if few:
        return [(None, normals(count, subject.random)) for _ in range(_SMOOTHNESS_DIRECTIONS)]
    if count > EVERY_ELEMENT_UP_TO:
        return [(None, signs(count, subject.random)) for _ in range(DIRECTIONS)]
    return [(element, direction) for element, direction in enumerate(torch.eye(count, dtype=torch.float64))]


def _excess(elements: torch.Tensor, along: Projection, output: int) -> tuple[float, float, float]:
    """By how much the projections differ beyond what is allowed; the true one; the one that came."""
    true, bar = float(along.slopes.values[output]), float(along.slopes.errors[output])
    terms = elements * along.direction
    got = float(terms.sum())
    if along.element is not None:
        allowed = DIFFERENCES.rtol * max(abs(true), abs(got)) + DIFFERENCES.atol * float(elements.abs().max())
    else:
        allowed = SMALLEST_SHARE * max(float(terms.norm()), abs(true))
    difference = abs(true - got)
    return (float("inf") if difference != difference else difference - allowed - bar), true, got


def _in_dtype_of(point: Case, case: Case) -> Case:
    """`point` in the dtypes of `case`, for functions that don't take float64."""
    if not point.moved:
        return case
    dtype = next(
        (value.dtype for value in case.sample.args if isinstance(value, torch.Tensor) and value.is_floating_point()),
        torch.float32,
    )
    low = with_tensors(point.sample, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
    return Case(case.index, low, case.varying, exact=False, moved=True)


def _double(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(_double(tensor.dtype)) if is_float(tensor) else tensor
