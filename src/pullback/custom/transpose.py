"""The transpose of a linear map that is given as a function: how a rule for tangents gives gradients.

A rule takes tangents t to J t. That map is linear, so its vjp is the same everywhere: ū ↦ Jᵀū, the vector-Jacobian
product of the function whose tangents these are. It is taken at a t that isn't 0 (NOTE [somewhere]).

NOTE [transposed]: ⟨Jᵀū, t⟩ is ⟨ū, J t⟩. Where it isn't, autograd couldn't follow what the rule did with its tangents,
and took it for zero, or the rule isn't linear in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.torch_private import transforms_active
from pullback.transforms.func.agreement import agreeing
from pullback.transforms.func.linear import inner, nearly_inner
from pullback.transforms.func.primitive import somewhere

Optionals = Sequence[Tensor | None]
Linear = Callable[..., Optionals]


def transposed(
    linear: Linear, like: Sequence[Tensor], cotangents: Optionals, failure: Exception | None = None
) -> tuple[Tensor | None, ...]:
    """The vjp of `linear`, which can be differentiated again where grad mode is on.

    Args:
        linear: Takes a tensor for each of `like`; returns tensors, or None where there is no derivative.
        like: Tensors of the shapes that it takes.
        cotangents: One for each tensor that it returns.
        failure: What to raise where the result isn't the transpose (NOTE [transposed]); None to trust `linear`.

    Returns:
        For each of `like` its gradient, None where nothing depends on it.
    """
    points = [somewhere(tensor) for tensor in like]
    values: list[Tensor | None] = []

    def watched(*tangents: Tensor) -> Optionals:
        values[:] = found = linear(*tangents)
        return found

    # Under transforms nothing can be told to require grad, and saved-tensor hooks are refused anyway.
    gradients = (_by_transform if transforms_active() else _by_autograd)(watched, points, cotangents)
    if failure is not None:
        with torch.no_grad():
            agreeing(failure, nearly_inner, inner(cotangents, values), inner(gradients, points))
    return gradients


def _by_autograd(linear: Linear, points: Sequence[Tensor], cotangents: Optionals) -> tuple[Tensor | None, ...]:
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [point.requires_grad_() for point in points]
        pairs = _connected(linear(*leaves), cotangents)
        if not pairs:
            return (None,) * len(leaves)
        tangents, given = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return torch.autograd.grad(tangents, leaves, given, create_graph=again, allow_unused=True)


def _by_transform(linear: Linear, points: Sequence[Tensor], cotangents: Optionals) -> tuple[Tensor | None, ...]:
    places: list[int] = []

    def tangents(*leaves: Tensor) -> tuple[Tensor, ...]:
        found = linear(*leaves)
        places[:] = [index for index, cotangent in enumerate(cotangents) if _counts(found[index], cotangent)]
        return tuple(_tensor(found[index]) for index in places)

    pull: Any = torch.func.vjp(tangents, *points)[1]
    if not places:
        return (None,) * len(points)
    gradients: tuple[Tensor, ...] = pull(tuple(_tensor(cotangents[index]) for index in places))
    return gradients


def _connected(found: Optionals, cotangents: Optionals) -> list[tuple[Tensor, Tensor]]:
    return [
        (_tensor(tangent), _tensor(cotangent))
        for tangent, cotangent in zip(found, cotangents, strict=True)
        if _counts(tangent, cotangent) and _tensor(tangent).requires_grad
    ]


def _counts(tangent: Tensor | None, cotangent: Tensor | None) -> bool:
    return tangent is not None and cotangent is not None and (tangent.is_floating_point() or tangent.is_complex())


def _tensor(value: Tensor | None) -> Tensor:
    assert value is not None
    return value
