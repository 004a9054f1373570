"""What an author keeps on ctx: the tensors in it, wherever they are, and the same with others in their place.

Attributes of ctx may be anything. Lists, tuples, dicts and sets are looked into, plain objects (dataclasses and
namespaces), partials, bound methods, and functions, whose closures are a common way to keep what backward needs.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

_DEPTH = 5  # containers in containers; what lies deeper was hardly put there for backward

Parts = tuple[Sequence[tuple[str, Any]], Callable[[list[Any]], Any]]


def leaves_of(path: str, value: Any, seen: set[int] | None = None, depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """The tensors and floats in `value`, each with its path: ``cache[0]``, ``cache['t'].mean``."""
    if isinstance(value, (torch.Tensor, float)):
        yield path, value
        return
    if value is None or isinstance(value, (bool, int, str, torch.dtype, torch.Size)):
        return
    seen = set() if seen is None else seen
    parts = _parts(value) if depth and id(value) not in seen else None
    seen.add(id(value))
    for label, child in parts[0] if parts else ():
        yield from leaves_of(path + label, child, seen, depth - 1)


def replaced(path: str, value: Any, others: Mapping[str, torch.Tensor], depth: int = _DEPTH) -> Any:
    """`value` with the tensors at the paths of `others` replaced; the same object where none is in it."""
    if isinstance(value, torch.Tensor):
        return others.get(path, value)
    parts = _parts(value) if depth and any(other.startswith(path) for other in others) else None
    if parts is None:
        return value
    children = [replaced(path + label, child, others, depth - 1) for label, child in parts[0]]
    if all(new is old for new, (_, old) in zip(children, parts[0], strict=True)):
        return value
    return parts[1](children)


def _parts(value: Any) -> Parts | None:
    """What `value` is made of, with a label for each part, and what makes another like it; None for the rest."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", item) for index, item in enumerate(value)], functools.partial(_sequence, value)
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()], functools.partial(_dict, value)
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)], _partial
    if isinstance(value, types.MethodType):
        return [(".__self__", value.__self__)], lambda parts: types.MethodType(value.__func__, parts[0])
    if isinstance(value, types.FunctionType):
        return _function_parts(value)
    if isinstance(value, (type, types.ModuleType, torch.nn.Module, torch.autograd.graph.Node)):
        return None
    held = getattr(value, "__dict__", None)
    if not isinstance(held, dict) or not held:
        return None
    return [(f".{name}", item) for name, item in held.items()], functools.partial(_object, value)


def _function_parts(function: types.FunctionType) -> Parts:
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    held = [(name, cell) for name, cell in zip(names, cells, strict=True) if _filled(cell)]
    labels = [(f".{name}", cell.cell_contents) for name, cell in held]
    labels += [(f".__defaults__[{index}]", item) for index, item in enumerate(function.__defaults__ or ())]

    def again(parts: list[Any]) -> Any:
        new = {id(cell): types.CellType(part) for (_, cell), part in zip(held, parts, strict=False)}
        closure = tuple(new.get(id(cell), cell) for cell in cells)
        defaults = tuple(parts[len(held) :]) or None
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, closure)
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    return labels, again


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _sequence(value: Any, parts: list[Any]) -> Any:
    return type(value)._make(parts) if hasattr(value, "_make") else type(value)(parts)


def _dict(value: dict[Any, Any], parts: list[Any]) -> Any:
    made = copy.copy(value)
    made.update(zip(value, parts, strict=True))
    return made


def _partial(parts: list[Any]) -> Any:
    function, arguments, keywords = parts
    return functools.partial(function, *arguments, **keywords)


def _object(value: Any, parts: list[Any]) -> Any:
    made = copy.copy(value)
    made.__dict__.update(zip(value.__dict__, parts, strict=True))
    return made
