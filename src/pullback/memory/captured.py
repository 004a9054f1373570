"""What does a function reach besides its arguments: modules, generators, and tensors that nobody gave it?

NOTE [search]: a rerun has to find these as the call did, and nothing says which they are. So the search goes where a
function gets its things from: its closure, its defaults, the globals that its code names, the object whose method it
is, and containers, functions and plain objects among those. It stops after `_MOST` things.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import Module

from pullback.call.kept import held_by

_MOST = 128
"""How many things one search looks at: a method of a large object isn't to cost more than its call."""

_NOTHING = frozenset(
    (
        *(int, float, complex, bool, str, bytes, slice, range, type, type(None), type(...)),
        *(types.ModuleType, types.BuiltinFunctionType, types.CodeType),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    )
)
"""Types whose objects lead nowhere; they are what most globals and arguments are of."""

_LIBRARIES = ("torch.", "numpy.", "builtins.", "pullback.", "collections.", "threading.", "logging.")


class Captured(NamedTuple):
    """What was found, each thing once.

    Attributes:
        modules: The outermost modules.
        tensors: Tensors that no module has.
        generators: Generators of random numbers.
    """

    modules: list[Module]
    tensors: list[Tensor]
    generators: list[Generator]


def captured_by(function: Callable[..., Any], module: Module | None, arguments: Iterable[Any]) -> Captured | None:
    """What a call reaches besides the tensors that it was given.

    Args:
        function: What is called.
        module: The module whose forward it is, which then is all that it reaches.
        arguments: Arguments that are no tensors.

    Returns:
        What there is; None where there is nothing.
    """
    open_ = [value for value in arguments if value.__class__ not in _NOTHING]
    if module is not None and not open_:  # as ever for a module
        return Captured([module], [], [])
    if module is not None:
        open_.append(module)
    elif function.__class__ is types.FunctionType:
        open_ += [part for part in _of_function(function) if part.__class__ not in _NOTHING]
    else:
        open_.append(function)
    if not open_:
        return None
    found = Captured([], [], [])
    seen: set[int] = set()
    for value in open_:  # which grows
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.tensors.append(value)
        elif isinstance(value, Module):
            found.modules.append(value)
        elif isinstance(value, Generator):
            found.generators.append(value)
        elif len(open_) < _MOST:
            open_ += [part for part in _parts(value) if part.__class__ not in _NOTHING][:_MOST]
    return found


def _parts(value: Any) -> Iterable[Any]:
    kind = type(value)
    if kind is types.FunctionType:
        return _of_function(value)
    if kind is functools.partial:
        return [value.func, *value.args, *value.keywords.values()]
    if kind is types.MethodType:
        return [value.__self__, value.__func__]
    if isinstance(value, dict):
        return list(dict.values(value))
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, type) or of_library(kind.__module__):
        return []
    call = kind.__dict__.get("__call__")
    return [*held_by(value).values(), *([] if call is None else [call])]


@functools.cache
def of_library(module: str | None) -> bool:
    """Whether a module of Python's is one of a library, whose things hold nothing of the user's."""
    return f"{module}.".startswith(_LIBRARIES)


def _of_function(function: types.FunctionType) -> list[Any]:
    if of_library(function.__module__):
        return []
    found: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    found += function.__defaults__ or ()
    found += (function.__kwdefaults__ or {}).values()
    variables = function.__globals__
    found += [variables[name] for name in _globals_of(function.__code__) if name in variables]
    return found


_names: dict[int, tuple[types.CodeType, tuple[str, ...]]] = {}
"""By the identity of a piece of code, which is held so that it stays: the globals that it names."""


def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    known = _names.get(id(code))
    if known is None:
        names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        for part in code.co_consts:
            if isinstance(part, types.CodeType):  # a lambda or comprehension within
                names.update(_globals_of(part))
        known = _names[id(code)] = code, tuple(names)
    return known[1]
