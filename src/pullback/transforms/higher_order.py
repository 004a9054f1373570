"""Where the derivative of a derivative comes from.

In this order: double_backward; a surrogate or reference, where one is given; backward itself, when all that it used is
connected to the graph; forward, run again to connect the rest; an error. The values of first gradients always come
from the author's backward.

Nothing here runs unless a gradient is computed with ``create_graph=True``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.call.plan import Plan
from pullback.errors import HigherOrderError
from pullback.transforms.connect import Run, connected
from pullback.transforms.double_backward import with_double_backward
from pullback.transforms.graph import guard, substitute
from pullback.transforms.replay import CannotReplayError, traced_gradients
from pullback.transforms.state import State, state_of


def differentiable_gradients(plan: Plan, ctx: Any, grads: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """The gradients of the node `ctx` for the cotangents `grads`, to be differentiated themselves."""
    if plan.cls.boxed_grads_call:
        (grads,) = (tuple(grads[0]),)
    definition = plan.definition
    state = state_of(plan, ctx, grads)
    if definition.double_backward is not None:
        return with_double_backward(state, _values(state))
    given = definition.surrogate or definition.reference
    why = ""
    if given is not None:
        try:
            return _with_reference(state, given)
        except CannotReplayError as reason:
            why = f"the reference can't be run, as {reason}"
    if definition.once_differentiable or definition.backward is None:
        return _guarded(state, _values(state), _once(state, why))
    return connected(state, Run(State.backward, grads, state.needs, "backward"))


def _values(state: State) -> tuple[Tensor | None, ...]:
    """First-order values, and no graph."""
    with torch.no_grad():
        return state.backward(state.grads)


def _with_reference(state: State, reference: Callable[..., Any]) -> tuple[Tensor | None, ...]:
    """The author's values, differentiated as autograd differentiates the gradients of the reference."""
    traced = traced_gradients(state, reference, state.grads)
    if state.missing:
        raise CannotReplayError(f"{state.name(state.missing[0])} was not saved")
    return tuple(
        value if value is None or path is None else substitute(value, path)
        for value, path in zip(_values(state), traced, strict=True)
    )


def _guarded(
    state: State, values: Sequence[Tensor | None], failure: Callable[[], HigherOrderError]
) -> tuple[Tensor | None, ...]:
    if not state.covered:
        raise failure()
    return tuple(value if value is None else guard(value, failure, state.anchors) for value in values)


def _once(state: State, why: str) -> Callable[[], HigherOrderError]:
    name = state.plan.definition.name

    def failure() -> HigherOrderError:
        return HigherOrderError(
            "PB207",
            f"{name}.backward is marked once_differentiable, and its gradient is being differentiated"
            f"{'; ' + why if why else ''}.",
            expected="double_backward or a reference, which give the second derivative",
            got="neither",
            remedy="Write double_backward, give a reference, or don't ask for the second derivative.",
        )

    return failure
