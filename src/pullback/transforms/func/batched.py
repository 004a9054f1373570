"""A primitive on a batch of operands: what a level of vmap makes of it for the levels below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.call.dependence import is_smooth
from pullback.transforms.func.primitive import Optionals, Primitive, Tensors, fitted


class Batched(Primitive):
    """`primitive` under one level of vmap; its outputs have the batch in front.

    Args:
        primitive: What runs for each entry of the batch.
        size: How many entries there are.
        randomness: What vmap does with random numbers: ``error``, ``same`` or ``different``.
        dims: For each operand the dimension of the batch, None for one that all entries share.
    """

    def __init__(self, primitive: Primitive, size: int, randomness: str, dims: Sequence[int | None]) -> None:
        self._inner = primitive
        self._size, self._randomness, self._dims = size, randomness, tuple(dims)
        self.name, self.literals, self.autocast = primitive.name, primitive.literals, primitive.autocast
        self.seen, self.keeps = primitive.seen, primitive.keeps  # its outputs are the same

    def run(self, operands: Tensors) -> Tensors:
        """The values: one vmap around the primitive's own run."""
        return self._mapped(lambda *tensors: self._inner.run(tensors), self._dims, operands)

    def rescue(self, error: Exception, operands: Tensors, *, batched: bool = True) -> bool:
        """As for the primitive itself, on the first entry of the batch."""
        if not self._size:
            return False
        pairs = zip(operands, self._dims, strict=True)
        first = tuple(operand if dim is None else operand.select(dim, 0) for operand, dim in pairs)
        return self._inner.rescue(error, first, batched=True)

    def pull(self, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """Each entry's gradients, summed for an operand that all entries share."""
        reached: list[int] = []
        arity, made = len(operands), len(operands) + len(outputs)

        def pulled(*tensors: Any) -> Tensors:
            gradients = self._inner.pull(tensors[:arity], tensors[arity:made], tensors[made:], needs)
            found = {index: gradient for index, gradient in enumerate(gradients) if gradient is not None}
            reached[:] = [index for index in found if needs[index]]
            return tuple(fitted(found[index], tensors[index]) for index in reached)

        behind = [None if tensor is None else 0 for tensor in (*outputs, *cotangents)]
        mapped = self._mapped(pulled, (*self._dims, *behind), (*operands, *outputs, *cotangents))
        found = dict(zip(reached, mapped, strict=True))
        for index, gradient in found.items():
            dim = self._dims[index]
            found[index] = gradient.sum(0) if dim is None else gradient.movedim(0, dim)
        return tuple(found.get(index) for index in range(arity))

    def push(self, operands: Tensors, outputs: Tensors, tangents: Optionals, used: int) -> Optionals:
        """Each entry's tangents."""
        if not self._size:  # PyTorch has no rule for a batch of no numbers beside one that isn't a batch
            return tuple(torch.zeros_like(output) if is_smooth(output) else None for output in outputs)
        reached: list[int] = []
        arity, made = len(operands), len(operands) + len(outputs)

        def pushed(*tensors: Any) -> Tensors:
            found = self._inner.push(tensors[:arity], tensors[arity:made], tensors[made:], used)
            reached[:] = [index for index, tangent in enumerate(found) if tangent is not None]
            return tuple(tangent for tangent in found if tangent is not None)

        along = [None if tangent is None else dim for tangent, dim in zip(tangents, self._dims, strict=True)]
        dims = (*self._dims, *(0 for _ in outputs), *along)
        mapped = self._mapped(pushed, dims, (*operands, *outputs, *tangents))
        by_index = dict(zip(reached, mapped, strict=True))
        return tuple(by_index.get(index) for index in range(len(outputs)))

    def drew(self, *, rewind: bool = False) -> bool:
        """As for the primitive itself."""
        return self._inner.drew(rewind=rewind)

    def written(self) -> frozenset[int]:
        """As for the primitive itself."""
        return self._inner.written()

    def constant(self, index: int) -> bool:
        """As for the primitive itself."""
        return self._inner.constant(index)

    def connected(self, operands: Tensors, outputs: Tensors, depth: int) -> Tensors:
        """Each entry's outputs."""
        arity = len(operands)

        def connect(*tensors: Tensor) -> Tensors:
            return self._inner.connected(tensors[:arity], tensors[arity:], depth)

        return self._mapped(connect, (*self._dims, *(0 for _ in outputs)), (*operands, *outputs)) if outputs else ()

    def kept(self) -> tuple[Sequence[bool] | None, Sequence[bool] | None]:
        """As for the primitive itself."""
        return self._inner.kept()

    def _mapped(self, function: Callable[..., Tensors], dims: Sequence[int | None], tensors: Sequence[Any]) -> Tensors:
        # One more, since there may be nothing else that has the batch: random numbers may be drawn for each entry.
        entries = torch.arange(self._size)

        def call(_: Tensor, *tensors: Any) -> Tensors:
            return function(*tensors)

        mapped: Tensors = torch.func.vmap(call, (0, *dims), randomness=self._randomness)(entries, *tensors)
        return mapped
