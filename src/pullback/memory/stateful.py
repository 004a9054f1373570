"""Modules that change in forward: batch norm counts each batch once, though a rerun sees it again."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch.nn import Module

from pullback.torch_private import MODULE_TABLES

_, _BUFFERS, _MODULES = MODULE_TABLES


def modules_of(function: Callable[..., Any], module: Module | None, args: tuple[Any, ...]) -> list[Module]:
    """The modules that a call runs, as far as can be told without running it.

    Args:
        function: What is called: a module, a method of one, or a function whose closure captures some.
        module: One that is known besides.
        args: The arguments, which may be modules.
    """
    if isinstance(function, functools.partial):
        args = (*function.args, *args)
        function = function.func
    found = [function, module, getattr(function, "__self__", None), *args]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return [value for value in found if isinstance(value, Module)]


def buffers_aside(stack: contextlib.ExitStack, modules: Iterable[Module]) -> None:
    """Have `modules` that are in training mode work on copies of their buffers, until `stack` is left."""
    open_, seen = list(modules), set[int]()
    while open_:  # as Module.modules() does, which takes three times as long
        module = open_.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        tables = vars(module)
        buffers = tables.get(_BUFFERS)
        if buffers and module.training:
            for name, buffer in buffers.items():
                if buffer is not None:
                    stack.callback(buffers.__setitem__, name, buffer)
                    buffers[name] = buffer.clone()
        open_ += [part for part in tables.get(_MODULES, {}).values() if part is not None]
