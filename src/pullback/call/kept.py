"""What an author keeps on ctx: the tensors in it, wherever they are, and the same with others in their place.

Attributes of ctx may be anything. Lists, tuples, dicts and sets are looked into, plain objects (dataclasses and
namespaces), partials, bound methods, and functions, whose closures are a common way to keep what backward needs.
"""

from __future__ import annotations

import collections
import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

_DEPTH = 5  # containers in containers; what lies deeper was hardly put there for backward


_COPIED = (
    *(list, tuple, set, frozenset, collections.deque, dict, functools.partial),
    *(types.MethodType, types.FunctionType, types.BuiltinMethodType, types.MethodWrapperType),
)
"""What is copied to exchange something in it."""


class Known:
    """Something on ctx in which nobody need look for tensors that forward computed.

    Args:
        value: The thing.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


Parts = tuple[Sequence[tuple[str, Any]], Callable[[list[Any]], Any]]


def leaves_of(
    path: str, value: Any, above: frozenset[int] | None = None, depth: int = _DEPTH
) -> Iterator[tuple[str, Any]]:
    """The tensors and numbers in `value`, each with its path: ``cache[0]``, ``cache['t'].mean``."""
    if isinstance(value, torch.Tensor) or is_number(value):
        yield path, value
        return
    if value is None or isinstance(value, (bool, int, str, torch.dtype, torch.Size)):
        return
    # Those that lead here, not all that were seen: what is kept in two places has two paths, and both are replaced.
    above = frozenset() if above is None else above
    parts = _parts(value) if depth and id(value) not in above else None
    for label, child in parts[0] if parts else ():
        yield from leaves_of(path + label, child, above | {id(value)}, depth - 1)


def is_number(value: Any) -> bool:
    """Whether `value` is a real or complex number, or NumPy's array of them: what may have been read from a tensor."""
    if isinstance(value, (float, complex)):
        return True
    return type(value).__module__ == "numpy" and getattr(getattr(value, "dtype", None), "kind", None) in ("f", "c")


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


def exchanged(value: Any, others: Mapping[int, Any], above: frozenset[int] = frozenset(), depth: int = _DEPTH) -> Any:
    """`value` with the objects of these identities replaced; the same object where none is in it.

    Containers and functions are copied where they hold one; other objects aren't, since what they are told is to be
    seen by whoever else has them.
    """
    if id(value) in others:
        return others[id(value)]
    parts = _parts(value) if depth and id(value) not in above and isinstance(value, _COPIED) else None
    if parts is None:
        return value
    above = above | {id(value)}
    children = [exchanged(child, others, above, depth - 1) for _, child in parts[0]]
    if all(new is old for new, (_, old) in zip(children, parts[0], strict=True)):
        return value
    return parts[1](children)


def _parts(value: Any) -> Parts | None:
    """What `value` is made of, with a label for each part, and what makes another like it; None for the rest."""
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return [(f"[{index}]", item) for index, item in enumerate(value)], functools.partial(_sequence, value)
    if isinstance(value, dict):
        return [*zip(_keys(value), value.values(), strict=True)], functools.partial(_dict, value)
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)], _partial
    if isinstance(value, types.MethodType):
        return [(".__self__", value.__self__)], lambda parts: types.MethodType(value.__func__, parts[0])
    if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):  # such as a dict's __getitem__
        return [(".__self__", value.__self__)], lambda parts: getattr(parts[0], value.__name__)
    if isinstance(value, types.FunctionType):
        return _function_parts(value)
    if isinstance(value, (Known, type, types.ModuleType, torch.autograd.graph.Node)):
        return None
    held = held_by(value)
    return ([(f".{name}", item) for name, item in held.items()], functools.partial(_object, value)) if held else None


def held_by(value: Any) -> dict[str, Any]:
    """The attributes of a plain object, in its __dict__ and in its slots."""
    own = getattr(value, "__dict__", None)
    held = dict(own) if isinstance(own, dict) else {}
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                held[name] = getattr(value, name)
    return held


def _function_parts(function: types.FunctionType) -> Parts:
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    held = [(name, cell) for name, cell in zip(names, cells, strict=True) if _filled(cell)]
    labels = [(f".{name}", cell.cell_contents) for name, cell in held]
    labels += [(f".__defaults__[{index}]", item) for index, item in enumerate(function.__defaults__ or ())]
    labels += [(f".__kwdefaults__[{name!r}]", item) for name, item in (function.__kwdefaults__ or {}).items()]

    def again(parts: list[Any]) -> Any:
        new = {id(cell): types.CellType(part) for (_, cell), part in zip(held, parts, strict=False)}
        closure = tuple(new.get(id(cell), cell) for cell in cells)
        end = len(held) + len(function.__defaults__ or ())
        defaults = tuple(parts[len(held) : end]) or None
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, closure)
        made.__dict__.update(function.__dict__)
        if function.__kwdefaults__:
            made.__kwdefaults__ = dict(zip(function.__kwdefaults__, parts[end:], strict=True))
        return made

    return labels, again


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _keys(value: dict[Any, Any]) -> list[str]:
    """A label for each key; keys that read the same, as objects may, are told apart by their place."""
    labels = [f"[{key!r}]" for key in value]
    same = len(set(labels)) < len(labels)
    return [f"{label}#{place}" for place, label in enumerate(labels)] if same else labels


def _sequence(value: Any, parts: list[Any]) -> Any:
    if isinstance(value, list):  # of any class: it may be made otherwise than from a list
        made = copy.copy(value)
        made[:] = parts
        return made
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
    for name, part in zip(held_by(value), parts, strict=True):
        object.__setattr__(made, name, part)
    return made
