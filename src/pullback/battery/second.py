"""Second derivatives: those of the gradients that came, by autograd, against their finite differences.

With first derivatives proved, S_k = <gradient of argument k for cotangents u, w_k> is a known function of the arguments
and of u. Its derivative by each of them, as autograd gives it, is compared with finite differences of S_k.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from pullback.battery.case import cotangent_names
from pullback.battery.compare import Mismatch, number
from pullback.battery.numerics import EPS, Curve, Slopes, dot, flat, signs, size_of, slopes
from pullback.battery.second_at_once import all_confirmed, curve_along, kept_symmetric
from pullback.battery.subject import Change, Inputs, Leaf, Output, Subject
from pullback.battery.tolerances import DIRECTIONS, SECOND, SECOND_EVERY_ELEMENT_UP_TO, SMALLEST_SHARE, STEPS
from pullback.battery.truth import Truth


@dataclass(frozen=True, eq=False)
class Call:
    """One differentiable call: its arguments, cotangents that require grad, and the gradients with their graph.

    Attributes:
        inputs: The arguments.
        cotangents: Leaves too.
        gradients: One for each varying leaf.
    """

    inputs: Inputs
    cotangents: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor | None, ...]

    def variables(self) -> tuple[Leaf, ...]:
        """What a gradient can be differentiated by: the varying leaves, then the cotangents."""
        names = cotangent_names(len(self.cotangents))
        cotangents = (Leaf(name, tensor, name) for name, tensor in zip(names, self.cotangents, strict=True))
        return (*self.inputs.varying, *cotangents)


@dataclass(frozen=True, eq=False)
class Weighted:
    """What is differentiated: weights for each gradient, which make a number S_k of it."""

    weights: tuple[torch.Tensor, ...]

    def scalars(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """S_k for each k, without a graph."""
        return torch.stack(
            [
                dot(gradient, weight) if gradient is not None else torch.zeros((), dtype=torch.float64)
                for gradient, weight in zip(gradients, self.weights, strict=True)
            ]
        )

    def magnitude(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """The sum of the absolute terms in each S_k."""
        return torch.stack(
            [
                (flat(gradient) * flat(weight)).abs().sum()
                if gradient is not None
                else torch.zeros((), dtype=torch.float64)
                for gradient, weight in zip(gradients, self.weights, strict=True)
            ]
        )


@dataclass(frozen=True)
class Wrong:
    """A second derivative that differs.

    Attributes:
        gradient: The argument whose gradient was differentiated.
        variable: What it was differentiated by.
        mismatch: How it differs.
        missing: Whether autograd gave nothing or only zeros.
        direction: Along which of the variable's elements, where that isn't one of them.
    """

    gradient: str
    variable: str
    mismatch: Mismatch
    missing: bool
    direction: torch.Tensor | None = None


def differentiable_call(
    subject: Subject,
    truth: Truth,
    *,
    cotangents_vary: bool = True,
    requires: Collection[str] | None = None,
    change: Change | None = None,
    leaf: bool | None = None,
) -> Call:
    """Call, and take the gradients with create_graph.

    Args:
        subject: Whose.
        truth: Where, and with which cotangents.
        cotangents_vary: Whether they require grad, too.
        requires: The names of the leaves that require grad; all that vary unless given.
        change: Makes another tensor of each argument.
        leaf: Whether leaves are passed, as `Subject.fresh` makes them.

    Raises:
        ForwardRaised: If forward raises.
        BackwardRaised: If backward does.
    """
    inputs = subject.fresh(truth.case, requires=requires, change=change, leaf=leaf)
    outputs = subject.call(inputs)
    cotangents = tuple(c.detach().clone().requires_grad_(cotangents_vary) for c in truth.cotangents)
    chosen = [outputs[position] for position in truth.outputs]
    arriving = [c.clone() if cotangents_vary else c for c in cotangents]  # never leaves in a real graph
    gradients = subject.gradients(chosen, arriving, inputs.varying, create_graph=True)
    return Call(inputs, cotangents, gradients)


def weights_for(subject: Subject, call: Call) -> Weighted:
    """Random weights for the gradients of a call."""
    return Weighted(tuple(subject.cotangent(leaf.tensor.detach()) for leaf in call.inputs.varying))


def second_gradients(subject: Subject, call: Call, weighted: Weighted, which: int) -> tuple[torch.Tensor | None, ...]:
    """The derivative of S_which by each variable; None where there is no path.

    Raises:
        BackwardRaised: If the differentiation raises.
    """
    gradient = call.gradients[which]
    variables = call.variables()
    if gradient is None or not gradient.requires_grad:
        return (None,) * len(variables)
    asked = [variable for variable in variables if variable.tensor.requires_grad]
    weight = weighted.weights[which].to(gradient.dtype)
    found = iter(subject.gradients([Output("gradient", gradient)], [weight], asked, retain_graph=True))
    return tuple(next(found) if variable.tensor.requires_grad else None for variable in variables)


def compare_second(
    subject: Subject,
    truth: Truth,
    call: Call,
    weighted: Weighted,
    obtained: Sequence[Sequence[torch.Tensor | None]],
) -> list[Wrong] | None:
    """Each second derivative that differs from finite differences; None where the gradient isn't smooth.

    Args:
        subject: The subject.
        truth: Where, and with which cotangents.
        call: The call that was differentiated.
        weighted: The weights of S_k.
        obtained: For each k, for each variable, what autograd gave.
    """
    if all_confirmed(subject, truth, call, weighted, obtained):
        return []
    magnitude = weighted.magnitude(call.gradients)
    wrong: dict[tuple[int, int], Wrong] = {}
    for place, variable in enumerate(call.variables()):
        scale = size_of(variable.tensor)
        for element, direction in _directions(subject, variable.tensor):
            curve = curve_of(subject, truth, weighted, variable.name, direction)
            came = [flat(row[place]) if row[place] is not None else torch.zeros_like(direction) for row in obtained]  # type: ignore[arg-type]  # not None here
            if _confirms(curve, scale, magnitude, came, direction, element):
                continue
            truths = slopes(curve, scale, magnitude)
            if not bool(truths.smooth.all()):
                return None
            for k, leaf in enumerate(call.inputs.varying):
                bad = _judge(variable.tensor, came[k], direction, element, truths, k)
                # What saturates has tails of 1e-50, where terms of the usual size cancel to 0.
                rounding = EPS * truth.scales.get(leaf.name, 0.0) / scale
                if bad is not None and not bad.max_error < rounding:
                    dense = direction if element is None else None
                    missing = not bool(came[k].any())
                    wrong.setdefault((k, place), Wrong(leaf.name, variable.name, bad, missing, dense))
    return list(wrong.values())


def at_one_element(
    subject: Subject,
    truth: Truth,
    call: Call,
    weighted: Weighted,
    obtained: Sequence[Sequence[torch.Tensor | None]],
    wrong: Wrong,
) -> Wrong:
    """The same at one element, found by halving the direction; as it was where no single one is wrong enough."""
    whole = wrong.direction
    if whole is None:
        return wrong
    k = [leaf.name for leaf in call.inputs.varying].index(wrong.gradient)
    variables = call.variables()
    place = [leaf.name for leaf in variables].index(wrong.variable)
    tensor, came = variables[place].tensor, obtained[k][place]
    elements = flat(came) if came is not None else torch.zeros_like(whole)
    magnitude, support = weighted.magnitude(call.gradients), whole.nonzero().reshape(-1)

    def judged(part: torch.Tensor) -> Mismatch | None:
        direction = torch.zeros_like(whole)
        direction[part] = whole[part] if part.numel() > 1 else 1.0
        direction = kept_symmetric(subject, tensor, direction)
        curve = curve_of(subject, truth, weighted, wrong.variable, direction)
        element = int(part[0]) if part.numel() == 1 else None
        return _judge(tensor, elements, direction, element, slopes(curve, size_of(tensor), magnitude), k)

    while support.numel() > 1:
        half = support[: support.numel() // 2]
        support = half if judged(half) is not None else support[support.numel() // 2 :]
    found = judged(support)
    return replace(wrong, mismatch=found, direction=None) if found is not None else wrong


def curve_of(subject: Subject, truth: Truth, weighted: Weighted, name: str, direction: torch.Tensor) -> Curve:
    """The S_k, with a variable moved along a direction."""
    return curve_along(subject, truth, weighted, {name: direction})


def _confirms(
    curve: Curve,
    scale: float,
    magnitude: torch.Tensor,
    came: Sequence[torch.Tensor],
    direction: torch.Tensor,
    element: int | None,
) -> bool:
    """Whether a single difference agrees with all that autograd gave, which then is right."""
    h = STEPS[1] * scale
    found = (curve(h) - curve(-h)) / (2 * h)
    rounding = 4 * EPS * magnitude / h
    for k, elements in enumerate(came):
        true, got = float(found[k]), float((elements * direction).sum())
        if not abs(true - got) <= _allowed(elements, direction, element, true, got) + float(rounding[k]):
            return False
    return True


def _allowed(elements: torch.Tensor, direction: torch.Tensor, element: int | None, true: float, got: float) -> float:
    if element is None:
        return SMALLEST_SHARE * max(float((elements * direction).norm()), abs(true))
    return SECOND.rtol * max(abs(true), abs(got)) + SECOND.atol * float(elements.abs().max())


def _directions(subject: Subject, tensor: torch.Tensor) -> list[tuple[int | None, torch.Tensor]]:
    count = flat(tensor).numel()
    if count == 0:
        return []
    if count > SECOND_EVERY_ELEMENT_UP_TO:
        dense = [signs(count, subject.random) for _ in range(DIRECTIONS // 2)]
        return [(None, kept_symmetric(subject, tensor, direction)) for direction in dense]
    single = torch.eye(count, dtype=torch.float64)
    return [(place, kept_symmetric(subject, tensor, direction)) for place, direction in enumerate(single)]


def _judge(
    variable: torch.Tensor,
    elements: torch.Tensor,
    direction: torch.Tensor,
    element: int | None,
    truths: Slopes,
    k: int,
) -> Mismatch | None:
    true, bar = float(truths.values[k]), float(truths.errors[k])
    got = float((elements * direction).sum())
    difference = abs(true - got)
    if difference <= _allowed(elements, direction, element, true, got) + bar:
        return None
    if element is None:
        return Mismatch(f"{number(true)} along a random direction", f"{number(got)}", difference)
    place = element // 2 if variable.is_complex() else element
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), variable.shape))
    at = f" at {list(index)}" if index else ""
    return Mismatch(f"{number(true)}{at}", f"{number(got)}{at}", difference, index)
