"""Tangents as a rule takes and returns them: nests like what they belong to, in which nothing is left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.call.dependence import is_smooth
from pullback.call.matching import UnlikeError, described, matched
from pullback.custom.nests import Shape, apart, together
from pullback.errors import GradientError


def zero_tangent(value: Any) -> Any:
    """The tangent of something that isn't differentiated: zero, or None where there is none."""
    if isinstance(value, Tensor):
        return torch.zeros_like(value) if is_smooth(value) else None
    return type(value)(0) if type(value) in (float, complex) else None


def completed(tangents: list[Any], primals: list[Tensor], others: list[Any], shape: Shape) -> Any:
    """The nest of tangents that a rule is given: `tangents` where there are some, zeros for the rest."""
    every = [
        zero_tangent(primal) if tangent is None else tangent for tangent, primal in zip(tangents, primals, strict=True)
    ]
    return together(every, [zero_tangent(other) for other in others], shape, values=True)


def tangent_leaves(tangents: Any, shape: Shape) -> list[Any]:
    """One tangent, or None, for each tensor of a nest of that shape."""
    if shape.nest is None:
        return shape.only_tensors([tangents])
    return shape.only_tensors(matched(shape.nest, tangents, "", shape.tensors))


def leaves_like(name: str, tangent: Any, result: Any) -> list[Tensor | None]:
    """The tangent for each tensor of a result, as the rule of `name` returned it.

    Raises:
        GradientError: PB202, it isn't a nest like the result.
    """
    tensors, _, shape = apart(result)
    try:
        leaves = matched(shape.nest, tangent, "", shape.tensors)
    except UnlikeError as error:
        where = f" at {error.path}" if error.path else ""
        whole = described(shape.nest) if shape.nest is not None and not where else error.expected
        raise _misfit(name, f"{whole}{where}", error.got) from None
    found = shape.only_tensors(leaves)
    for leaf, of in zip(found, tensors, strict=True):
        if leaf is not None and leaf.shape != of.shape:
            raise _misfit(name, f"a tensor of shape {tuple(of.shape)}, as the result is", f"{tuple(leaf.shape)}")
    return found


def added(one: Any, other: Any) -> Any:
    """The sum of two tangents, of which None is zero."""
    if one is None or other is None:
        return other if one is None else one
    tensors, others, shape = apart(one)
    if shape.nest is None:
        return one + other
    right = tangent_leaves(other, shape)
    return together([added(a, b) for a, b in zip(tensors, right, strict=True)], others, shape)


def _misfit(name: str, expected: str, got: str) -> GradientError:
    return GradientError(
        "PB202",
        f"the rule of {name} returned a tangent that isn't like the result.",
        expected=expected,
        got=got,
        remedy="Return the result and its tangent, in the same structure and shapes.",
    )
