"""Which of pullback's own frames Dynamo leaves to Python: all but those where a call begins.

NOTE [frames of pullback]: while compiled code runs, Dynamo looks at every Python frame that begins beneath it: when the
engine calls a node, or when PyTorch's ``apply`` calls forward. It would compile pullback's machinery piece by piece,
which is slow, and outside of what it can follow (transforms of torch.func that are entered by hand) it goes wrong. The
author's frames are left to it, as they are by PyTorch, whose own frames it doesn't compile either. Code that is traced
from outside still goes into these functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pullback.torch_private import leave_to_python


def leave_modules(*packages: str, but: tuple[Callable[..., Any], ...] = ()) -> None:
    """Leave to Python what has been defined in the modules of `packages` so far, but for some functions."""
    traced = {function.__code__ for function in but}
    for name, module in list(sys.modules.items()):
        if name.startswith(packages):
            for code in _codes(module):
                if code not in traced:
                    leave_to_python(code)


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of `function` that Dynamo leaves to Python, whatever becomes of the original."""
    assert isinstance(function, FunctionType)
    # Code that is equal is still another object, by which Dynamo goes; the name shows which one a traceback means.
    code = function.__code__.replace(co_name=f"{function.__name__}_in_python")
    leave_to_python(code)
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """The code of all that `module` defines."""
    for value in vars(module).values():
        if getattr(value, "__module__", None) == module.__name__:
            for entry in vars(value).values() if isinstance(value, type) else (value,):
                yield from _codes_of(entry)


def _codes_of(value: Any) -> Iterator[CodeType]:
    """The code of a function, a method or a property, and of what is defined within it."""
    for name in ("__func__", "func", "fget", "__wrapped__"):
        value = getattr(value, name, value)
    if isinstance(value, FunctionType):
        yield from _with_inner(value.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
