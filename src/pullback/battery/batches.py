"""Several calls as one: arguments stacked along a dimension of their own, through vmap and through a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Any

import torch

from pullback.battery.budgets import Shake
from pullback.battery.leaves import copy_of, is_dense, is_float, replace
from pullback.battery.oracle import moved
from pullback.battery.own import Own
from pullback.battery.raised import RAISED, BackwardRaised
from pullback.battery.subject import Case, Inputs, Leaf, Output, Subject, outputs_in

_SIZES = (3, 2, 5, 4, 7)
_SHRINK = 1 / 16
_LOOPS = "loops of a batch"
"""Under what key the cache has the loops of the case at hand."""

_ALONE_UP_TO = 4
"""Of that many tensors each is batched alone, and each is left out alone."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A case, several times over.

    Attributes:
        case: The case; entry 0 is the case itself, entry k has its floating tensors shrunk by k sixteenths.
        dims: Along which dimension each tensor is batched, by its name; None for those that all entries share.
        size: How many entries there are.
        way: What is batched along which dimension, in words that samples of other shapes share.
    """

    case: Case
    dims: Mapping[str, int | None]
    size: int
    way: str = ""

    @property
    def label(self) -> str:
        """``x along 0, w not batched``."""
        told = [f"{name} {f'along {dim}' if dim is not None else 'not batched'}" for name, dim in self.dims.items()]
        return f"vmap with {', '.join(told)}"

    def entry(self, name: str, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """The tensor called `name` in one entry."""
        if self.dims.get(name) is None or not is_float(tensor):
            return tensor
        return tensor * (1 - number * _SHRINK)

    def stacked(self, leaf: Leaf) -> torch.Tensor:
        """The tensor that vmap gets."""
        dim = self.dims.get(leaf.name)
        entries = [self.entry(leaf.name, leaf.tensor.detach(), number) for number in range(self.size)]
        return copy_of(leaf.tensor) if dim is None else torch.stack(entries, dim)


def batches(subject: Subject, case: Case) -> Iterator[Batch]:
    """Ways to batch the arguments: all along the first dimension, all along the last, each alone, each left out."""
    leaves = batchable(subject.fresh(case, requires=()))
    names = [leaf.name for leaf in leaves]
    taken = {size for leaf in leaves for size in leaf.tensor.shape}
    size = next(size for size in (*_SIZES, max(taken, default=0) + 1) if size not in taken)
    seen: list[dict[str, int | None]] = []
    for way, chosen in _arrangements(leaves):
        dims = {name: chosen.get(name) for name in names}
        if dims not in seen:
            seen.append(dims)
            yield Batch(case, dims, size, way)


def _arrangements(leaves: Sequence[Leaf]) -> Iterator[tuple[str, dict[str, int]]]:
    """Name -> dimension; -1 isn't used, since a class's own vmap is told the dimension counted from the front."""
    first = {leaf.name: 0 for leaf in leaves}
    last = {leaf.name: leaf.tensor.dim() for leaf in leaves}
    yield "all along the first", first
    yield "all along the last", last
    if len(leaves) <= _ALONE_UP_TO:
        yield from ((f"{leaf.name} alone", {leaf.name: 0}) for leaf in leaves)
        for leaf in leaves if len(leaves) > 1 else ():
            yield f"all but {leaf.name}", {name: 0 for name in first if name != leaf.name}
    yield "by turns", {leaf.name: (last if place % 2 else first)[leaf.name] for place, leaf in enumerate(leaves)}


def batchable(inputs: Inputs) -> tuple[Leaf, ...]:
    """The tensors that can be stacked, and exchanged in the arguments."""
    found: set[int] = set()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.add(id(tensor))
        return tensor

    replace((inputs.args, inputs.kwargs), note)
    return tuple(leaf for leaf in inputs.leaves if id(leaf.tensor) in found and is_dense(leaf.tensor))


@dataclass(frozen=True, eq=False)
class Through:
    """What came out of one way to run a batch: the outputs, each with the batch in front, and how to differentiate.

    Attributes:
        outputs: The outputs.
        leaves: The tensors that require grad, batched ones with their batch.
    """

    outputs: tuple[Output, ...]
    leaves: tuple[Leaf, ...]


def by_vmap(subject: Subject, batch: Batch, *, randomness: str = "error") -> Through:
    """The batch as one call under vmap.

    Raises:
        ForwardRaised: If that raises.
    """
    inputs = subject.fresh(batch.case, requires=())
    leaves = batchable(inputs)
    stacked = tuple(_tracked(batch.stacked(leaf), leaf.name in batch.case.varying) for leaf in leaves)
    names: list[str] = []

    def one(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = _outputs(subject, inputs, leaves, tensors)
        names[:] = [output.name for output in outputs]
        return tuple(output.tensor for output in outputs)

    in_dims = tuple(batch.dims[leaf.name] for leaf in leaves)
    function = torch.vmap(one, in_dims=in_dims, randomness=randomness)
    found = subject.raw_call(Inputs(stacked, {}, ()), function)
    varying = [Leaf(leaf.name, t, leaf.argument) for leaf, t in zip(leaves, stacked, strict=True) if t.requires_grad]
    return Through(tuple(Output(name, t) for name, t in zip(names, found, strict=True)), tuple(varying))


Calls = tuple[tuple[Inputs, tuple[Output, ...]], ...]
"""The arguments and outputs of each entry."""


@dataclass(eq=False)
class Loop:
    """A batch entry by entry, which serves all ways to batch the same tensors: they differ in where the batch is put.

    Attributes:
        values: The outputs, stacked in front.
        calls: The calls whose backward is still to come, if any.
    """

    values: tuple[Output, ...]
    calls: Calls
    _cotangents: dict[tuple[int, ...], list[torch.Tensor]] = field(default_factory=dict)
    _parts: dict[tuple[int, ...], dict[str, list[torch.Tensor]]] = field(default_factory=dict)

    def cotangents(self, subject: Subject, positions: tuple[int, ...]) -> list[torch.Tensor]:
        """Random ones for the outputs at some positions, the batch in front; the same whenever they are asked for."""
        if positions not in self._cotangents:
            self._cotangents[positions] = [subject.cotangent(self.values[position].tensor) for position in positions]
        return self._cotangents[positions]

    def gradients(self, subject: Subject, batch: Batch, positions: tuple[int, ...]) -> dict[str, torch.Tensor]:
        """The gradients for these cotangents as vmap gives them for `batch`, summed for what all entries share.

        Raises:
            BackwardRaised: If backward refuses an entry.
        """
        if positions not in self._parts:
            self._parts[positions] = self._pulled(subject, batch, positions)
        together = {}
        for name, parts in self._parts[positions].items():
            dim = batch.dims.get(name)
            together[name] = torch.stack(parts).sum(0) if dim is None else torch.stack(parts, dim)
        return together

    def _pulled(self, subject: Subject, batch: Batch, positions: tuple[int, ...]) -> dict[str, list[torch.Tensor]]:
        calls, self.calls = self.calls or _calls(subject, batch), ()
        parts: dict[str, list[torch.Tensor]] = {}
        for number, (inputs, outputs) in enumerate(calls):
            chosen = [outputs[position] for position in positions]
            cotangents = [c[number] for c in self.cotangents(subject, positions)]
            found = subject.gradients(chosen, cotangents, inputs.varying)
            for leaf, gradient in zip(inputs.varying, found, strict=True):
                gradient = torch.zeros_like(leaf.tensor) if gradient is None else gradient
                parts.setdefault(leaf.name, []).append(gradient.detach())
        return parts


def by_loop(subject: Subject, batch: Batch) -> Loop:
    """The batch as one call for each entry; it is run once for all ways to batch the same tensors of a case.

    Raises:
        ForwardRaised: If forward refuses an entry.
    """
    case, known = subject.cache.get(_LOOPS, (None, {}))
    if case is not batch.case:
        known = {}
        subject.cache[_LOOPS] = batch.case, known  # those of the case before are let go
    key = (frozenset(name for name, dim in batch.dims.items() if dim is not None), batch.size)
    if key not in known:
        known[key] = _looped(_calls(subject, batch))
    loop: Loop = known[key]
    return loop


def own_results(subject: Subject, batch: Batch, loop: Loop, positions: tuple[int, ...]) -> Own:
    """What the loop gave, to be compared with what vmap gives: outputs, and gradients where there are positions."""

    def again(shake: Shake) -> dict[str, torch.Tensor | None]:
        rounded = replace_fields(batch, case=moved(subject, batch.case, lambda _, t: shake.rounded(t)))
        shaken = _looped(_calls(subject, rounded))
        given = [shake.rounded(c) for c in loop.cotangents(subject, positions)]
        return _named(Loop(shaken.values, shaken.calls, {positions: given}), subject, rounded, positions)

    return Own(subject, batch.case, _named(loop, subject, batch, positions), again)


def _named(loop: Loop, subject: Subject, batch: Batch, positions: tuple[int, ...]) -> dict[str, torch.Tensor | None]:
    gradients = loop.gradients(subject, batch, positions) if positions else {}
    return {**{output.name: output.tensor for output in loop.values}, **gradients}


def _looped(calls: Calls) -> Loop:
    rows = zip(*(outputs for _, outputs in calls), strict=True)
    return Loop(tuple(Output(row[0].name, torch.stack([o.tensor.detach() for o in row])) for row in rows), calls)


def _calls(subject: Subject, batch: Batch) -> Calls:
    calls = []
    for number in range(batch.size):
        inputs = subject.fresh(batch.case, change=lambda name, t, k=number: batch.entry(name, t, k))  # type: ignore[misc]  # k is bound
        calls.append((inputs, subject.call(inputs)))
    return tuple(calls)


def inside_vmap(
    subject: Subject, batch: Batch, cotangents: Sequence[torch.Tensor], positions: Sequence[int]
) -> dict[str, torch.Tensor]:
    """The gradients taken inside vmap: vmap of a vjp; one for each entry, summed for what all entries share.

    Raises:
        BackwardRaised: If that raises.
    """
    inputs = subject.fresh(batch.case, requires=())
    leaves = batchable(inputs)
    varying = [place for place, leaf in enumerate(leaves) if leaf.name in batch.case.varying and is_float(leaf.tensor)]

    def pulled(given: tuple[torch.Tensor, ...], *tensors: torch.Tensor) -> Any:
        def chosen(*moving: torch.Tensor) -> tuple[torch.Tensor, ...]:
            passed = list(tensors)
            for place, tensor in zip(varying, moving, strict=True):
                passed[place] = tensor
            outputs = _outputs(subject, inputs, leaves, passed)
            return tuple(outputs[position].tensor for position in positions)

        pull: Any = torch.func.vjp(chosen, *(tensors[place] for place in varying))[1]
        return pull(given)

    in_dims = (0, *(batch.dims[leaf.name] for leaf in leaves))
    stacked = [batch.stacked(leaf) for leaf in leaves]
    subject.reseed()
    try:
        found = torch.vmap(pulled, in_dims=in_dims)(tuple(cotangents), *stacked)
    except RAISED as error:
        raise BackwardRaised(error) from error
    together = {}
    for place, gradient in zip(varying, found, strict=True):
        dim = batch.dims[leaves[place].name]
        together[leaves[place].name] = gradient.detach().sum(0) if dim is None else gradient.detach().movedim(0, dim)
    return together


def _outputs(
    subject: Subject, inputs: Inputs, leaves: Sequence[Leaf], tensors: Sequence[torch.Tensor]
) -> tuple[Output, ...]:
    """What the function returns with `tensors` in place of the leaves."""
    swap = {id(leaf.tensor): tensor for leaf, tensor in zip(leaves, tensors, strict=True)}
    args, kwargs = (replace(nest, lambda t: swap.get(id(t), t)) for nest in (inputs.args, inputs.kwargs))
    return outputs_in(subject.callable(*args, **kwargs))


def _tracked(tensor: torch.Tensor, wanted: bool) -> torch.Tensor:
    return tensor.detach().requires_grad_(wanted and is_float(tensor))
