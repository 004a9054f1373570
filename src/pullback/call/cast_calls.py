"""Calls of a class that declares ``cast_inputs``, where autocast is on (NOTE [cast outside] in `casting.py`)."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import Tensor

from pullback.call.casting import autocast_off, cast_arguments
from pullback.call.outputs import nested
from pullback.call.plan import Plan, ReturnedNest
from pullback.call.router import routed
from pullback.define.definition import Definition
from pullback.errors import AutocastError
from pullback.torch_private import unwrap_if_dead, version_of


class NotTakenError(Exception):
    """forward can't take the arguments of a call."""


def cast_call(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call outside of torch.func, with its tensors cast, those in containers too.

    Raises:
        NotTakenError: forward can't take these arguments.
        AutocastError: PB521, forward wrote to the copy of an argument.
    """
    route = routed(plan, args, kwargs, every_tensor=True)
    if route is None:
        raise NotTakenError
    leaves = tuple([unwrap_if_dead(leaf) if isinstance(leaf, Tensor) else leaf for leaf in route.arguments])
    with CastLeaves(route.plan, leaves) as cast:
        if all(map(is_, cast, route.arguments)):  # forward may as well have the caller's own containers
            route = routed(plan, args, kwargs) or route
            return nested(route.plan.call(*route.arguments))
        output = route.plan.call(*cast)
        if torch.is_inference_mode_enabled():  # nothing counts writes there, but what was written to is returned
            _returned(route.plan.definition, leaves, cast, output)
    return nested(output)


class CastLeaves:
    """Gives the arguments of a flat call, cast, and has autocast off while the block runs.

    Args:
        plan: What runs the call; it declares ``cast_inputs``.
        leaves: Its arguments.

    Raises:
        AutocastError: PB521, at the end of the block: forward wrote to the copy of an argument.
    """

    def __init__(self, plan: Plan, leaves: tuple[Any, ...]) -> None:
        self._definition, self._leaves = plan.definition, leaves
        self._off = autocast_off()

    def __enter__(self) -> tuple[Any, ...]:
        assert self._definition.cast_inputs is not None
        cast = cast_arguments(self._definition.cast_inputs, self._leaves)
        self._copies = {index: copy for index, copy in enumerate(cast) if copy is not self._leaves[index]}
        self._versions = {index: version_of(copy) for index, copy in self._copies.items()}
        self._off.__enter__()
        return cast

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        self._off.__exit__(kind, error, traceback)
        if error is None or isinstance(error, ReturnedNest):
            for index, copy in self._copies.items():
                if version_of(copy) != self._versions[index]:
                    raise lost(self._definition, self._definition.argument_name(index))


def _returned(definition: Definition, leaves: tuple[Any, ...], cast: tuple[Any, ...], output: Any) -> None:
    for entry in output if isinstance(output, tuple) else (output,):
        for index, copy in enumerate(cast):
            if entry is copy and copy is not leaves[index]:
                raise lost(definition, definition.argument_name(index))


def lost(definition: Definition, name: str) -> AutocastError:
    """The error for a write to the argument `name`, of which forward had a copy."""
    dtype = str(definition.cast_inputs)
    return AutocastError(
        "PB521",
        f"{definition.name}.forward writes to {name}, which cast_inputs had cast: the write went to a copy, and {name} "
        "is as it was.",
        expected=f"a forward that writes to none of the arguments that are cast, or {name} in {dtype} already",
        got=f"a write to a copy of {name} in {dtype}",
        remedy=f"Return a new tensor in place of {name}, or call it under torch.autocast(..., enabled=False).",
    )
