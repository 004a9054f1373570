"""The numbers in a function's source: what forward computes with them isn't computed with a number that it read."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any


def literals_of(*functions: Any) -> frozenset[float]:
    """The floats in the source of `functions`, and of those that they call or close over in the same module."""
    found: set[float] = set()
    waiting, seen = list(functions), set()
    while waiting:
        function = waiting.pop()
        function = getattr(function, "__func__", getattr(function, "__wrapped__", function))
        if not isinstance(function, types.FunctionType) or function in seen:
            continue
        seen.add(function)
        found.update(_floats(function.__code__))
        found.update(value for value in function.__defaults__ or () if isinstance(value, float))
        waiting.extend(_called(function))
    return frozenset(found)


def _floats(code: types.CodeType) -> Iterator[float]:
    for constant in code.co_consts:
        if isinstance(constant, float):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _floats(constant)


def _called(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if getattr(value, "__module__", None) == function.__module__:
            yield value
