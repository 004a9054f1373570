"""The right gradients of a case: from the surrogate or the reference by autograd, else from finite differences.

The truth is held for one cotangent of each differentiable output, output by output. A case on a kink, where no
derivative exists, is moved a little; all probes that need a smooth point take `Truth.case`.

Where forward takes float32 alone and there is neither of the two, differences are coarse: of large steps, and good to
two or three digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pullback.battery.budgets import Budgets, Shake
from pullback.battery.certain import Gradients, confirmed_gradients
from pullback.battery.compare import Mismatch, compare, map_of, natural_scale, number
from pullback.battery.curves import CurveMaker, additive, curve_maker, moved_off
from pullback.battery.iterations import stops_short
from pullback.battery.leaves import is_float
from pullback.battery.numerics import Slopes, flat, normals, signs, unflat
from pullback.battery.observe import is_finite
from pullback.battery.oracle import (
    UnfitError,
    by_autograd,
    in_double,
    is_continuous,
    largest,
    oracle_of,
    rounded_by_autograd,
)
from pullback.battery.randomness import own_seed
from pullback.battery.subject import Case, ForwardRaised, Leaf, Output, Subject, with_tensors
from pullback.battery.tolerances import (
    DIFFERENCES,
    DIRECTIONS,
    EVERY_ELEMENT_UP_TO,
    PRECISIONS,
    SMALLEST_SHARE,
    Tolerance,
    for_gradients,
    precision_of,
)
from pullback.finding import ErrorMap

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
        confirmed: (leaf, position in `outputs`) -> backward's own gradient, where differences agree with all of them.
        partial: Whether the sample itself holds NaN or infinities. Outputs that they reach have the cotangent 0, and
            gradients that they reach, which aren't finite then, are not judged.
    """

    subject: Subject
    case: Case
    outputs: tuple[int, ...]
    cotangents: tuple[torch.Tensor, ...]
    source: str
    scales: dict[str, float]
    exact: dict[tuple[str, int], torch.Tensor | None]
    projections: dict[str, tuple[Projection, ...]]
    confirmed: Gradients
    partial: bool = False

    def judge(self, leaf: Leaf, output: int, gradient: torch.Tensor | None) -> Mismatch | None:
        """How the gradient of `leaf` for the output at a position differs from the truth; None where it is right."""
        hidden = ~flat(gradient).isfinite() if gradient is not None and self.partial else None
        if self.exact:
            dtype = leaf.tensor.dtype
            truth = self.exact[leaf.name, output]
            got = gradient.detach().to(_double(dtype)) if gradient is not None else None
            if hidden is not None and got is not None:
                right = flat(truth) if truth is not None else torch.zeros_like(flat(got))
                got = unflat(torch.where(hidden, right, flat(got)), got)
            low, _ = precision_of(self.dtypes)
            if low is torch.float64 or truth is None or got is None or truth.shape != got.shape:
                return compare(truth, got, for_gradients(dtype), scale=self.scales[leaf.name])
            return self.budgets(low).judge(list(self.exact).index((leaf.name, output)), got)
        if self.confirmed:
            return compare(self.confirmed[leaf.name, output], gradient, DIFFERENCES)
        if hidden is not None and gradient is not None:
            gradient = unflat(torch.where(hidden, 0.0, flat(gradient)), gradient)
        for projection in self.projections[leaf.name]:
            if hidden is not None and projection.element is not None and bool(hidden[projection.element]):
                continue
            mismatch = self._along(leaf, output, gradient, projection)
            if mismatch is not None:
                return replace(mismatch, error_map=self._error_map(leaf, output, gradient))
        return None

    def budgets(self, low: torch.dtype) -> Budgets:
        """What rounding to `low` may cost each of the gradients that autograd gave, in their order."""
        key = ("budgets", self.case.index, low)
        if key not in self.subject.cache:
            point = replace(self.case, sample=with_tensors(self.case.sample, in_double))
            self.subject.cache[key] = Budgets(
                PRECISIONS[low],
                largest(self.subject, self.case, self.cotangents),
                tuple(self.exact.values()),
                lambda shake: self._rounded(point, shake),
                torch.Generator().manual_seed(own_seed(self.subject.seed, f"roundings of sample {self.case.index}")),
            )
        found: Budgets = self.subject.cache[key]
        return found

    def _rounded(self, point: Case, shake: Shake) -> tuple[torch.Tensor | None, ...]:
        found = rounded_by_autograd(self.subject, point, self.outputs, self.cotangents, shake)
        return tuple(found.get(key) for key in self.exact)

    @property
    def _near(self) -> Tolerance:
        """How near a gradient must be to differences, besides their error bars."""
        return DIFFERENCES if self.case.exact else for_gradients(torch.float32)

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The floating dtypes of a call: of its arguments and its outputs."""
        named = [tensor for _, _, tensor in self.subject.named_tensors(self.case.sample)]
        return [tensor.dtype for tensor in (*named, *self.cotangents) if is_float(tensor)]

    def is_zero(self, leaf_name: str, output: int) -> bool:
        """Whether the true gradient is 0 within its error."""
        known = self.exact or self.confirmed
        if known:
            truth = known[leaf_name, output]
            return truth is None or not bool(flat(truth).any())
        return all(
            abs(float(p.slopes.values[output])) <= float(p.slopes.errors[output]) for p in self.projections[leaf_name]
        )

    def _along(self, leaf: Leaf, output: int, gradient: torch.Tensor | None, along: Projection) -> Mismatch | None:
        elements = flat(gradient) if gradient is not None else torch.zeros_like(along.direction)
        excess, true, got = _excess(elements, along, output, self._near)
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

    def _error_map(self, leaf: Leaf, output: int, gradient: torch.Tensor | None) -> ErrorMap | None:
        """Where all of a gradient is wrong; None unless each element was differentiated on its own."""
        found = self.projections[leaf.name]
        elements = torch.zeros_like(found[0].direction) if gradient is None else flat(gradient)
        errors = torch.zeros_like(elements)
        for along in found:
            if along.element is None:
                return None
            excess, true, got = _excess(elements, along, output, self._near)
            if excess > 0:
                errors[along.element] = abs(true - got)
        return map_of(errors, leaf.tensor) if len(found) == elements.numel() else None

    def _culprit(self, leaf: Leaf, output: int, elements: torch.Tensor, along: Projection) -> tuple[int, float, float]:
        """Halve the direction until one wrong element is left."""
        support = along.direction.nonzero().reshape(-1)
        curve_for = curve_maker(self.subject, self.case, oracle_of(self.subject), self.outputs, self.cotangents)
        while support.numel() > 1:
            half = torch.zeros_like(along.direction)
            half[support[: support.numel() // 2]] = along.direction[support[: support.numel() // 2]]
            found = Projection(half, None, curve_for(leaf.name, half))
            wrong = _excess(elements, found, output, self._near)[0] > 0
            support = support[: support.numel() // 2] if wrong else support[support.numel() // 2 :]
        place = int(support[0])
        true = float(curve_for(leaf.name, _single(along.direction.numel(), place)).values[output])
        return place, true, float(elements[place])


def truth_of(subject: Subject, case: Case) -> Truth | str:
    """The truth for a case, or why there is none. It is found once for each case."""
    key = ("truth", case.index)
    if key not in subject.cache:
        with subject.drawing_for(f"truth of sample {case.index}"):
            subject.cache[key] = _find(subject, case)
    found: Truth | str = subject.cache[key]
    return found


def differentiable(outputs: Sequence[Output]) -> tuple[int, ...]:
    """The positions of the outputs that require grad."""
    return tuple(position for position, output in enumerate(outputs) if output.tensor.requires_grad)


def _find(subject: Subject, case: Case) -> Truth | str:
    coarse = not case.exact and oracle_of(subject) is None
    if coarse and not _in_singles(subject, case):
        return f"{case.label}: float64 and float32 are refused and there is no reference"
    outputs = subject.call(subject.fresh(case))
    positions = differentiable(outputs)
    if not positions or not case.varying:
        return f"{case.label}: {_why_nothing(case, outputs)}"
    partial = not all(is_finite(leaf.tensor) for leaf in subject.fresh(case).leaves if is_float(leaf.tensor))
    cotangents = tuple(subject.cotangent(outputs[position].tensor) for position in positions)
    if partial:
        cotangents = tuple(_where_finite(outputs[p].tensor, c) for p, c in zip(positions, cotangents, strict=True))
        if not any(bool(flat(cotangent).any()) for cotangent in cotangents):
            return f"{case.label}: it holds NaN or infinities, and no output is finite"
    double = Case(case.index, with_tensors(case.sample, in_double), case.varying, moved=case.moved)
    double = case if coarse else double
    for attempt in range(_MOVES + 1):
        point = double if attempt == 0 else moved_off(subject, double)
        try:
            truth = _at(subject, case, point, positions, cotangents, partial=partial)
        except UnfitError as unfit:
            return f"{case.label}: {unfit}"
        if truth is not None:
            return truth
    return f"{case.label}: forward isn't smooth there, nor at {_MOVES} points nearby"


def _in_singles(subject: Subject, case: Case) -> bool:
    """Whether no argument is coarser than float32, of which differences know some digits."""
    named = subject.named_tensors(case.sample)
    return precision_of(tensor.dtype for _, _, tensor in named if is_float(tensor))[0] is torch.float32


def _why_nothing(case: Case, outputs: Sequence[Output]) -> str:
    if not case.varying:
        return "no argument is a dense floating tensor that may have a gradient"
    if not outputs:
        return "forward returned no tensor"
    if not any(is_float(output.tensor) for output in outputs):
        return "no output is a floating tensor"
    return "no output requires grad"


def _where_finite(output: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    return torch.where(output.detach().isfinite(), cotangent, torch.zeros_like(cotangent))


def _at(
    subject: Subject,
    case: Case,
    point: Case,
    positions: tuple[int, ...],
    cotangents: tuple[torch.Tensor, ...],
    *,
    partial: bool,
) -> Truth | None:
    """The truth at `point`; None where it isn't smooth."""
    oracle = oracle_of(subject)
    projections: dict[str, tuple[Projection, ...]] = {}
    confirmed: Gradients = {}
    try:
        exact = by_autograd(subject, point, positions, cotangents)
        if subject.surrogate is not None:
            if not is_continuous(subject, point, positions, cotangents, exact):
                return None
        elif case.exact and not exact and not partial:
            confirmed = confirmed_gradients(subject, point, oracle, positions, cotangents)
        if subject.surrogate is None and not confirmed:
            curve_for = _as_exact_as_forward(subject, point, curve_maker(subject, point, oracle, positions, cotangents))
            for leaf in subject.fresh(point).varying:
                found = _along_directions(subject, leaf, curve_for, few=bool(exact), partial=partial)
                if found is None:
                    return None
                projections[leaf.name] = found
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
    return Truth(subject, where, positions, cotangents, source, scales, exact, projections, confirmed, partial)


