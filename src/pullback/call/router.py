"""Calls that aren't flat: by keyword, or with containers of tensors among the arguments or the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pullback.call.binding import bound_call
from pullback.call.leafwise import leafwise_class
from pullback.call.nests import PLAIN_TYPES, Counts, Nest, any_tensor, may_be_nest, taken_apart
from pullback.call.plan import Plan, ReturnedNest
from pullback.call.structure import Given, Structure
from pullback.define.definition import Definition

_FLAT = PLAIN_TYPES | {Tensor}
_STRUCTURES = 128
"""The structures of a class's calls whose plans are kept; lists may come in any length."""


class Route(NamedTuple):
    """A call as a flat one.

    Attributes:
        plan: What runs it.
        arguments: The arguments, or, where the plan is leafwise, their leaves and a `Given`.
    """

    plan: Plan
    arguments: tuple[Any, ...]


def routed(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], *, every_tensor: bool = False) -> Route | None:
    """Take a call apart; None where forward can't take these arguments.

    Args:
        plan: The plan of the author's class.
        args: The arguments by position.
        kwargs: The arguments by keyword.
        every_tensor: Whether containers are taken apart for any tensor, as inside of transforms, which wrap them; else
            for one that requires grad in grad mode.
    """
    found = apart(plan.definition, args, kwargs, every_tensor=every_tensor, always=plan.returns_nests)
    if found is None:
        return None
    structure, leaves, values = found
    if structure is None:
        return Route(plan, values)
    return Route(_leafwise(plan, structure), (*leaves, Given(None if every_tensor else values)))


def apart(
    definition: Definition,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    every_tensor: bool = False,
    always: bool = False,
) -> tuple[Structure | None, Sequence[Any], tuple[Any, ...]] | None:
    """The structure of a call, its leaves and its arguments; without a structure where forward takes them as they are.

    Args:
        definition: What the author wrote.
        args: The arguments by position.
        kwargs: The arguments by keyword.
        every_tensor: As for `routed`.
        always: Whether a call has a structure even if it is flat.
    """
    found = bound_call(definition, args, kwargs)
    if found is None:
        return None
    positional, keywords = found
    if not (keywords or always or any([_may_be_nest(value) for value in positional])):
        return None, positional, positional
    values = (*positional, *keywords.values())
    counts: Counts = any_tensor if every_tensor else _requires_grad
    nests, leaves = _leaves(values, counts)
    if definition.double_backward is not None and not every_tensor and any(map(_tracked, leaves)):
        # It takes one entry for each leaf, however many of them need a gradient in this call.
        nests, leaves = _leaves(values, any_tensor)
    if not (keywords or always) and all(nest is None for nest in nests):
        return None, values, values
    names = (*(definition.argument_name(index) for index in range(len(positional))), *keywords)
    return Structure(names, nests, len(keywords)), leaves, values


def resumed(ran: ReturnedNest) -> Any:
    """The flat outputs of a call that was stopped since forward returned a nest; from now on they are taken apart."""
    plan = ran.plan
    plan.returns_nests = True
    names = tuple([plan.definition.argument_name(index) for index in range(len(ran.arguments))])
    return _leafwise(plan, Structure(names, (None,) * len(names))).resume(ran)


def _leafwise(plan: Plan, structure: Structure) -> Plan:
    """The plan for the leaves of a call."""
    known = plan.leafwise.get(structure)
    if known is None:
        cls = leafwise_class(plan.cls, plan.definition, structure)
        known = plan.leafwise.setdefault(structure, Plan(cls, plan.differentiate))
        for oldest in list(plan.leafwise)[:-_STRUCTURES]:
            plan.leafwise.pop(oldest, None)
    return known


def _leaves(values: Sequence[Any], counts: Counts) -> tuple[tuple[Nest | None, ...], list[Any]]:
    nests: list[Nest | None] = []
    leaves: list[Any] = []
    for value in values:
        apart = taken_apart(value, counts)
        if apart is None:
            nests.append(None)
            leaves.append(value)
        else:
            nests.append(apart[0])
            leaves += apart[1]
    return tuple(nests), leaves


def _may_be_nest(value: Any) -> bool:
    return type(value) not in _FLAT and may_be_nest(value)


def _requires_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _tracked(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and _requires_grad(leaf)
