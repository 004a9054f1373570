"""What the result of a backward depends on, as the graph has it and as the numbers have it.

NOTE [probes]: backward is run in grad mode on probes. Every tensor that may be cut off from the graph gets a node of
its own, and so does every cotangent; a walk over the graph of each result then tells which of them it depends on. A
result that depends on a cut-off tensor would lose that part of its derivative in silence. One that depends on no
cotangent was computed where autograd can't follow, since a vector-Jacobian product is linear in its cotangents. One
that depends on neither is exact as it is, whatever else was saved.

NOTE [numbers]: a result of zeros depends on nothing in the graph, and may be a plain ``torch.zeros_like`` or the value
of an opaque gradient at a point where it vanishes. Which of the two shows when the operations themselves are watched,
as they are for forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pullback.call.dependence import Dependence, is_smooth
from pullback.transforms.graph import Reach, alias, source
from pullback.transforms.state import Hidden, State


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


@dataclass(frozen=True)
class Result:
    """One result of a run.

    Attributes:
        tensor: The result, with its graph.
        hidden: The tensors that may be cut off and that it depends on.
        linear: Whether it depends on a cotangent.
        grounded: Whether it depends on anything that requires grad, `hidden` apart.
        broken: Whether an operator without a derivative, or a detached copy, lies between.
        leaves: The nodes of leaves that it depends on and that are neither arguments nor cotangents.
    """

    tensor: Tensor
    hidden: frozenset[Hidden]
    linear: bool
    grounded: bool
    broken: bool
    leaves: frozenset[Any]


def unfollowed(value: Tensor | None, needed: bool) -> Result | None:
    """A value of which nothing is known."""
    if value is None or not needed:
        return None
    return Result(value, frozenset(), linear=False, grounded=False, broken=True, leaves=frozenset())


def probed(state: State, run: Run, hidden: Iterable[Hidden], *, copies: bool = False) -> list[Result | None]:
    """Run the method on probes and walk the graph of each result (NOTE [probes]).

    Args:
        state: The call.
        run: What to run.
        hidden: What to put probes in the place of.
        copies: Whether to hand out copies of the cotangents: another run is to come, and the author may write to them.
    """
    results = _probed(state, run, hidden, copies)
    if not any(result and result.leaves for result in results):
        return results
    # A leaf that another run doesn't meet was made inside the method, as x.detach().requires_grad_() makes one: what
    # is sent back to it goes no further. Leaves from outside, such as captured parameters, are the same each time.
    others = _probed(state, run, hidden, copies)
    lasting = {leaf for other in others if other for leaf in other.leaves}
    return [
        replace(result, broken=True) if result and result.leaves - lasting else result
        for result in results
    ]  # fmt: skip


def _probed(state: State, run: Run, hidden: Iterable[Hidden], copies: bool) -> list[Result | None]:
    probes = {entry: source(state.value(entry)) for entry in hidden}
    cotangents = [_probe(grad, copies) for grad in run.cotangents]
    marks = {probe.grad_fn: entry for entry, probe in probes.items()}
    nodes = [None if grad is None else grad.grad_fn for grad in cotangents]
    linear = {node for node in nodes if node is not None}
    live = {
        node
        for node, grad in zip(nodes, run.cotangents, strict=True)
        if grad is not None and grad.requires_grad
    }  # fmt: skip
    results: list[Result | None] = []
    returned = run.method(state.with_hidden(probes), cotangents)
    for result, needed in zip(returned, run.needed, strict=True):
        if result is None or not needed:
            results.append(None)
            continue
        reach = Reach(result, (*marks, *linear), state.edge)
        on = frozenset(marks[node] for node in reach.found if node in marks)
        grounded = reach.grounded or bool(live & reach.found)
        results.append(
            Result(result, on, bool(linear & reach.found), grounded, reach.broken, frozenset(reach.leaves))
        )  # fmt: skip
    return results


def numeric_sources(state: State, run: Run) -> list[frozenset[int]]:
    """What the numbers of each result vary with, whether the graph has it or not (NOTE [numbers])."""
    given = [tensor for tensor in (*run.cotangents, *state.saved, *state.inputs.values()) if tensor is not None]
    with Dependence(given) as watched:
        returned = run.method(state, run.cotangents)
    return [frozenset() if result is None else watched.of(result) for result in returned]


def untraced(state: State, run: Run) -> set[int]:
    """The results whose numbers vary with a cotangent or a connected tensor that their graph doesn't lead to."""
    places = [k for k, tensor in enumerate(state.saved) if tensor is not None and tensor.requires_grad]
    saved = list(state.saved)
    for place in places:
        tensor = saved[place]
        assert tensor is not None
        saved[place] = alias(tensor)
    cotangents = [_probe(grad) for grad in run.cotangents]
    given = [tensor for tensor in (*cotangents, *(saved[place] for place in places)) if tensor is not None]
    nodes = {tensor.grad_fn: number for number, tensor in enumerate(given)}
    with Dependence(given) as watched:
        returned = run.method(replace(state, saved=tuple(saved)), cotangents)
    found = set()
    for index, (result, needed) in enumerate(zip(returned, run.needed, strict=True)):
        if result is not None and needed:
            reached = {nodes[node] for node in Reach(result, nodes, state.edge).found}
            if watched.of(result) - reached:
                found.add(index)
    return found


def _probe(grad: Tensor | None, copies: bool = False) -> Tensor | None:
    if grad is None or not is_smooth(grad):
        return grad
    if copies:
        return grad.clone() if grad.requires_grad else source(grad.clone())
    return alias(grad) if grad.requires_grad else source(grad)
