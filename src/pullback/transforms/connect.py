"""Gradients that can be differentiated exactly, or that raise when they are.

backward is run on probes, which tell what each gradient depends on (NOTE [probes]). What is cut off is connected by
running forward again; what is opaque is differentiated through forward, where the two agree; the rest is guarded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pullback.errors import HigherOrderError, PullbackError
from pullback.transforms import failures
from pullback.transforms.failures import Failure
from pullback.transforms.graph import guard, has_nonzero, substitute
from pullback.transforms.modes import CannotReplayError
from pullback.transforms.probes import Result, Run, numeric_sources, probed, unfollowed, untraced
from pullback.transforms.replay import agree, fitted, replay, same, traced_gradients
from pullback.transforms.state import Hidden, State


@dataclass(frozen=True)
class Judgement:
    """What is known of the results of one run.

    Attributes:
        state: The call, with what could be connected.
        results: The results; None for those that are None or don't matter.
        failed: Those whose derivative isn't known, and what to raise for them.
        traced: For those that are opaque and that autograd gets through forward, the gradients that it has.
    """

    state: State
    results: Sequence[Result | None]
    failed: Mapping[int, Failure]
    traced: Mapping[int, Tensor]


def judged(state: State, run: Run, *, unusable: str = "") -> Judgement:
    """Run the method, connect what can be connected, and tell what can't.

    Args:
        state: The call.
        run: What to run.
        unusable: Why the derivative that the author declared can't be used. The declaration may be there because
            backward cuts something off that the graph doesn't show, so what the numbers depend on is looked at too.
    """
    results, blocked = _first(state, run)
    hidden = {entry for result in results if result for entry in result.hidden}
    failed: dict[int, Failure] = {}
    if hidden:
        try:
            state, results = _replayed(state, run, hidden)
        except (CannotReplayError, HigherOrderError) as error:
            results = [result and replace(result, hidden=result.hidden - state.presumed) for result in results]
            failed = _cut_off(state, run, results, error)
    opaque = set(_opaque(state, run, results)) | (untraced(state, run) if unusable else set())
    traced, reason = _through_forward(state, run, results, sorted(opaque - set(failed)))
    for index, result in enumerate(results):
        if result and state.numbers and result.linear:
            why = "a Python number has no place in a graph"
            failed[index] = failures.cut_off(state, run, index, state.numbers, why)
        elif result and index in opaque and index not in traced and index not in failed:
            failed[index] = failures.opaque(state, run, index, unusable or reason or blocked, linked=result.linear)
    return Judgement(state, results, failed, traced)


def connected(state: State, run: Run, *, unusable: str = "") -> tuple[Tensor | None, ...]:
    """The results of `run`, each differentiable exactly, or guarded by an error that says why it isn't."""
    found = judged(state, run, unusable=unusable)
    finished: list[Tensor | None] = []
    for index, result in enumerate(found.results):
        if result is None:
            finished.append(None)
        elif index in found.failed:
            finished.append(guarded(state, result.tensor, found.failed[index]))
        elif index in found.traced:
            value = fitted(result.tensor.detach(), found.traced[index])
            finished.append(substitute(value, found.traced[index]))
        else:
            finished.append(result.tensor if result.grounded else result.tensor.detach())
    return tuple(finished)


def guarded(state: State, value: Tensor, failure: Failure) -> Tensor:
    """`value`, which raises when it is differentiated; at once, where no guard can lie on the path to an argument."""
    if not state.covered:
        raise failure()
    return guard(value.detach(), failure, state.anchors)


def _first(state: State, run: Run) -> tuple[list[Result | None], str]:
    """The results on probes; and, where the probes got in the author's way, how."""
    try:
        results = probed(state, run, state.hidden, copies=bool(state.hidden))
    except PullbackError:
        raise
    except Exception as error:
        there = _on_what_is_there(state, run)
        if there is not None:
            return there, ""
        if any(grad is not None and grad.requires_grad for grad in run.cotangents):
            raise
        # It can't take cotangents that require grad; those that it was called with don't, so it has to work.
        values = _plainly(state, run)
        return [unfollowed(value, needed) for value, needed in zip(values, run.needed, strict=True)], repr(error)
    if not any(hidden.path for hidden in state.hidden):
        return results, ""
    # What is kept on ctx may be a function or a graph: other tensors can be put into it, and change nothing.
    triples = zip(results, _plainly(state, run), run.needed, strict=True)
    return [result if _has(result, value) else unfollowed(value, needed) for result, value, needed in triples], ""


def _on_what_is_there(state: State, run: Run) -> list[Result | None] | None:
    """The results where backward asks for more than values: for a graph that forward has left on ctx, for instance."""
    if not state.hidden:
        return None
    try:
        results = probed(state, run, ())
    except Exception:
        return None
    return [result and replace(result, hidden=frozenset(state.hidden)) for result in results]


def _plainly(state: State, run: Run) -> tuple[Tensor | None, ...]:
    with torch.no_grad():
        return run.method(state, run.cotangents)


def _has(result: Result | None, value: Tensor | None) -> bool:
    return value is None or (result is not None and same(value, result.tensor))


def _replayed(state: State, run: Run, hidden: Iterable[Hidden]) -> tuple[State, list[Result | None]]:
    """The call with `hidden` connected, and the results on it."""
    again = replay(state, hidden)
    try:
        return again, probed(again, run, ())
    except Exception as error:
        what = f"{run.name}, run on what the replay saved, raised {error!r}"
        raise CannotReplayError(what) from error


def _cut_off(
    state: State, run: Run, results: Sequence[Result | None], error: CannotReplayError | HigherOrderError
) -> dict[int, Failure]:
    found: dict[int, Failure] = {}
    for index, result in enumerate(results):
        if result and result.hidden:
            found[index] = (
                failures.cut_off(state, run, index, result.hidden, error)
                if isinstance(error, CannotReplayError)
                else failures.differs(error)
            )
    return found


def _opaque(state: State, run: Run, results: Sequence[Result | None]) -> list[int]:
    """The results that were computed where autograd can't follow."""
    found, numbers = [], None
    nonlinear = state.plan.definition.nonlinear_backward
    for index, result in enumerate(results):
        if result is None or result.hidden or (result.linear and not result.broken):
            continue
        opaque = result.broken
        if not opaque and not nonlinear:
            opaque = has_nonzero(result.tensor)
        if not opaque:
            numbers = numeric_sources(state, run) if numbers is None else numbers
            opaque = bool(numbers[index])
        if opaque:
            found.append(index)
    return found


def _through_forward(
    state: State, run: Run, results: Sequence[Result | None], opaque: Sequence[int]
) -> tuple[dict[int, Tensor], CannotReplayError | None]:
    """Differentiable twins of opaque gradients, by autograd through forward, where the two agree in value."""
    definition = state.plan.definition
    meant_to_differ = definition.surrogate is not None or definition.nonlinear_backward
    if not opaque or run.name != "backward" or meant_to_differ:
        return {}, None
    try:
        gradients = traced_gradients(state, None, run.cotangents)
    except CannotReplayError as reason:
        return {}, reason.released()
    found = {}
    for index in opaque:
        result, gradient = results[index], gradients[index]
        if result is not None and gradient is not None and agree(result.tensor, gradient):
            found[index] = gradient
    return found, None
