"""Whether forward points before the first element, which PyTorch counts from the end: what it then reads isn't meant.

A look-up with interpolation reads entries i and i + 1 of a table. In one of a single entry its i comes out as -1, which
is the same entry by chance.
"""

from __future__ import annotations

from typing import Any

import torch

from pullback.battery.subject import Case, Subject
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
