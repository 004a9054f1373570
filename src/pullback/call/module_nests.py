"""A module as a nest of its parameters, and the same module with other tensors in their place."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import Module

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

    What is one parameter or one submodule under several names is one in the copy too. Buffers are shared.
    """
    own, _ = parameters_of(module)
    swapped = {id(own[name]): tensor for name, tensor in tensors.items() if own.get(name) is not tensor}
    return _copied(module, swapped, {}) if swapped else module


def _copied(module: Module, swapped: Mapping[int, Tensor], made: dict[int, Module]) -> Module:
    if id(module) in made:
        return made[id(module)]
    copy = made[id(module)] = module.__class__.__new__(module.__class__)
    attributes = dict(module.__dict__)
    parameters, buffers, modules = (attributes[name] for name in MODULE_TABLES)
    children = {n: None if child is None else _copied(child, swapped, made) for n, child in modules.items()}
    tables = ({name: swapped.get(id(old), old) for name, old in parameters.items()}, dict(buffers), children)
    attributes.update(zip(MODULE_TABLES, tables, strict=True))
    for name, value in attributes.items():
        if isinstance(value, list) and any(id(entry) in swapped for entry in value):  # as recurrent layers do
            attributes[name] = [swapped.get(id(entry), entry) for entry in value]
    copy.__dict__.update(attributes)
    return copy
