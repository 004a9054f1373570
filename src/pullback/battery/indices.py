"""What forward does with indices: whether it takes them one by one, and whether it counts any from the end.

A look-up with interpolation reads entries i and i + 1 of a table. In one of a single entry its i comes out as -1, which
PyTorch counts from the end, and which is the same entry by chance: what is then read isn't meant.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pullback.battery.observe import identical
from pullback.battery.raised import ForwardRaised
from pullback.battery.subject import Case, Subject, with_tensors
from pullback.torch_private import TorchDispatchMode

_INDEXING = (torch.ops.aten.index.Tensor,)
"""The operators that take negative indices in a tensor; the others refuse them."""


def wraps_around(subject: Subject, case: Case) -> bool:
    """Whether any index that forward computes is negative.

    Raises:
        ForwardRaised: If forward raises.
    """
    with _Indices() as indices:
        subject.call(subject.fresh(case, requires=()))
    return indices.negative


def taken_one_by_one(subject: Subject, case: Case, index: torch.Tensor) -> bool:
    """Whether each element of an index tensor has its own part of each output: in reverse they give that in reverse.

    Such indices are neither bounds of segments nor lengths, whatever numbers they happen to be.
    """
    if index.dim() != 1 or torch.equal(index, index.flip(0)):
        return False
    turned = replace(case, sample=with_tensors(case.sample, lambda t: t.flip(0) if t is index else t))
    try:
        before, after = (subject.call(subject.fresh(there, requires=())) for there in (case, turned))
    except ForwardRaised:
        return False
    pairs = [(one.tensor.detach(), other.tensor.detach()) for one, other in zip(before, after, strict=False)]
    return bool(pairs) and all(
        any(one.shape == other.shape and identical(one.flip(axis), other) for axis in _of_length(one, len(index)))
        for one, other in pairs
    )


def _of_length(tensor: torch.Tensor, length: int) -> list[int]:
    return [axis for axis, size in enumerate(tensor.shape) if size == length]


class _Indices(TorchDispatchMode):
    """Sees whether a tensor is read at negative indices."""

    def __init__(self) -> None:
        super().__init__()
        self.negative = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _INDEXING:
            whole = (index for index in args[1] if index is not None and index.dtype is not torch.bool)
            self.negative = self.negative or any(bool((index < 0).any()) for index in whole)
        return func(*args, **(kwargs or {}))
