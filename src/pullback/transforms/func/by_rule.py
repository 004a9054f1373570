"""A Function's own rule for batches: its vmap static method.

The rule is a function of whole batches, made of PyTorch operations and calls of the Function, so its derivative under
the levels around it is that of torch.func. Above the level of vmap only the derivative of the single call is seen; so
each derivative is a primitive of its own, with the single call's vjp as its function and the rule's vjp as its rule:

    f_0 = the call          r_0 = the rule
    f_n+1 = vjp of f_n      r_n+1 = vjp of r_n
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from pullback.call.surroundings import Autocast
from pullback.transforms.func import refusals
from pullback.transforms.func.follow import pulled_through
from pullback.transforms.func.levels import bind
from pullback.transforms.func.primitive import Batch, Optionals, Primitive, Tensors, outputs_of
from pullback.transforms.func.record import plain_record

if TYPE_CHECKING:
    from pullback.transforms.func.forward import Forward

Function = Callable[[Tensors], Optionals]

Rule = Callable[[Tensors, Sequence[int | None]], Optionals]
"""Takes operands, and 0 or None for each, as the batch is in front or there is none; its outputs all have one."""


class VmapInfo(NamedTuple):
    """What a vmap static method is told, as by PyTorch."""

    batch_size: int
    randomness: str


class ByRule(Primitive):
    """A function with its rule for batches.

    Args:
        name: What it is called.
        single: Takes the operands.
        rule: The same for a batch.
        autocast: The state of autocast that both run under; None for that which is around them.
    """

    def __init__(self, name: str, single: Function, rule: Rule, autocast: Autocast | None) -> None:
        super().__init__()
        self.name, self._single, self._rule, self.autocast = name, single, rule, autocast
        self.reached: list[int] = []

    def run(self, operands: Tensors) -> Tensors:
        """The outputs of the single call; `reached` tells which there are."""
        return self._present(self._single(operands))

    def batch(self, size: int, randomness: str, dims: Sequence[int | None], operands: Tensors) -> Batch:
        """The outputs of the rule."""
        pairs = list(zip(operands, dims, strict=True))
        front = tuple(operand if dim is None else operand.movedim(dim, 0) for operand, dim in pairs)
        outputs = self._present(self._rule(front, [None if dim is None else 0 for _, dim in pairs]))
        return outputs, (0,) * len(outputs)

    def pull(self, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """The gradients, by the next primitive of the row."""
        present = [index for index, cotangent in enumerate(cotangents) if cotangent is not None]
        places = [self.reached[index] for index in present]
        arity = len(operands)

        def cotangents_in(every: Tensors) -> Optionals:
            given = dict(zip(places, every[arity:], strict=True))
            return tuple(given.get(index) for index in range(self.total))

        def single(every: Tensors) -> Optionals:
            return pulled_through(self._single, every[:arity], cotangents_in(every), needs)

        def rule(every: Tensors, dims: Sequence[int | None]) -> Optionals:
            size = _size(every, dims)
            # An operand that all entries share gets a gradient for each of them; so does each have its own cotangent.
            own = [dim is None and (k >= arity or needs[k]) for k, dim in enumerate(dims)]
            spread = tuple(t.expand(size, *t.shape) if alone else t for t, alone in zip(every, own, strict=True))
            with_batch = [0 if alone else dim for alone, dim in zip(own, dims, strict=True)]
            behind = cotangents_in(spread)
            return pulled_through(lambda xs: self._rule(xs, with_batch[:arity]), spread[:arity], behind, needs)

        following = ByRule(f"vjp of {self.name}", single, rule, self.autocast)
        found = bind(following, (*operands, *(t for t in cotangents if t is not None)))
        by_index: dict[int, Tensor] = dict(zip(following.reached, found, strict=True))
        return tuple(by_index.get(index) for index in range(arity))

    def _present(self, outputs: Optionals) -> Tensors:
        self.total = len(outputs)
        self.reached = [index for index, output in enumerate(outputs) if output is not None]
        return tuple(output for output in outputs if output is not None)


def _size(operands: Tensors, dims: Sequence[int | None]) -> int:
    """How many entries the batch has."""
    return next(len(operand) for operand, dim in zip(operands, dims, strict=True) if dim is not None)


def _batch_in_front(forward: Forward, returned: Any, size: int) -> tuple[Any, Tensors]:
    """What the author's vmap returned, and its tensors with the batch in front.

    Raises:
        TransformError: PB509, it isn't a batch of outputs.
    """
    if not (isinstance(returned, tuple) and len(returned) == 2):
        kind = type(returned).__name__ + (f" of {len(returned)}" if isinstance(returned, tuple) else "")
        raise refusals.no_batch(forward.name, kind)
    outputs, out_dims = returned
    entries = outputs_of(outputs)
    dims = tuple(out_dims) if isinstance(out_dims, (tuple, list)) else (out_dims,) * len(entries)
    if len(dims) != len(entries):
        raise refusals.no_batch(forward.name, f"{len(entries)} outputs, and {len(dims)} dimensions")
    fronts = []
    for entry, dim in zip(entries, dims, strict=True):
        if not isinstance(entry, Tensor):
            continue
        if dim is not None and not (isinstance(dim, int) and -entry.dim() <= dim < entry.dim()):
            raise refusals.no_batch(forward.name, f"dimension {dim!r} of an output of shape {tuple(entry.shape)}")
        front = entry.expand(size, *entry.shape) if dim is None else entry.movedim(dim, 0)
        if len(front) != size:
            shape = tuple(entry.shape)
            raise refusals.no_batch(forward.name, f"{len(front)} entries along dimension {dim} of {shape}, not {size}")
        fronts.append(front)
    return outputs, tuple(fronts)


def by_author(forward: Forward, randomness: str) -> ByRule:
    """The author's vmap as the rule for a call of the Function."""

    def single(operands: Tensors) -> Optionals:
        return tuple(entry for entry in outputs_of(forward.applied(operands)) if isinstance(entry, Tensor))

    def rule(operands: Tensors, dims: Sequence[int | None]) -> Optionals:
        size = _size(operands, dims)
        info = VmapInfo(size, randomness)
        returned = forward.plan.cls.vmap(
            info, forward.operands.by_argument(dims), *forward.operands.arguments(operands)
        )
        outputs, fronts = _batch_in_front(forward, returned, size)
        forward.record = plain_record(outputs)
        return fronts

    return ByRule(forward.name, single, rule, forward.autocast)
