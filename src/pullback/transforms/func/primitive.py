"""What torch.func has to know of a function to differentiate and batch it: the interface of `bind`.

NOTE [transforms]: torch.func nests levels of grad, jvp and vmap, each of which wraps the tensors of the level below.
`pullback.transforms.func.levels.bind` takes a primitive down through them: each level does its part by `pull`, `push`
or `batch` on the tensors of the levels below it, so that those differentiate and batch in their turn, and at the bottom
`run` computes the values on plain tensors. So an author's methods, whatever they are made of, see plain tensors
wherever only their values are wanted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.call.dependence import Dependence, is_smooth, storage_of
from pullback.call.surroundings import Autocast
from pullback.errors import PullbackError
from pullback.torch_private import is_wrapped
from pullback.transforms.func import refusals
from pullback.transforms.func.hooks import vjp
from pullback.transforms.func.linear import LinearMap
from pullback.transforms.func.tracing import Traced, is_concrete, is_tracing
from pullback.transforms.graph import has_nonzero, is_batched

Tensors = tuple[Tensor, ...]
Optionals = tuple[Tensor | None, ...]


@dataclass
class Seen:
    """What the run on plain tensors showed; filled in when it has happened.

    Attributes:
        varies: For each output the operands that it varies with.
        numbered: For each output whether a Python number that was read from a tensor went into it.
        nonzero: For each output whether an element of it isn't zero.
        read: The operands that what was read from tensors varies with.
        shared: For each output whether it came on the memory of an operand, or of another output.
        asked: The operands that some level differentiates with respect to.
        levels: How many levels differentiate.
        stale: The operands that were written to since, and that nothing saved.
    """

    varies: list[frozenset[int]] = field(default_factory=list)
    numbered: list[bool] = field(default_factory=list)
    nonzero: list[bool] = field(default_factory=list)
    read: frozenset[int] = frozenset()
    shared: list[bool] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    levels: int = 0
    stale: set[int] = field(default_factory=set)

    def ask(self, flags: Sequence[bool]) -> None:
        """Note that a level differentiates with respect to the operands with a flag."""
        self.asked |= {index for index, flag in enumerate(flags) if flag}
        self.levels += any(flags)


class Primitive(ABC):
    """A function from tensors to tensors, with its derivative.

    Attributes:
        name: What the author calls it: ``Square``, ``Square.backward``.
        seen: What its run on plain tensors showed.
        literals: The numbers that stand in its source.
        keeps: Whether others may write to its operands and outputs once it has run.
        autocast: The state of autocast that its derivatives are computed under; None for that which is around them.
    """

    name: str
    literals: frozenset[float] = frozenset()
    keeps: bool = False
    autocast: Autocast | None = None

    def __init__(self) -> None:
        self.seen = Seen()

    @abstractmethod
    def run(self, operands: Tensors) -> Tensors:
        """The values; called once, without gradients, on plain tensors or on a batch of them."""

    @abstractmethod
    def pull(self, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """The vector-Jacobian product, in operations that can be differentiated: one gradient for each operand."""

    def push(self, operands: Tensors, outputs: Tensors, tangents: Optionals, used: int) -> Optionals:
        """The Jacobian-vector product: one tangent for each output.

        Args:
            operands: What `run` was given.
            outputs: What it returned.
            tangents: For each operand, None where it has none.
            used: How often what is made of the outputs is differentiated at this level itself.

        `pull` is linear in its cotangents, ū ↦ Jᵀū, and the transpose of that map takes tangents t to J t: it is the
        vjp of ū ↦ pull(ū), the same at every ū (NOTE [somewhere]).
        """
        smooth = self.moving(outputs, used)
        given = [tangent is not None for tangent in tangents]
        if not smooth or not any(given):
            return (None,) * len(outputs)
        reached: list[int] = []

        def pulled(*cotangents: Tensor) -> Tensors:
            by_index = dict(zip(smooth, cotangents, strict=True))
            every = tuple(by_index.get(index) for index in range(len(outputs)))
            gradients = self.pull(operands, outputs, every, given)
            found = {index: gradient for index, gradient in enumerate(gradients) if gradient is not None}
            reached[:] = [index for index in found if given[index]]
            # torch.func.vjp wants an output, whether there is one or not.
            return tuple(fitted(found[index], operands[index]) for index in reached) or cotangents[:1]

        point = [somewhere(outputs[index]) for index in smooth]
        values, transposed = vjp(pulled, *point)
        if not reached:
            return (None,) * len(outputs)
        along = tuple(tangent for index in reached if (tangent := tangents[index]) is not None)
        found = transposed(along)
        self.verify_linear(LinearMap(pulled, point, values, along, found))
        pushed = dict(zip(smooth, found, strict=True))
        return tuple(pushed.get(index) for index in range(len(outputs)))

    def verify_linear(self, seen: LinearMap) -> None:
        """Take what was seen of `pull`, whose transpose says nothing where it isn't linear; methods are by contract."""
        return

    def batch(self, size: int, randomness: str, dims: Sequence[int | None], operands: Tensors) -> Batch | None:
        """The outputs for a batch of operands, by a rule of the author's own; None to run `run` under vmap."""
        return None

    def rescue(self, error: Exception, operands: Tensors, *, batched: bool = False) -> bool:
        """Find another way to the values, after `run` raised `error`; if `batched`, on a batch of such operands.

        Returns:
            Whether there is one. To raise `error` is left to the caller, since a frame that raises what it was given
            holds itself.

        Raises:
            PullbackError: What explains `error`.
        """
        return False

    def moving(self, outputs: Tensors, used: int) -> list[int]:
        """The outputs whose tangents matter."""
        return [index for index, output in enumerate(outputs) if is_smooth(output) and not self.constant(index)]

    def drew(self, *, rewind: bool = False) -> bool:
        """Whether its run drew random numbers; if `rewind`, they are to be drawn again."""
        return False

    def written(self) -> frozenset[int]:
        """The operands that it writes to."""
        return frozenset()

    def constant(self, index: int) -> bool:
        """Whether the output at `index` has no derivative."""
        varies = self.seen.varies
        return index < len(varies) and not varies[index]

    def connected(self, operands: Tensors, outputs: Tensors, depth: int) -> Tensors:
        """The outputs, those connected that no rule of the levels below connects; `depth` levels are above them."""
        return outputs

    def kept(self) -> tuple[Sequence[bool] | None, Sequence[bool] | None]:
        """Which operands and outputs `pull` reads the values of; None for all."""
        return None, None

    def watched(self, operands: Tensors) -> Tensors:
        """`run`, and what it showed."""
        if is_tracing() or not all(map(is_concrete, operands)):
            return self._unwatched(operands)
        with torch.no_grad(), Dependence(operands, self.literals) as watched:
            outputs = self._runs(operands)
        self.seen.varies = [watched.of(output) for output in outputs]
        self.seen.numbered = [watched.numbered(output) for output in outputs]
        self.seen.read = watched.read
        self.seen.nonzero = [has_nonzero(output) for output in outputs]
        return outputs

    def _unwatched(self, operands: Tensors) -> Tensors:
        """`run` on tensors whose values can't be read: those that are being traced, or batches."""
        try:
            with torch.no_grad(), Traced(self.name):
                outputs = self._runs(operands)
        except RuntimeError as error:
            if isinstance(error, PullbackError) or not any(map(is_batched, operands)):
                raise
            raise refusals.not_batched(self.name, error) from error
        everything = frozenset(range(len(operands)))
        self.seen.varies, self.seen.numbered = [everything] * len(outputs), [False] * len(outputs)
        self.seen.nonzero = [True] * len(outputs)
        return outputs

    def _runs(self, operands: Tensors) -> Tensors:
        try:
            outputs = self.run(operands)
        except Exception as error:
            if not self.rescue(error, operands):
                raise
            outputs = self.run(operands)
        if self.keeps:
            separate = apart(operands, outputs)
            self.seen.shared = [one is not other for one, other in zip(separate, outputs, strict=True)]
            outputs = separate
        return distinct(operands, outputs)


