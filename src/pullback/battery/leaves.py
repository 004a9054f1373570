"""Tensors in a nest of arguments or outputs: found with a readable path, replaced without touching the rest.

Lists, tuples (named ones too), dicts, dataclasses, whatever else PyTorch's pytree registry knows, and modules (by their
parameters) are nests. All else is passed on as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pullback.call.module_nests import with_parameters
from pullback.call.nests import Nest, any_tensor, taken_apart

_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_KINDS = (torch.Tensor, torch.nn.Parameter)


def tensors(nest: object, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor in `nest` with its path: ``x``, ``xs[0]``, ``weights['a']``, ``layer.bias``."""
    if isinstance(nest, torch.Tensor):
        yield path, nest
    elif isinstance(nest, torch.nn.Module):
        for name, parameter in nest.named_parameters():
            yield f"{path}.{name}", parameter
    elif isinstance(nest, (list, tuple)):
        for index, item in enumerate(nest):
            yield from tensors(item, f"{path}[{index}]")
    elif isinstance(nest, Mapping):
        for key, item in nest.items():
            yield from tensors(item, f"{path}[{key!r}]")
    elif dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        for entry in dataclasses.fields(nest):
            yield from tensors(getattr(nest, entry.name), f"{path}.{entry.name}")
    else:
        registered = _registered(nest)
        for name, leaf in zip(registered[0].paths(path), registered[1], strict=True) if registered else ():
            yield from tensors(leaf, name)


def replace(nest: object, swap: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of `nest` with each tensor exchanged by `swap`; nests without tensors stay the same.

    The copy of a module shares with it all but its parameters.
    """
    if isinstance(nest, torch.Tensor):
        return swap(nest)
    if not any(True for _ in tensors(nest, "")):
        return nest
    if isinstance(nest, torch.nn.Module):
        return with_parameters(nest, {name: swap(parameter) for name, parameter in nest.named_parameters()})
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(replace(item, swap) for item in nest))
    if isinstance(nest, (list, tuple)):
        return type(nest)(replace(item, swap) for item in nest)
    if isinstance(nest, dict):
        replaced = copy.copy(nest)  # of its own kind, with whatever else it has: a default, an order
        replaced.update((key, replace(item, swap)) for key, item in nest.items())
        return replaced
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        changed = {entry.name: replace(getattr(nest, entry.name), swap) for entry in dataclasses.fields(nest)}
        return dataclasses.replace(nest, **changed)
    registered = _registered(nest)
    if registered is not None:
        return registered[0].rebuilt(replace(leaf, swap) for leaf in registered[1])
    return nest


def _registered(nest: object) -> tuple[Nest, list[Any]] | None:
    """A container of another kind, of which PyTorch's registry knows how to take it apart."""
    return taken_apart(nest, any_tensor, modules=False)


def is_float(tensor: torch.Tensor) -> bool:
    """Whether the tensor can have a gradient: floating or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements lie in memory by strides, so that they can be moved one by one and rearranged."""
    return tensor.layout is torch.strided


def is_symmetric(tensor: torch.Tensor) -> bool:
    """Whether it is a real symmetric matrix, or a stack of them, that isn't all one number.

    Of such an argument PyTorch's gradients say only what holds along symmetric directions.
    """
    if not tensor.is_floating_point() or not is_own_transpose(tensor) or tensor.shape[-1] < 2:
        return False
    values = tensor.detach()
    return bool(values.min() < values.max())


def is_own_transpose(tensor: torch.Tensor) -> bool:
    """Whether it is a symmetric matrix or a Hermitian one, or a stack of them, such as zeros."""
    values = tensor.detach()
    return is_dense(values) and values.dim() >= 2 and torch.equal(values, values.mH)


def symmetrised(tensor: torch.Tensor) -> torch.Tensor:
    """The symmetric part of a square matrix, or of a stack of them; itself where it is symmetric, or isn't square."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or torch.equal(tensor, tensor.mH):
        return tensor
    return (tensor + tensor.mH) / 2


def why_unusable(tensor: torch.Tensor) -> str:
    """What kind of tensor it is, where no experiment can be made with it; empty for others."""
    if tensor.is_nested:
        return "nested"
    if tensor.is_quantized:
        return "quantized"
    if is_dense(tensor):
        without_data = tensor.untyped_storage().device.type == "meta"  # fake tensors too
        return "without data (on the meta device)" if without_data else ""
    if tensor.layout not in _SPARSE:
        return f"in the layout {str(tensor.layout).removeprefix('torch.').strip('_')}"
    return "sparse and requires grad" if tensor.requires_grad else ""


def address(tensor: torch.Tensor) -> int:
    """Where the tensor's memory begins; its identity for tensors without plain memory, such as sparse ones."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def copy_of(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage] | None = None) -> torch.Tensor:
    """A detached copy with the same strides, offset and values; copies of views of one storage share one again.

    Args:
        tensor: The tensor to copy.
        storages: Storages copied so far, by the address of the original; None copies without sharing.
    """
    if not has_plain_memory(tensor):
        return tensor.detach().clone()
    if storages is None and fills_storage(tensor):  # as nearly all do; this takes a tenth of what follows
        return tensor.detach().clone()
    tensor = tensor.detach()
    storage = tensor.untyped_storage()
    known = storages if storages is not None else {}
    if storage.data_ptr() not in known:
        if fills_storage(tensor):
            copy = tensor.clone()
            known[storage.data_ptr()] = copy.untyped_storage()
            return copy
        known[storage.data_ptr()] = storage.clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy.set_(known[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride())
    return torch.resolve_conj(copy.conj()) if tensor.is_conj() else copy


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a dense one of PyTorch's own kinds, whose elements lie in a storage by strides."""
    return tensor.layout is torch.strided and type(tensor) in _KINDS


def fills_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor is all of its storage, in order, so that a clone has the same strides and offset."""
    if not (has_plain_memory(tensor) and tensor.is_contiguous()) or 1 in tensor.shape:
        return False
    plain = not tensor.is_conj() and not tensor.is_neg()
    return plain and tensor.untyped_storage().nbytes() == tensor.nbytes
