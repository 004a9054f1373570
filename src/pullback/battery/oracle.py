"""The function whose derivative backward should implement, differentiated by autograd.

A reference is compared in its values too, so finite differences of them are as good as autograd. A surrogate is not:
its derivative is what autograd says of it (``(q.round() - q).detach() + q`` has the values of ``round``), and where
that jumps, no derivative is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.battery.budgets import Shake
from pullback.battery.compare import compare, natural_scale
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.numerics import flat, signs, size_of, unflat
from pullback.battery.subject import Case, ForwardRaised, Subject, with_tensors
from pullback.battery.tolerances import CONTINUOUS, STEPS

Exact = dict[tuple[str, int], "Tensor | None"]
"""(leaf, place among the differentiable outputs) -> the gradient."""


class UnfitError(Exception):
    """The surrogate doesn't fit forward."""


def oracle_of(subject: Subject) -> Callable[..., Any] | None:
    """The function whose derivative backward should implement; None for forward itself."""
    return subject.surrogate or subject.reference


def by_autograd(subject: Subject, point: Case, positions: tuple[int, ...], cotangents: tuple[Tensor, ...]) -> Exact:
    """The oracle's gradients; empty without an oracle, and for a reference that is no differentiable PyTorch.

    Raises:
        UnfitError: If the surrogate's outputs aren't forward's in number and shape.
    """
    oracle = oracle_of(subject)
    exact: Exact = {}
    for place, (position, cotangent) in enumerate(zip(positions, cotangents, strict=True)):
        if oracle is None:
            return {}
        inputs = subject.fresh(point)
        outputs = subject.call(inputs, oracle)
        if position >= len(outputs) or outputs[position].tensor.shape != cotangent.shape:
            if subject.surrogate is not None:
                raise UnfitError("the surrogate's outputs aren't forward's in number and shape")
            return {}
        if subject.surrogate is None and not any(output.tensor.requires_grad for output in outputs):
            return {}
        chosen, high = outputs[position], cotangent.to(outputs[position].tensor.dtype)
        for leaf, gradient in zip(inputs.varying, subject.gradients([chosen], [high], inputs.varying), strict=True):
            exact[leaf.name, place] = gradient
    return exact


def rounded_by_autograd(
    subject: Subject, point: Case, positions: tuple[int, ...], cotangents: tuple[Tensor, ...], shake: Shake
) -> Exact:
    """The oracle's gradients at a point in float64, with everything on the way rounded at random."""
    shaken = moved(subject, point, lambda _, tensor: shake.rounded(tensor))
    with shake.operators():
        return by_autograd(subject, shaken, positions, tuple(shake.rounded(in_double(c)) for c in cotangents))


def in_double(tensor: Tensor) -> Tensor:
    """A floating tensor in float64 or complex128, detached; others as they are."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def largest(subject: Subject, case: Case, outputs: Iterable[Tensor]) -> int:
    """The number of elements of the largest tensor in a call: no sum in it has more terms, as far as one can tell."""
    return max((t.numel() for t in (*outputs, *(t for _, _, t in subject.named_tensors(case.sample)))), default=1)


def is_continuous(
    subject: Subject, point: Case, positions: tuple[int, ...], cotangents: tuple[Tensor, ...], exact: Exact
) -> bool:
    """Whether the oracle's gradients at `point` are, but for a little, those beside it on either side."""
    inputs = subject.fresh(point)
    steps = {leaf.name: signs(flat(leaf.tensor).numel(), subject.random) for leaf in inputs.varying}
    outputs = subject.call(inputs, oracle_of(subject))  # the function itself may not take float64
    tensors = [outputs[position].tensor for position in positions]
    scales = {leaf.name: natural_scale(tensors, cotangents, leaf.tensor) for leaf in inputs.varying}
    for side in (1.0, -1.0):

        def move(name: str, tensor: Tensor, side: float = side) -> Tensor:
            if name not in steps:
                return tensor
            return tensor + unflat(side * min(STEPS) * size_of(tensor) * steps[name], tensor)

        beside = by_autograd(subject, moved(subject, point, move), positions, cotangents)
        for key, gradient in exact.items():
            if compare(gradient, beside[key], CONTINUOUS, scale=scales[key[0]]) is not None:
                return False
    return True


_ELSEWHERE: tuple[tuple[int, tuple[float, ...]], ...] = ((1, (1.25, 0.3)), (1, (1.25,)), (0, (1.25,)))
"""By how many places elements are rolled, and what they are then multiplied by in turn, in the order tried."""


def elsewhere(subject: Subject, case: Case) -> Case:
    """The case with other values that forward takes: in another order, some larger, some smaller.

    So masks, maxima and comparisons with a number come out otherwise. Where forward refuses that, as for a matrix that
    was symmetric, or gives what isn't finite, all are larger; at last they stay in order. Integers are left alone: they
    may be places in memory.
    """
    taken = case
    for shift, factors in _ELSEWHERE:
        taken = moved(subject, case, lambda _, t, shift=shift, factors=factors: _exchanged(t, shift, factors))  # type: ignore[misc]  # both are bound
        try:
            outputs = subject.call(subject.fresh(taken, requires=()))
        except ForwardRaised:
            continue
        if all(bool(output.tensor.isfinite().all()) for output in outputs if is_dense(output.tensor)):
            return taken
    return taken


def _exchanged(tensor: Tensor, shift: int, factors: tuple[float, ...]) -> Tensor:
    if tensor.dtype is not torch.bool and not is_float(tensor):
        return tensor
    if not is_dense(tensor):
        return tensor * factors[0] if is_float(tensor) else tensor
    elements = tensor.flatten().roll(shift)
    if is_float(tensor):
        parts = torch.tensor(factors, dtype=torch.float64).repeat(elements.numel() // len(factors) + 1)
        elements = elements * parts[: elements.numel()].to(elements)
    return torch.empty_like(tensor).copy_(elements.view(tensor.shape))


def moved(subject: Subject, point: Case, move: Callable[[str, Tensor], Tensor]) -> Case:
    """The case with other values: those that `move` makes of each argument's name and tensor."""
    names = {id(tensor): name for name, _, tensor in reversed(list(subject.named_tensors(point.sample)))}
    sample = with_tensors(point.sample, lambda tensor: move(names[id(tensor)], tensor.detach()))
    return replace(point, sample=sample)
