"""Running backward so that its result can be differentiated, and knowing whether that derivative is complete.

backward is run in grad mode on probes: every tensor that is cut off from the graph gets a node of its own, and so does
every cotangent. A walk over the graph of each result then tells which of them it depends on (NOTE [probes]).

NOTE [probes]: a result that depends on a cut-off tensor would lose that part of its derivative in silence: forward is
run again to connect the tensor, or the result is guarded. A nonzero result that depends on no cotangent was computed
where autograd can't follow, since a vector-Jacobian product is linear in its cotangents. A result that depends on
neither is exact as it is, whatever else was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.errors import HigherOrderError
from pullback.transforms.graph import Reach, alias, guard, source, substitute
from pullback.transforms.replay import CannotReplayError, replay, same, traced_gradients
from pullback.transforms.state import Hidden, State

# An opaque backward is differentiated through forward only where the two agree this closely, in roundings.
_AGREEMENT = 1e4


@dataclass(frozen=True)
class Run:
    """One of the author's methods, to be run with `cotangents`.

    Attributes:
        method: Takes a state and cotangents; returns one gradient or None for each of `needed`.
        cotangents: What it is linear in.
        needed: Which of its results matter.
        name: ``backward`` or ``double_backward``.
    """

    method: Callable[[State, Sequence[Tensor | None]], tuple[Tensor | None, ...]]
    cotangents: tuple[Tensor | None, ...]
    needed: tuple[bool, ...]
    name: str


def connected(state: State, run: Run) -> tuple[Tensor | None, ...]:
    """The results of `run`, each differentiable exactly, or guarded by an error that says why it isn't."""
    results = _probed(state, run, state.hidden)
    wanted = {hidden for result in results if result for hidden in result.hidden}
    failures: dict[int, Callable[[], HigherOrderError]] = {}
    if wanted:
        try:
            results = _probed(replay(state, wanted), run, ())
        except CannotReplayError as reason:
            for index, result in enumerate(results):
                if result and result.hidden:
                    failures[index] = _cut_off(state, run, index, result.hidden, str(reason))
    opaque = [index for index, result in enumerate(results) if result and _opaque(state, run, index, result)]
    traced = _through_forward(state, run, opaque)
    finished: list[Tensor | None] = []
    for index, result in enumerate(results):
        if result is None:
            finished.append(None)
        elif index in traced:
            finished.append(substitute(result.tensor.detach(), traced[index]))
        elif index in failures or index in opaque:
            failure = failures.get(index) or _opaque_failure(state, run, index)
            finished.append(_guarded(state, result.tensor, failure))
        else:
            finished.append(result.tensor if result.grounded else result.tensor.detach())
    return tuple(finished)


@dataclass(frozen=True)
class _Result:
    """One result of a run: the tensor, what cut-off tensors it depends on, and what a walk over its graph found."""

    tensor: Tensor
    hidden: frozenset[Hidden]
    linear: bool
    grounded: bool
    broken: bool


def _probed(state: State, run: Run, hidden: Iterable[Hidden]) -> list[_Result | None]:
    probes = {entry: source(state.value(entry)) for entry in hidden}
    cotangents = [
        None if grad is None else alias(grad) if grad.requires_grad else source(grad) for grad in run.cotangents
    ]
    marks = {probe.grad_fn: entry for entry, probe in probes.items()}
    linear = {grad.grad_fn for grad in cotangents if grad is not None}
    results: list[_Result | None] = []
    returned = run.method(state.with_hidden(probes), cotangents)
    for result, needed in zip(returned, run.needed, strict=True):
        if result is None or not needed:
            results.append(None)
            continue
        reach = Reach(result, (*marks, *linear), state.edge)
        on = frozenset(marks[node] for node in reach.found if node in marks)
        from_cotangent = any(node in linear for node in reach.found)
        live = {
            grad.grad_fn
            for grad, given in zip(cotangents, run.cotangents, strict=True)
            if grad is not None and given is not None and given.requires_grad
        }
        grounded = reach.grounded or bool(live & reach.found) or bool(on)
        results.append(_Result(result, on, from_cotangent, grounded, reach.broken))
    return results


def _opaque(state: State, run: Run, index: int, result: _Result) -> bool:
    if result.broken:
        return True
    if result.linear or result.hidden or state.plan.definition.nonlinear_backward:
        return False
    known = state.plan.opaque
    if run.name == "backward" and index in known:
        return True
    # Zero is what a linear map of nothing gives: no derivative is lost.
    opaque = bool(torch.count_nonzero(result.tensor.detach()))
    if opaque and run.name == "backward":
        known.add(index)
    return opaque


def _through_forward(state: State, run: Run, opaque: Sequence[int]) -> dict[int, Tensor]:
    """Differentiable twins of opaque gradients, by autograd through forward, where the two agree in value."""
    if not opaque or run.name != "backward":
        return {}
    try:
        gradients = traced_gradients(state, None, run.cotangents)
    except CannotReplayError:
        return {}
    with torch.no_grad():
        values = run.method(state, run.cotangents)
    found = {}
    for index in opaque:
        value, gradient = values[index], gradients[index]
        if value is not None and gradient is not None and same(value, gradient, _AGREEMENT):
            found[index] = gradient
    return found


def _guarded(state: State, value: Tensor, failure: Callable[[], HigherOrderError]) -> Tensor:
    if not state.covered:
        raise failure()
    return guard(value.detach(), failure, state.anchors)


def _cut_off(
    state: State, run: Run, index: int, hidden: Iterable[Hidden], reason: str
) -> Callable[[], HigherOrderError]:
    name, what = state.plan.definition.name, ", ".join(sorted(str(entry) for entry in hidden))
    result = _result_name(state, run, index)

    def failure() -> HigherOrderError:
        return HigherOrderError(
            "PB206",
            f"{result} that {name}.{run.name} returns is being differentiated, and it depends on {what}, which forward "
            f"computed and the graph doesn't know; {reason}.",
            expected="saved tensors that are arguments or outputs, or a forward that can be run again to connect them",
            got=f"{what}, cut off from the graph",
        )

    return failure


def _opaque_failure(state: State, run: Run, index: int) -> Callable[[], HigherOrderError]:
    name, result = state.plan.definition.name, _result_name(state, run, index)

    def failure() -> HigherOrderError:
        return HigherOrderError(
            "PB207",
            f"{result} that {name}.{run.name} returns is being differentiated, and autograd can't follow how it was "
            "computed.",
            expected="a result that is made from grad_output by PyTorch operations",
            got="a nonzero tensor without a path to any grad_output",
            remedy="Write double_backward, or give a reference in plain PyTorch.",
        )

    return failure


def _result_name(state: State, run: Run, index: int) -> str:
    if run.name == "double_backward":
        outputs = len(state.grads)
        if index < outputs:
            return f"the gradient for grad_output {index}"
        index -= outputs
    return f"the gradient of {state.name(index)}"
