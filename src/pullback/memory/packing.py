"""Who packs saved tensors, and what each thing that it keeps is called: the arguments of a call, its random state.

Both checkpoint and recompute keep what their second run needs in an object behind their hook. Where each thing lies in
it is their own affair; so its path is read, and a path of another form stays as it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from pullback.memory.rerun import Call
from pullback.torch_private import tree_flatten, tree_unflatten


class Packer(NamedTuple):
    """The hook that brings a saved tensor back.

    Attributes:
        operation: What to call it: ``checkpoint``, ``recompute``, or ``hook`` and the hook's name.
        call: What it runs again, for checkpoint and recompute: the path of a module, or the name of a function.
        module: The path of the module that it runs again; None where it is a function, or no path is known.
    """

    operation: str
    call: str
    module: str | None


def packer(hook: Any, path_of: Callable[[nn.Module], str]) -> Packer:
    """Who a hook belongs to.

    Args:
        hook: The hook.
        path_of: Tells the path of a module; empty for one that didn't run.
    """
    function = getattr(hook, "__func__", hook)
    owner = getattr(hook, "__self__", None)
    if isinstance(owner, Call):
        return _of("recompute", owner._function, owner._name, path_of)
    if (getattr(function, "__module__", "") or "") == "torch.utils.checkpoint":
        again = getattr(_captured(function).get("frame"), "recompute_fn", None)
        return _of("checkpoint", _captured(again).get("fn"), "", path_of)
    name: str = getattr(function, "__qualname__", type(hook).__name__)
    return Packer(f"hook {name.replace('.<locals>', '')}", "", None)


def _of(operation: str, function: Any, name: str, path_of: Callable[[nn.Module], str]) -> Packer:
    module = _module_of(function)
    path = "" if module is None else path_of(module)
    name = path or name or getattr(function, "__qualname__", type(function).__name__)
    return Packer(operation, name.replace("<locals>.", ""), path or None)


def _module_of(function: Any) -> nn.Module | None:
    """The module that a call runs: given as such, by its forward, or by a part of it with the module as first."""
    if isinstance(function, functools.partial):
        function = function.args[0] if function.args else None
    elif getattr(function, "__name__", "") == "forward":
        function = getattr(function, "__self__", None)
    return function if isinstance(function, nn.Module) else None


def argument_of(hook: Any, path: str) -> str:
    """What lies under `path` of the object behind a hook: ``argument 0``, ``random state``."""
    path = path.lstrip(".")
    for pattern, name in _NAMES:
        found = re.match(pattern, path)
        if found:
            return name.format(*found.groups())
    place = re.match(r"_inputs\.leaves\[(\d+)\]", path)
    if place:
        return _argument(hook.__self__._inputs, int(place[1]))
    return path


def packed(hook: Any, data: Any) -> Any:
    """What stands for a saved tensor: that which recompute refers to has its count of writes beside it."""
    return data[0] if isinstance(getattr(hook, "__self__", None), Call) and type(data) is tuple else data


_NAMES = (
    (r"_conditions\.generators", "random state"),
    (r"_state\.", "state of modules and generators"),
    (r"frame\.saved_args\[(\d+)\]", "argument {}"),
    (r"frame\.recompute_fn\.kwargs\['(\w+)'\]", "argument {}"),
    (r"frame\.recompute_fn\.fwd_\w*states?", "random state"),
    (r"frame\.recompute_fn\.fn\.(.*)", "captured {}"),
)


def _argument(inputs: Any, place: int) -> str:
    """How an argument was given: by its position, or by its keyword."""
    if inputs.structure is None:
        return f"argument {place}"
    # The structure filled with the numbers of its leaves shows where each one lies.
    args, kwargs = tree_unflatten(list(range(len(inputs.leaves))), inputs.structure)
    for name, value in (*enumerate(args), *kwargs.items()):
        if place in tree_flatten(value)[0]:
            return f"argument {name}"
    return "argument"


def _captured(function: Any) -> dict[str, Any]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found
