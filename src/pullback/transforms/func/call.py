"""Calls under torch.func and in forward mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.call.cast_calls import CastLeaves
from pullback.call.casting import casts
from pullback.call.outputs import nested
from pullback.call.plan import Plan
from pullback.call.router import routed
from pullback.transforms.func import refusals
from pullback.transforms.func.forward import Forward, NestError
from pullback.transforms.func.levels import bind

__all__ = ["NestError", "transformed"]


def transformed(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call returns, connected at each level that is running and in the graph outside.

    Raises:
        TransformError: PB509 to PB514, the Function can't be run under one of the transforms.
        AutocastError: PB521, forward wrote to an argument that cast_inputs had cast.
        TypeError: forward can't take these arguments.
        NestError: The first call whose forward returned a container; the next one takes it apart.
    """
    route = routed(plan, args, kwargs, every_tensor=True)
    if route is None:
        plan.definition.signature.bind(*args, **kwargs)
        raise TypeError(f"{plan.definition.name}.forward can't take the arguments of this call.")
    try:
        if casts(plan.definition):
            with CastLeaves(route.plan, route.arguments) as cast:
                return nested(_flat(route.plan, cast), always=True)
        return nested(_flat(route.plan, route.arguments), always=True)
    except NestError:
        plan.returns_nests = True
        raise


def _flat(plan: Plan, arguments: Sequence[Any]) -> Any:
    forward, definition = Forward(plan, arguments), plan.definition
    never = [definition.is_nondiff(definition.argument_name(index)) for index in range(len(arguments))]
    operands = tuple(arguments[k].detach() if never[k] else arguments[k] for k in forward.operands.positions)
    outputs = list(bind(forward, operands))
    for index, operand in forward.record.dirty.items():
        try:
            # An operation of PyTorch's, which has rules for every level.
            outputs[index] = operands[operand].copy_(outputs[index])
        except RuntimeError as error:
            raise refusals.writes(definition.name) from error
    return forward.output(tuple(outputs))
