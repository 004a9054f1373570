"""A check of values that has to wait for the plain tensors: under grad, jvp and vmap there are none to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pullback.transforms.func.levels import bind
from pullback.transforms.func.primitive import Batch, Optionals, Primitive, Tensors
from pullback.transforms.func.tracing import is_concrete, is_tracing, untraced


def agreeing(failure: Exception, judge: Callable[[Tensor, Tensor], bool], value: Tensor, other: Tensor) -> None:
    """Raise `failure` where the values of two tensors aren't the same by `judge`, which takes plain ones."""
    try:
        apart = value.detach(), other.detach()
    except RuntimeError:  # the batches of torch.autograd.functional; their values can't be read
        return
    bind(_Agreement(failure, judge), apart)


class _Agreement(Primitive):
    """The check as a primitive; returns its first operand."""

    def __init__(self, failure: Exception, judge: Callable[[Tensor, Tensor], bool]) -> None:
        super().__init__()
        self.name = "agreement"
        self._failure, self._judge = failure, judge

    def run(self, operands: Tensors) -> Tensors:
        """Compare the two."""
        value, other = operands
        if is_concrete(value) and is_concrete(other):
            with untraced():
                agrees = self._judge(value, other)
            if not agrees:
                raise self._failure
        return (value,)

    def watched(self, operands: Tensors) -> Tensors:
        """The check itself: of what it runs, nothing is ever differentiated, so that nothing need be known of it."""
        if is_tracing() or not all(map(is_concrete, operands)):
            return super().watched(operands)
        with torch.no_grad():
            outputs = self._runs(operands)
        self.seen.varies, self.seen.numbered = [frozenset()], [False]
        self.seen.nonzero = [True]
        return outputs

    def pull(self, operands: Tensors, outputs: Optionals, cotangents: Optionals, needs: Sequence[bool]) -> Optionals:
        """Nothing: the check is made for itself."""
        return None, None

    def batch(self, size: int, randomness: str, dims: Sequence[int | None], operands: Tensors) -> Batch:
        """The whole batch at once, with its dimension in front."""
        front = tuple(
            operand.expand(size, *operand.shape) if dim is None else operand.movedim(dim, 0)
            for operand, dim in zip(operands, dims, strict=True)
        )
        return bind(self, front), (0,)
