"""Gradients by name under ``torch.compile``, which reads the author's backward itself and knows tuples alone.

In eager mode the node understands a dict (`pullback.call.gradients`). Dynamo never runs the node: it traces the method
on the author's class, and takes a dict for no gradients at all, in silence. So a backward whose code makes a dict is
wrapped, where the class is defined, in one that returns a tuple.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from typing import Any

import torch

from pullback.call.gradients import by_position
from pullback.define.definition import Definition
from pullback.torch_private import transforms_active


def wrap_named(cls: type, definition: Definition) -> None:
    """Let a backward (or vjp) of `cls` that makes a dict return its entries by position."""
    for name in ("backward", "vjp"):
        method = cls.__dict__.get(name)
        function: Any = getattr(method, "__func__", method)
        if isinstance(method, classmethod) or not _makes_dict(function):
            continue
        setattr(cls, name, staticmethod(_positional(function, definition)))


def _makes_dict(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    calls_dict = "dict" in code.co_names
    return calls_dict or any("_MAP" in instruction.opname for instruction in dis.get_instructions(code))


def _positional(backward: Callable[..., Any], definition: Definition) -> Callable[..., Any]:
    @functools.wraps(backward)
    def positional(ctx: Any, *grad_outputs: Any) -> Any:
        returned = backward(ctx, *grad_outputs)
        if type(returned) is not dict:
            return returned
        needs = ctx.needs_input_grad
        names = [definition.argument_name(index) for index in range(len(needs))]
        fits = all([name in names for name in returned])
        for name, needed in zip(names, needs, strict=True):
            fits = fits and (name in returned or not needed)
        if fits:
            return tuple([returned.get(name) for name in names])
        # What doesn't fit is the node's to judge, which knows the names of this call's arguments, where there is one.
        alone = torch.compiler.is_compiling() or transforms_active()
        return by_position(definition, needs, returned) if alone else returned

    return positional
