"""Several calls as one: arguments stacked along a dimension of their own, through vmap and through a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pullback.battery.leaves import copy_of, is_dense, is_float, replace
from pullback.battery.raised import RAISED, BackwardRaised
from pullback.battery.subject import Case, Inputs, Leaf, Output, Subject, outputs_in

_SIZES = (3, 2, 5, 4, 7)
_SHRINK = 1 / 16
_ALONE_UP_TO = 4
"""Of that many tensors each is batched alone, and each is left out alone."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A case, several times over.

    Attributes:
        case: The case; entry 0 is the case itself, entry k has its floating tensors shrunk by k sixteenths.
        dims: Along which dimension each tensor is batched, by its name; None for those that all entries share.
        size: How many entries there are.
    """

    case: Case
    dims: Mapping[str, int | None]
    size: int

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
    for chosen in _arrangements(leaves):
        dims = {name: chosen.get(name) for name in names}
        if dims not in seen:
            seen.append(dims)
            yield Batch(case, dims, size)


def _arrangements(leaves: Sequence[Leaf]) -> Iterator[dict[str, int]]:
    """Name -> dimension; -1 isn't used, since a class's own vmap is told the dimension counted from the front."""
    first = {leaf.name: 0 for leaf in leaves}
    last = {leaf.name: leaf.tensor.dim() for leaf in leaves}
    yield first
    yield last
    if len(leaves) <= _ALONE_UP_TO:
        yield from ({leaf.name: 0} for leaf in leaves)
        yield from ({name: 0 for name in first if name != leaf.name} for leaf in leaves if len(leaves) > 1)
    yield {leaf.name: (last if place % 2 else first)[leaf.name] for place, leaf in enumerate(leaves)}


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


def by_loop(
    subject: Subject, batch: Batch, cotangents: Sequence[torch.Tensor] = (), positions: Sequence[int] = ()
) -> tuple[tuple[Output, ...], dict[str, torch.Tensor]]:
    """The outputs entry by entry, stacked; and the gradients, summed for tensors that all entries share.

    Raises:
        ForwardRaised: If forward refuses an entry.
        BackwardRaised: If backward does.
    """
    rows: list[tuple[Output, ...]] = []
    gradients: dict[str, list[torch.Tensor]] = {}
    for number in range(batch.size):
        inputs = subject.fresh(batch.case, change=lambda name, t, k=number: batch.entry(name, t, k))  # type: ignore[misc]  # k is bound
        outputs = subject.call(inputs)
        rows.append(outputs)
        if positions:
            chosen = [outputs[position] for position in positions]
            found = subject.gradients(chosen, [c[number] for c in cotangents], inputs.varying)
            for leaf, gradient in zip(inputs.varying, found, strict=True):
                gradient = torch.zeros_like(leaf.tensor) if gradient is None else gradient
                gradients.setdefault(leaf.name, []).append(gradient.detach())
    values = tuple(
        Output(row[0].name, torch.stack([o.tensor.detach() for o in row])) for row in zip(*rows, strict=True)
    )
    together = {}
    for name, parts in gradients.items():
        dim = batch.dims.get(name)
        together[name] = torch.stack(parts).sum(0) if dim is None else torch.stack(parts, dim)
    return values, together


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