def apart(operands: Tensors, outputs: Tensors) -> Tensors:
    """`outputs`, each on memory that it shares with nothing else here: levels don't see each other's writes."""
    memory = [storage_of(operand) for operand in operands]
    found = []
    for output in outputs:
        storage = storage_of(output)
        # Of what a level wraps it isn't known.
        shared = is_wrapped(output) if storage is None else any(storage is other for other in memory)
        found.append(output.clone() if shared else output)
        memory.append(storage_of(found[-1]))
    return tuple(found)


def is_whole(tensor: Tensor) -> bool:
    """Whether `tensor` has each element of its memory exactly once: it isn't part of a larger one, nor expanded."""
    storage = storage_of(tensor)
    if storage is None and not is_wrapped(tensor):
        return True
    count = 1  # of the elements that the dimensions so far go through, from the innermost on
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != count and tensor.numel():
            return False
        count *= size
    return storage is None or count * tensor.element_size() == storage.nbytes()


def distinct(operands: Tensors, outputs: Tensors) -> Tensors:
    """`outputs`, each another object, and none of `operands`: PyTorch would take what is there twice for one thing."""
    known, found = {id(operand) for operand in operands}, []
    for output in outputs:
        found.append(output.detach() if id(output) in known else output)
        known.add(id(output))
    return tuple(found)


def outputs_of(returned: Any) -> tuple[Any, ...]:
    """The outputs of a function, as a tuple."""
    return returned if isinstance(returned, tuple) else (returned,)


def fitted(gradient: Tensor, operand: Tensor) -> Tensor:
    """A gradient in the shape of its operand: what was left unsummed is summed, as the engine does it."""
    if gradient.shape == operand.shape:
        return gradient
    more = gradient.dim() - operand.dim()
    summed = gradient.sum(tuple(range(more))) if more else gradient
    ones = [axis for axis, size in enumerate(operand.shape) if size == 1 != summed.shape[axis]]
    # Not sum_to_size, which ends in a view: under forward mode PyTorch can't take one of a batch of tangents.
    return summed.sum(ones, keepdim=True) if ones else summed


Batch = tuple[Tensors, tuple[int | None, ...]]
"""Outputs, and for each of them the dimension of the batch."""


def somewhere(tensor: Tensor) -> Tensor:
    """A point to take the vjp of a linear map at, in the shape of `tensor`: numbers of the size of 1 without a pattern.

    NOTE [somewhere]: the derivative of a linear map is the same everywhere, but a method that iterates until nothing
    changes, as implicit differentiation does, stops after the first step at zero, and its derivative is that of one
    step. And where ⟨pull(ū), t⟩ isn't ⟨ū, J t⟩, pull isn't linear, which zero would hide.
    """
    count = torch.arange(1, tensor.numel() + 1, device=tensor.device)
    return torch.sin(count.to(tensor.dtype)).view(tensor.shape)
