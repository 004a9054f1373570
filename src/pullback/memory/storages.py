"""Which storages does a tensor keep alive, and how much of them does it need?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.torch_private import is_wrapped, unbatch_at, unwrap_at, unwrap_if_dead

_PLAIN = (Tensor, torch.nn.Parameter)

_GIVES_WAY_TO = {torch.float64: torch.float16, torch.complex128: torch.float16, torch.int64: torch.uint8}
"""The dtypes that numbers have in tensors, and a lesser one that only a tensor of it would stand up to."""


_LEVELS = 16
"""How deep transforms of torch.func are looked for in one another."""


class UnseenError(Exception):
    """A tensor doesn't show where its memory lies; the message says what kind of tensor it is."""


def storages_of(tensor: Tensor) -> list[torch.UntypedStorage]:
    """The storages that a tensor keeps alive: one for a plain tensor, those of its parts for any other.

    Raises:
        UnseenError: It doesn't show them.
    """
    try:
        if type(tensor) in _PLAIN and tensor.layout is torch.strided:
            return [tensor.untyped_storage()]
        parts = _parts(tensor)
        return [tensor.untyped_storage()] if parts is None else [own for part in parts for own in storages_of(part)]
    except (RuntimeError, NotImplementedError, TypeError):
        raise UnseenError(f"{type(tensor).__name__} with layout {tensor.layout}") from None


def bare(tensor: Tensor) -> Tensor:
    """The tensor with a storage within the wrappers that transforms of torch.func put around it; else the same."""
    if not is_wrapped(tensor):
        return tensor
    tensor = unwrap_if_dead(tensor)
    for level in range(_LEVELS, 0, -1):  # the outer wrappers are those of the inner transforms, of higher levels
        tensor = unbatch_at(unwrap_at(tensor, level), level)[0]
    return tensor


def needed_bytes(tensor: Tensor) -> int:
    """The bytes of the elements of a tensor; what an expanded axis repeats counts once."""
    if tensor.layout is not torch.strided:
        return sum(needed_bytes(part) for part in _parts(tensor) or ())
    if tensor.is_contiguous():
        return tensor.numel() * tensor.element_size()
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count * tensor.element_size()


def extent(tensor: Tensor) -> tuple[object, ...]:
    """What two tensors of one storage have in common if they need the same part of it."""
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    axes = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return (tensor.storage_offset(), *sorted(axes))


def is_number(tensor: Tensor) -> bool:
    """Whether this is a Python number, as in ``x * 2.0``, which PyTorch keeps in a tensor that no hook ever sees.

    PyTorch's flag for it isn't to be seen, but promotion follows it: a number gives way even to another 0-d tensor.
    """
    other = _GIVES_WAY_TO.get(tensor.dtype)
    if tensor.dim() or other is None or tensor.device.type != "cpu" or type(tensor) is not Tensor:
        return False
    return torch.result_type(tensor, torch.empty((), dtype=other)) != tensor.dtype


def _parts(tensor: Tensor) -> list[Tensor] | None:
    """The tensors that a tensor without a storage of its own is made of; None for a plain one."""
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.layout is torch.sparse_coo:
        whole = tensor.detach() if tensor.is_coalesced() else None
        if whole is None:
            raise NotImplementedError
        return [whole.indices(), whole.values()]
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    return None if flatten is None else [getattr(tensor, name) for name in flatten()[0]]
