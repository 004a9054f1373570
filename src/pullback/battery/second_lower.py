"""Second derivatives in the dtypes below float64: those of float64 at the same values, but for what rounding costs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.battery.budgets import Shake
from pullback.battery.case import CotangentName
from pullback.battery.compare import Mismatch, compare
from pullback.battery.draws import draws
from pullback.battery.leaves import is_dense
from pullback.battery.lower import Lowered
from pullback.battery.numerics import flat, size_of
from pullback.battery.oracle import in_double, moved
from pullback.battery.own import Own
from pullback.battery.repro_second import penalty_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Leaf, Output, Subject, one_line, text_of
from pullback.battery.tolerances import for_gradients, for_values, has_room
from pullback.finding import Finding

_LACKING = re.compile(r"not implemented for '\w+'|[Ll]ow precision dtypes not supported")


@dataclass(frozen=True, eq=False)
class _Twice:
    """What two differentiations gave: the gradients, and the derivatives of a weighted sum of them, by their names."""

    first: Mapping[str, Tensor | None]
    second: Mapping[str, Tensor | None]


@dataclass(frozen=True, eq=False)
class _Along:
    """What is differentiated: cotangents of the outputs that have a graph, and weights of the gradients."""

    cotangents: Sequence[Tensor]
    weights: Mapping[str, Tensor]


def second_in_lower(subject: Subject, low: Lowered) -> Iterator[Finding]:
    """A finding where the gradient or its derivative in a lower dtype is another than in float64, or raises.

    To be asked where second derivatives are right in float64. A gross difference is looked for first: whether it is
    more than rounding explains is then a matter of the budget.
    """
    if low.dtype.is_complex or draws(subject, low).forward or draws(subject, low).backward:
        return
    inputs = subject.fresh(low)
    tracked = [output.tensor for output in subject.call(inputs) if output.tensor.requires_grad]
    if not all(is_dense(tensor) for tensor in tracked):
        return
    cotangents = [subject.cotangent(tensor) for tensor in tracked]
    along = _Along(cotangents, {leaf.name: subject.cotangent(leaf.tensor.detach()) for leaf in inputs.varying})
    high = moved(subject, low, lambda _, tensor: in_double(tensor))
    try:
        there = [o.tensor for o in subject.call(subject.fresh(high)) if o.tensor.requires_grad]
        if len(there) != len(tracked) or any(_differ(one, other) for one, other in zip(there, tracked, strict=True)):
            return  # where values are others already, derivatives prove nothing
        expected = _twice(subject, high, along)
    except (ForwardRaised, BackwardRaised):
        return  # as in float64 at the sample's own values
    try:
        got = _twice(subject, low, along)
    except BackwardRaised as raised:
        if not _LACKING.search(text_of(raised.error)):
            yield _raises(subject, low, raised.error)
        return
    for order, what in ((1, "under create_graph=True the gradient of"), (2, "the second derivative by")):
        one, other = (made.first if order == 1 else made.second for made in (expected, got))
        if not has_room(_most(expected, order), low.dtype):
            return
        name, bad = _apart(subject, low, high, along, one, other, order)
        if bad is not None:
            yield subject.finding(
                "PB205",
                low,
                f"in {low.name} {what} {name} is further from float64 than rounding explains",
                argument=name,
                what=low.name,
                expected=f"{bad.expected}, as in float64",
                got=bad.got,
                evidence={**bad.evidence, "by": str(name), "order": order, "dtype": low.name},
                repro=penalty_lines(subject, low, "" if isinstance(name, CotangentName) else name, bad.index),
            )
            return


def _differ(expected: Tensor, got: Tensor) -> bool:
    return compare(expected, in_double(got), for_values(got.dtype)) is not None


def _most(expected: _Twice, order: int) -> float:
    """The largest number that is expected, and in second order the largest product of two gradients too."""
    largest = [
        max((float(flat(one).abs().max()) for one in made.values() if one is not None and one.numel()), default=0.0)
        for made in (expected.first, expected.second)
    ]
    return largest[0] if order == 1 else max(largest[0] ** 2, largest[1])


def _twice(subject: Subject, case: Case, along: _Along) -> _Twice:
    """Differentiate twice, in the dtypes of the case.

    Raises:
        ForwardRaised: If forward raises.
        BackwardRaised: If a differentiation does.
    """
    inputs = subject.fresh(case)
    outputs = [output for output in subject.call(inputs) if output.tensor.requires_grad]
    given = [
        c.detach().to(output.tensor.dtype).requires_grad_() for c, output in zip(along.cotangents, outputs, strict=True)
    ]
    leaves = [leaf.tensor for leaf in inputs.varying]
    gradients = subject.gradients(outputs, [c.clone() for c in given], inputs.varying, create_graph=True)
    first = {leaf.name: g for leaf, g in zip(inputs.varying, gradients, strict=True)}
    connected = {name: g for name, g in first.items() if g is not None and g.requires_grad}
    names = [*first, *(CotangentName(f"grad_output {place}") for place in range(len(given)))]
    if not connected:
        return _Twice(first, dict.fromkeys(names))
    weights = [along.weights[name].to(g.dtype) for name, g in connected.items()]
    by = [Leaf(name, tensor, name) for name, tensor in zip(names, [*leaves, *given], strict=True)]
    second = subject.gradients([Output(name, g) for name, g in connected.items()], weights, by)
    detached = {name: None if g is None else g.detach() for name, g in first.items()}
    return _Twice(detached, dict(zip(names, second, strict=True)))


def _apart(
    subject: Subject,
    low: Lowered,
    high: Case,
    along: _Along,
    expected: Mapping[str, Tensor | None],
    got: Mapping[str, Tensor | None],
    order: int,
) -> tuple[str, Mismatch | None]:
    """The first result that is grossly another one, and beyond its budget."""

    def again(shake: Shake) -> Mapping[str, Tensor | None]:
        rounded = _Along(
            [shake.rounded(in_double(c)) for c in along.cotangents],
            {name: shake.rounded(in_double(w)) for name, w in along.weights.items()},
        )
        with shake.operators():
            made = _twice(subject, moved(subject, high, lambda _, tensor: shake.rounded(tensor)), rounded)
        return made.first if order == 1 else made.second

    own = Own(subject, low, expected, again)
    size = max((size_of(tensor) for tensor in expected.values() if tensor is not None), default=0.0)
    tiny = torch.finfo(low.dtype).tiny
    for name, one in expected.items():
        other = got[name]
        if size < tiny and other is not None and bool((flat(other).abs() < tiny).all()):
            continue  # numbers of that size don't exist there
        if compare(one, None if other is None else in_double(other), for_gradients(low.dtype), scale=size) is None:
            continue
        bad = own.differs(name, None if other is None else in_double(other))
        if bad is not None:
            return name, bad
    return "", None


def _raises(subject: Subject, low: Lowered, error: BaseException) -> Finding:
    text = one_line(error)
    return subject.finding(
        "PB205",
        low,
        f"differentiating the gradient raises in {low.name}, and not in float64: {text}",
        what=low.name,
        expected="the second derivative, as in float64",
        got=text,
        evidence={"order": 2, "raised": type(error).__name__, "dtype": low.name},
        repro=penalty_lines(subject, low),
    )
