"""The tensors that Python objects hold: attributes of ctx, closures, what hooks keep.

`pullback.call.kept` looks into what one call leaves on ctx, with a path to each tensor by which it can be replaced.
Here it is enough to find each tensor once, but the search goes on where that one stops: into saved variables.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pullback.call.kept import held_by
from pullback.call.plan import Plan
from pullback.memory.stateful import State
from pullback.torch_private import SavedVariable, saved_data, unpack_hook_of

_DEPTH = 8
_OBJECTS = 20_000
"""How many objects one search looks into: what isn't found by then was hardly put there for backward."""

_CLOSED = (
    *(
        str,
        bytes,
        int,
        float,
        complex,
        bool,
        type(None),
        type,
        types.ModuleType,
        types.CodeType,
        types.BuiltinFunctionType,
    ),
    *(torch.dtype, torch.device, torch.Size, torch.Generator, torch.autograd.graph.Node),
    torch.nn.Module,  # its parameters are alive whether or not the graph holds it
    Plan,
)
"""What nobody looks into."""


def tensors_in(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors that `value` holds, each once and with the shortest path to it: ``ctx.cache[0]``."""
    seen: dict[int, Any] = {}
    open_: deque[tuple[str, Any, int]] = deque([(path, value, 0)])
    while open_ and len(seen) < _OBJECTS:
        name, held, depth = open_.popleft()
        if id(held) in seen or isinstance(held, _CLOSED):
            continue
        seen[id(held)] = held  # held on to, so that no other object gets its identity
        if isinstance(held, Tensor):
            yield name, held
        elif depth < _DEPTH:
            open_ += [(name + label, part, depth + 1) for label, part in _parts(held)]


def functions_of(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The methods of a Function that its author wrote, each with its name."""
    for base in cls.__mro__:
        if base.__module__.startswith(("torch.", "pullback.function")):
            continue
        for name, value in vars(base).items():
            function = getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType):
                yield name, function


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]" if isinstance(key, (str, int)) else "[...]", part) for key, part in [*value.items()]]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    if isinstance(value, functools.partial):
        return [(".args", value.args), (".keywords", value.keywords), (".func", value.func)]
    if isinstance(value, types.MethodType):
        return [("", value.__self__), ("", value.__func__)]
    if isinstance(value, types.FunctionType):
        return _captured(value)
    if isinstance(value, State):
        return [(".copies", value.copies())]  # all else that it has is alive in any case
    if isinstance(value, SavedVariable):
        return _saved(value)
    return [(f".{name}", part) for name, part in held_by(value).items()]


def _captured(function: types.FunctionType) -> list[tuple[str, Any]]:
    captured = [
        (f".{name}", cell.cell_contents)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if _filled(cell)
    ]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [*captured, *((".default", value) for value in defaults)]


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _saved(raw: Any) -> list[tuple[str, Any]]:
    try:
        return [("", saved_data(raw)), ("", unpack_hook_of(raw))]
    except RuntimeError:  # freed by backward
        return []
