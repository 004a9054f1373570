"""Where the derivative of a derivative comes from.

In this order: double_backward; a surrogate or reference, where one is given; backward itself, when all that it used is
connected to the graph; forward, run again to connect the rest; an error. The values of first gradients always come
from the author's backward.

Nothing here runs unless a gradient is computed with ``create_graph=True``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pullback.call.plan import Plan
from pullback.transforms import failures
from pullback.transforms.batched import batched_gradients
from pullback.transforms.connect import connected, guarded
from pullback.transforms.double_backward import with_double_backward
from pullback.transforms.graph import has_nonzero, is_batched, substitute
from pullback.transforms.modes import CannotReplayError
from pullback.transforms.probes import Run
from pullback.transforms.replay import alike, cancelled, fitted, traced_gradients
from pullback.transforms.state import State, state_of


def differentiable_gradients(plan: Plan, ctx: Any, grads: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """The gradients of the node `ctx` for the cotangents `grads`, to be differentiated themselves."""
    if plan.definition.boxed:
        (grads,) = (tuple(grads[0]),)
    definition = plan.definition
    state = state_of(plan, ctx, grads)
    if any(map(is_batched, grads)):
        return batched_gradients(state)
    if definition.double_backward is not None:
        return with_double_backward(state, state.values())
    role = "surrogate" if definition.surrogate is not None else "reference"
    given = definition.surrogate or definition.reference
    why = ""
    if given is not None:
        try:
            return _with_reference(state, given, role)
        except CannotReplayError as reason:
            why = f"the {role} can't be run, as {reason}"
    if definition.once_differentiable or definition.backward is None:
        failure = failures.once(state, why)
        return tuple(value if value is None else guarded(state, value, failure) for value in state.values())
    return connected(state, Run(State.backward, grads, state.needs, "backward"), unusable=why)


def _with_reference(state: State, reference: Callable[..., Any], role: str) -> tuple[Tensor | None, ...]:
    """The author's values, differentiated as autograd differentiates the gradients of the reference."""
    if state.missing:
        raise CannotReplayError(f"{state.name(state.missing[0])} was not saved")
    traced = traced_gradients(state, reference, state.grads)
    nonlinear = state.plan.definition.nonlinear_backward
    finished: list[Tensor | None] = []
    for index, (value, path) in enumerate(zip(state.values(), traced, strict=True)):
        if value is None or not state.needs[index]:
            finished.append(None)
        elif path is None:
            lost = has_nonzero(value)
            finished.append(guarded(state, value, failures.contradicted(state, index, role)) if lost else value)
        elif nonlinear or alike(value, path) or cancelled(value, path, state.grads):
            finished.append(substitute(fitted(value, path), path))
        else:
            finished.append(guarded(state, value, failures.disagrees(state, index, role, value, path)))
    return tuple(finished)
