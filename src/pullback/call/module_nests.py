"""A module as a nest of its parameters, and the same module with other tensors in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import Module

from pullback.call.kept import exchanged
from pullback.torch_private import MODULE_TABLES


def parameters_of(module: Module) -> tuple[dict[str, Tensor], tuple[tuple[str, str], ...]]:
    """The parameters of `module` and its submodules by their first names; further names, each with the first."""
    named: dict[str, Tensor] = {}
    first: dict[int, str] = {}
    ties = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known == name:
            named[name] = parameter
        else:
            ties.append((name, known))
    return named, tuple(ties)


def with_parameters(module: Module, tensors: Mapping[str, Tensor]) -> Module:
    """`module` with these tensors for its parameters: itself if they are its own, else a copy that shares the rest.

    What is one parameter or one submodule under several names is one in the copy too, and so where an attribute leads
    to it: a list of submodules, a bound method, a closure. Buffers are shared.
    """
    own, _ = parameters_of(module)
    swapped: dict[int, Any] = {id(own[name]): tensor for name, tensor in tensors.items() if own.get(name) is not tensor}
    if not swapped:
        return module
    modules = list(module.modules())
    copies = [part.__class__.__new__(part.__class__) for part in modules]
    swapped.update({id(part): copy for part, copy in zip(modules, copies, strict=True)})
    for part, copy in zip(modules, copies, strict=True):
        copy.__dict__.update(_attributes(part, swapped))
    return copies[0]


def _attributes(module: Module, swapped: Mapping[int, Any]) -> dict[str, Any]:
    """The attributes of a copy of `module`."""
    attributes = dict(module.__dict__)
    parameters, buffers, children = (attributes.pop(name) for name in MODULE_TABLES)
    attributes = {name: exchanged(value, swapped) for name, value in attributes.items()}
    parameters, children = (
        {name: swapped.get(id(old), old) for name, old in table.items()} for table in (parameters, children)
    )
    attributes.update(zip(MODULE_TABLES, (parameters, dict(buffers), children), strict=True))
    return _not_compiled(attributes, children)


def _not_compiled(attributes: dict[str, Any], children: Mapping[str, Any]) -> dict[str, Any]:
    """The same without compiled code, which holds the module that it was compiled for."""
    if attributes.get("_compiled_call_impl") is not None:
        attributes["_compiled_call_impl"] = None
    if "dynamo_ctx" in attributes and children.get("_orig_mod") is not None:
        attributes["forward"] = children["_orig_mod"].__call__
    return attributes
