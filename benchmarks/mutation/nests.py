"""Tensors in nests of arguments and results: found in order, and exchanged without touching the rest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors(nest: object) -> Iterator[Tensor]:
    """The tensors of lists, tuples, dicts and modules, in order."""
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, torch.nn.Module):
        yield from nest.parameters()
    elif isinstance(nest, (list, tuple)):
        for item in nest:
            yield from tensors(item)
    elif isinstance(nest, Mapping):
        for item in nest.values():
            yield from tensors(item)


def exchanged(nest: Any, swap: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a nest with each tensor exchanged, in the order of `tensors`."""
    if isinstance(nest, Tensor):
        return swap(nest)
    if isinstance(nest, torch.nn.Module):
        made = copy.deepcopy(nest)
        for parameter in made.parameters():
            parameter.data = swap(parameter.detach()).detach()
        return made
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(exchanged(item, swap) for item in nest))
    if isinstance(nest, (list, tuple)):
        return type(nest)(exchanged(item, swap) for item in nest)
    if isinstance(nest, dict):
        return {key: exchanged(item, swap) for key, item in nest.items()}
    return nest


def is_float(tensor: Tensor) -> bool:
    """Whether a tensor can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()
