"""Arguments given by keyword, and omitted defaults, as the positional arguments that a node is made of."""

from __future__ import annotations

import inspect
from typing import Any

from pullback.define.definition import Definition

_NO_PLACE = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


def bound(definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """forward's positional arguments for this call, or None where they can't all be given by position.

    As in PyTorch, a forward with setup_context gets all its defaults, and one that takes ctx those before the last
    argument that was given.
    """
    following = definition.by_keyword[len(args) : len(args) + len(kwargs)]
    all_given = definition.style == "ctx" or len(args) + len(kwargs) == len(definition.parameters)
    if all_given and len(following) == len(kwargs) and all(name in kwargs for name in following):
        return (*args, *[kwargs[name] for name in following])  # the common case, without binding a signature
    try:
        binding = definition.signature.bind(*args, **kwargs)
    except TypeError:
        return None
    if any(definition.signature.parameters[name].kind in _NO_PLACE for name in binding.arguments):
        return None
    if definition.style == "setup_context":
        binding.apply_defaults()
        return binding.args
    given = set(binding.arguments)
    binding.apply_defaults()
    arguments = list(binding.args)
    names = [*definition.parameters]
    while arguments and len(arguments) <= len(names) and names[len(arguments) - 1] not in given:
        arguments.pop()
    return tuple(arguments)


def takes_defaults(definition: Definition) -> bool:
    """Whether a call may leave out arguments that the node must have all the same (setup_context style)."""
    return definition.style == "setup_context" and any(
        parameter.default is not inspect.Parameter.empty for parameter in definition.signature.parameters.values()
    )
