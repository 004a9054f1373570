"""Many cotangents at once: ``torch.autograd.grad`` with ``is_grads_batched=True``, or inside of vmap.

PyTorch then hands backward wrappers whose graph can't be seen from outside, and drops the nodes that are put on them:
no probe finds anything, no guard holds. So backward is judged on one plain cotangent first, and raises at once or runs
on the batch with all connected that was cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pullback.errors import HigherOrderError
from pullback.transforms import failures
from pullback.transforms.connect import judged
from pullback.transforms.graph import corrected, has_nonzero
from pullback.transforms.modes import CannotReplayError
from pullback.transforms.probes import Run
from pullback.transforms.replay import traced_gradients
from pullback.transforms.state import State


def batched_gradients(state: State) -> tuple[Tensor | None, ...]:
    """The gradients for a batch of cotangents, differentiable exactly.

    Raises:
        HigherOrderError: PB206, PB207 or PB221, where that would take a node on the gradients.
    """
    definition = state.plan.definition
    given = definition.surrogate or definition.reference
    role = "surrogate" if definition.surrogate is not None else "reference"
    # What holds for one cotangent holds for each of a batch.
    one = tuple(
        None if grad is None else torch.ones(grad.shape, dtype=grad.dtype, device=grad.device) for grad in state.grads
    )
    single = replace(state, grads=one)
    if given is not None and definition.double_backward is None:
        try:
            traced = traced_gradients(state, given, state.grads)
            _agreeing(single, traced, role)
            return _corrected(state, traced)
        except CannotReplayError as reason:
            raise _refused(state, "PB207", f"the {role} can't be run, as {reason}") from None
    if definition.double_backward is not None or definition.once_differentiable:
        how = "double_backward" if definition.double_backward is not None else "once_differentiable"
        raise _refused(state, "PB207", f"{how} needs a node that is dropped there")
    found = judged(single, Run(State.backward, one, state.needs, "backward"))
    for failure in found.failed.values():
        raise failure()
    if found.traced:
        return _corrected(state, traced_gradients(state, None, state.grads))
    return found.state.backward(state.grads)


def _agreeing(single: State, traced: Sequence[Tensor | None], role: str) -> None:
    """Raise where backward has a gradient and the reference has none."""
    with torch.no_grad():
        values = single.backward(single.grads)
    for index, (value, path) in enumerate(zip(values, traced, strict=True)):
        if path is None and value is not None and single.needs[index] and has_nonzero(value):
            raise failures.contradicted(single, index, role)()


def _corrected(state: State, traced: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The author's values with the derivatives of the reference's gradients."""
    with torch.no_grad():
        values = state.backward(state.grads)
    return tuple(
        value if value is None or path is None else corrected(value, path)
        for value, path in zip(values, traced, strict=True)
    )


def _refused(state: State, code: str, why: str) -> HigherOrderError:
    return HigherOrderError(
        code,
        f"the gradients of {state.plan.definition.name} are asked for a batch of cotangents, to be differentiated; "
        f"{why}.",
        expected="one cotangent at a time, or gradients that aren't differentiated",
        got="is_grads_batched with create_graph",
        remedy="Take the gradients in a loop over the cotangents.",
    )
