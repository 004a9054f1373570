"""By which path a function leads to a tensor that it captured: ``w``, ``self.weight``, ``scales[0]``."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.nn import Module

from pullback.call.kept import held_by

_DEPTH = 6
_MOST = 5000  # objects that are looked at for a name
_HOLDERS = (Tensor, Module, list, tuple, set, frozenset, dict)


def path_to(tensor: Tensor, function: Any, extra: Mapping[str, Any]) -> str:
    """The path by which `function`, or one of `extra`, leads to `tensor`; empty where none is found."""
    roots = [("", function), *extra.items()]
    seen: set[int] = set()
    level = [(name, value) for name, value in roots]
    for _ in range(_DEPTH):
        following: list[tuple[str, Any]] = []
        for path, value in level:
            if value is tensor:
                return path
            if id(value) in seen or len(seen) > _MOST:
                continue
            seen.add(id(value))
            following += _inside(path, value)
        level = following
    return ""


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` leads to, each with its path: ``w``, ``net.weight``, ``scales[0]``."""
    if isinstance(value, (Tensor, str, int, float, bytes, type(None))):
        return
    if isinstance(value, types.FunctionType):
        yield from _used_by(value)
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), (path, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((path, value.func), *((f"{path}[{k}]", item) for k, item in enumerate(value.args)))
        yield from ((name, item) for name, item in value.keywords.items())
    elif isinstance(value, Module):
        yield from ((_dotted(path, name), parameter) for name, parameter in value.named_parameters())
        yield from ((_dotted(path, name), item) for name, item in vars(value).items() if not name.startswith("_"))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, type):
        yield from ((_dotted(path, name), item) for name, item in _shared(value).items())
    elif not isinstance(value, types.ModuleType):
        wrapped = getattr(value, "__wrapped__", None)
        # Another decorated function is as good as what it decorates.
        yield from _inside(path, wrapped) if callable(wrapped) else ()
        own = {**_shared(type(value)), **held_by(value)}
        yield from ((_dotted(path, name), item) for name, item in own.items())


def _shared(cls: type) -> dict[str, Any]:
    """The attributes of a class that may hold tensors, and the method by which its objects are called."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ != "builtins":
            held = vars(base).items()
            found.update({n: value for n, value in held if isinstance(value, _HOLDERS) or n == "__call__"})
    return found


def _used_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function captures: its closure, its defaults, and the globals that its code names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    names = set(_names_in(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, (type, types.ModuleType)):  # of these what the code names
            yield from ((f"{name}.{entry}", vars(value)[entry]) for entry in sorted(names & vars(value).keys()))
        else:
            yield name, value
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield "", wrapped


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
