"""What forward left for backward, with each tensor known by its place among the operands and outputs of the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.call.dependence import is_smooth
from pullback.call.kept import replaced
from pullback.call.layout import UNMATERIALIZED, constants_among, tensors_on
from pullback.call.stand_in import ForwardStandIn
from pullback.call.surroundings import Autocast, RngState
from pullback.torch_private import base_of, unwrap_if_dead

Place = tuple[str, int]
"""``operand``, ``output`` or ``own`` (a tensor with a graph of its own, or from outside), and which."""


@dataclass(frozen=True)
class OutputPlace:
    """Stands for a tensor in what forward returned."""

    index: int


_HOLE = torch.empty(0)


@dataclass(frozen=True)
class Around:
    """What was around a run of forward.

    Attributes:
        writes: Whether it changed an operand.
        rng: The random state before it, None where it drew nothing.
        autocast: The state of autocast that it ran under.
    """

    writes: bool = False
    rng: RngState | None = None
    autocast: Autocast = ()


@dataclass(frozen=True, kw_only=True)
class _Left:
    """What forward left on ctx.

    Attributes:
        saved: Where each saved tensor is; None for a saved None.
        saved_forward: The same for ``save_for_forward``.
        own: The tensors that forward left as they are: parameters, and those with a graph that it made itself.
        graphs: What the author calls those with a graph.
        attributes: What was left on ctx, holes for the tensors.
        kept: Where the tensor at each path of the attributes is.
        materialize: Whether undefined cotangents become zeros.
    """

    saved: tuple[Place | None, ...]
    saved_forward: tuple[Place | None, ...]
    own: tuple[Tensor, ...]
    graphs: tuple[str, ...]
    attributes: Mapping[str, Any]
    kept: Mapping[str, Place]
    materialize: bool


@dataclass(frozen=True, kw_only=True)
class Record(_Left):
    """One run of forward: what it left on ctx, and what it returned.

    Attributes:
        outputs: What forward returned, a place for each tensor.
        single: Whether that was one thing by itself, rather than a tuple.
        count: The number of tensors among the outputs; what was saved beside them comes after these.
        total: The number of all of them.
        metas: Shape, dtype and device of each output; None for what isn't a tensor.
        constants: The outputs that have no derivative by declaration.
        dirty: The operands that forward changed, by the output that returns each.
        around: What was around the run.
    """

    outputs: tuple[Any, ...]
    single: bool
    count: int
    total: int
    metas: tuple[tuple[torch.Size, torch.dtype, torch.device] | None, ...]
    constants: frozenset[int]
    dirty: Mapping[int, int]
    around: Around

    @property
    def places(self) -> frozenset[Place]:
        """All that backward may read."""
        return frozenset(place for place in (*self.saved, *self.kept.values()) if place is not None)

    def tensors(self, places: Iterable[Place | None], operands: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """The tensors at `places`."""
        sides = {"operand": operands, "output": outputs, "own": self.own}
        return [None if place is None else sides[place[0]][place[1]] for place in places]

    def called(self, index: int) -> str:
        """What the author calls the tensor that was saved as the output at `index`."""
        place = ("output", index)
        for position, saved in enumerate(self.saved):
            if saved == place:
                return f"saved tensor {position}"
        return next((f"ctx.{path}" for path, kept in self.kept.items() if kept == place), "a saved tensor")

    def attributes_with(self, operands: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        """What was left on ctx, with its tensors."""
        shown = dict(zip(self.kept, self.tensors(self.kept.values(), operands, outputs), strict=True))
        return {name: replaced(name, value, shown) for name, value in self.attributes.items()}


class Places:
    """Gives each tensor of a call its place, and collects those that are neither operands nor outputs.

    Args:
        operands: The operands, each another object.
    """

    def __init__(self, operands: Sequence[Tensor]) -> None:
        self._known: dict[int, Place] = {id(operand): ("operand", index) for index, operand in enumerate(operands)}
        self._alive = [*operands]  # for as long as their identity stands for them
        self.outputs: list[Tensor] = []
        self.own: list[Tensor] = []

    def output(self, tensor: Tensor, stands_for: Tensor | None = None) -> int:
        """The place of an output. What is there already is returned as another tensor on the same memory.

        Args:
            tensor: The output.
            stands_for: The operand that was written to and that the output is a copy of.
        """
        own = _is_own(tensor)
        self.outputs.append(tensor.detach() if own or id(tensor) in self._known else tensor)
        place: Place = ("output", len(self.outputs) - 1)
        if not own:
            self._known.setdefault(id(tensor), place)
        if stands_for is not None:
            self._known[id(stands_for)] = place
        self._alive.append(tensor)
        return len(self.outputs) - 1

    def forget(self, tensor: Tensor) -> None:
        """Give `tensor` a place of its own where it is saved."""
        self._known.pop(id(tensor), None)

    def of(self, tensor: Any) -> Place | None:
        """The place of a tensor; a new one where it has none yet."""
        if not isinstance(tensor, Tensor):
            return None
        if id(tensor) not in self._known:
            self._alive.append(tensor)
            if _is_own(tensor):
                self.own.append(tensor)
                self._known[id(tensor)] = ("own", len(self.own) - 1)
            else:
                # PyTorch turns outputs into results of the call, and this may be a table from outside.
                self.outputs.append(tensor.detach())
                self._known[id(tensor)] = ("output", len(self.outputs) - 1)
        return self._known[id(tensor)]


def read_record(
    ctx: ForwardStandIn, operands: Sequence[Tensor], output: Any, around: Around
) -> tuple[Record, tuple[Tensor, ...]]:
    """The record of a run that left `ctx` and returned `output`, and all its tensors: outputs and what it saved.

    Args:
        ctx: What forward was given as ctx.
        operands: The tensors that it was given.
        output: What it returned.
        around: What was around it.
    """
    single = not isinstance(output, tuple)
    returned = (output,) if single else output
    places = Places(operands)
    changed = {id(tensor) for tensor in ctx.__dict__.get("dirty_tensors") or ()}
    marked = {id(tensor) for tensor in ctx.__dict__.get("non_differentiable") or ()}
    template: list[Any] = []
    constants, dirty = set(), {}
    for entry in returned:
        if not isinstance(entry, Tensor):
            template.append(entry)
            continue
        if id(entry) in changed and any(entry is operand for operand in operands):
            # The operand itself is written to once all levels are done.
            index = places.output(entry.clone(), stands_for=entry)
            dirty[index] = next(k for k, tensor in enumerate(operands) if tensor is entry)
        else:
            index = places.output(entry)
        template.append(OutputPlace(index))
        if id(entry) in marked or not is_smooth(entry):
            constants.add(index)
            if is_smooth(entry):  # backward may read it, and what it reads is differentiated all the same
                places.forget(entry)
    count = len(places.outputs)
    left = _left(ctx, places)
    declared = left.saved[len(left.saved) - constants_among(ctx.__dict__, ctx.to_save) :]
    constants |= {place[1] for place in declared if place and place[0] == "output"}
    record = Record(
        outputs=tuple(template),
        single=single,
        count=count,
        total=len(places.outputs),
        metas=tuple((e.shape, e.dtype, e.device) if isinstance(e, Tensor) else None for e in returned),
        constants=frozenset(constants),
        dirty=dirty,
        around=replace(around, writes=around.writes or bool(changed)),
        **vars(left),
    )
    return record, tuple(places.outputs)


def _left(ctx: ForwardStandIn, places: Places) -> _Left:
    attributes = {name: value for name, value in ctx.__dict__.items() if name not in ctx.OWN}
    saved = tuple(map(places.of, ctx.to_save))
    kept = {path: place for path, tensor in tensors_on(attributes) if (place := places.of(tensor)) is not None}
    saved_forward = tuple(map(places.of, ctx.__dict__.get("saved_for_forward") or ()))
    named = [
        *((f"saved tensor {k}", place) for k, place in enumerate(saved)),
        *((f"ctx.{p}", q) for p, q in kept.items()),
    ]
    kept = {path: place for path, place in kept.items() if place[0] != "own"}
    holes = dict.fromkeys(kept, _HOLE)
    return _Left(
        saved=saved,
        saved_forward=saved_forward,
        own=tuple(places.own),
        graphs=tuple(name for name, place in named if place and place[0] == "own" and _has_graph(places.own[place[1]])),
        attributes={name: replaced(name, value, holes) for name, value in attributes.items()},
        kept=kept,
        materialize=not ctx.__dict__.get(UNMATERIALIZED, False),
    )


def _is_own(tensor: Tensor) -> bool:
    """Whether `tensor` has a graph that isn't this call's: nothing that is computed in no-grad mode has one."""
    if unwrap_if_dead(tensor) is not tensor:
        return True
    # A view that is made in no-grad mode has no graph, and says that it requires grad where its base does.
    base = base_of(tensor) if tensor.requires_grad and tensor.grad_fn is None else None
    return tensor.requires_grad and not (base is not None and base.requires_grad)


def _has_graph(tensor: Tensor) -> bool:
    """Whether there is a graph behind `tensor`, other than that of a leaf from outside."""
    return tensor.grad_fn is not None or unwrap_if_dead(tensor) is not tensor


def left_again(record: Record, ctx: ForwardStandIn, output: Any) -> tuple[Tensor | None, ...] | None:
    """What another run left in the places of the outputs and of what the first run saved beside them.

    None where the two runs left something else; a place that nothing is read from may have None.
    """
    returned = tuple(
        entry for entry in (output if isinstance(output, tuple) else (output,)) if isinstance(entry, Tensor)
    )
    saved = (*ctx.to_save, *(ctx.__dict__.get("saved_for_forward") or ()))
    places = (*record.saved, *record.saved_forward)
    on_ctx = dict(tensors_on({name: value for name, value in ctx.__dict__.items() if name not in ctx.OWN}))
    if len(returned) != record.count or len(saved) != len(places) or not record.kept.keys() <= on_ctx.keys():
        return None
    found: list[Tensor | None] = [*returned, *(None,) * (record.total - record.count)]
    pairs = [*zip(places, saved, strict=True), *((place, on_ctx[path]) for path, place in record.kept.items())]
    for place, tensor in pairs:
        if place is not None and place[0] == "output" and place[1] >= record.count:
            if not isinstance(tensor, Tensor):
                return None
            found[place[1]] = tensor
    return tuple(found)


def plain_record(output: Any) -> Record:
    """The record of a call that returned `output` and left nothing."""
    return read_record(ForwardStandIn(()), (), output, Around())[0]