def _as_exact_as_forward(subject: Subject, point: Case, curve_for: CurveMaker) -> CurveMaker:
    """Slopes with a wider bar where forward is a solver that stops early."""
    short = stops_short(subject, point) if oracle_of(subject) is None else 0.0

    def slopes_along(name: str, direction: torch.Tensor) -> Slopes:
        found = curve_for(name, direction)
        return replace(found, errors=found.errors + short * found.values.abs())

    return slopes_along if short else curve_for


def _along_directions(
    subject: Subject, leaf: Leaf, curve_for: CurveMaker, *, few: bool, partial: bool
) -> tuple[Projection, ...] | None:
    """The derivatives by one leaf; None where there is a kink."""
    found = []
    for element, direction in _directions(subject, leaf, few=few, partial=partial):
        found.append(Projection(direction, element, curve_for(leaf.name, direction)))
        if not bool(found[-1].slopes.smooth.all()):
            return None
    known = [(projection.direction, projection.slopes) for projection in found]
    if known and not additive(subject, leaf.name, known, curve_for):
        return None
    return tuple(found)


def _directions(subject: Subject, leaf: Leaf, *, few: bool, partial: bool) -> list[tuple[int | None, torch.Tensor]]:
    """Each element on its own for small arguments, else dense random signs; never along NaN or infinities."""
    finite = flat(leaf.tensor).isfinite()
    count = finite.numel()
    if not bool(finite.any()):
        return []
    if few:
        return [(None, normals(count, subject.random) * finite) for _ in range(_SMOOTHNESS_DIRECTIONS)]
    if count > EVERY_ELEMENT_UP_TO and not partial:
        return [(None, signs(count, subject.random)) for _ in range(DIRECTIONS)]
    # Beside a NaN some gradients are NaN too, and would hide all others in a dense direction.
    places = finite.nonzero().reshape(-1)[:EVERY_ELEMENT_UP_TO].tolist()
    return [(place, _single(count, place)) for place in places]


def _single(count: int, place: int) -> torch.Tensor:
    """The direction of one element."""
    direction = torch.zeros(count, dtype=torch.float64)
    direction[place] = 1.0
    return direction


def _excess(elements: torch.Tensor, along: Projection, output: int, near: Tolerance) -> tuple[float, float, float]:
    """By how much the projections differ beyond what is allowed; the true one; the one that came."""
    true, bar = float(along.slopes.values[output]), float(along.slopes.errors[output])
    terms = elements * along.direction
    got = float(terms.sum())
    if along.element is not None:
        allowed = near.rtol * max(abs(true), abs(got)) + near.atol * float(elements.abs().max())
    else:
        share = SMALLEST_SHARE if near is DIFFERENCES else near.rtol
        allowed = share * max(float(terms.norm()), abs(true))
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
