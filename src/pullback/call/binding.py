"""Arguments given by keyword, and omitted defaults: what forward is called with, in its own order."""

from __future__ import annotations

import inspect
from typing import Any

from pullback.define.definition import Definition


def bound(definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """forward's positional arguments for this call, or None where they can't all be given by position.

    As in PyTorch, a forward with setup_context gets all its defaults, and one that takes ctx those before the last
    argument that was given.
    """
    found = bound_call(definition, args, kwargs)
    return None if found is None or found[1] else found[0]


def bound_call(
    definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """forward's arguments for this call, by position and those that only go by keyword; None where they don't fit.

    The defaults before the last argument that was given are filled in, counting keyword-only ones after the others.
    """
    following = definition.by_keyword[len(args) : len(args) + len(kwargs)]
    due = len(definition.parameters) + len(definition.keyword_only)
    all_given = definition.style == "ctx" or len(args) + len(kwargs) == due
    if all_given and len(following) == len(kwargs) and all(name in kwargs for name in following):
        return (*args, *[kwargs[name] for name in following]), {}  # the common case, without binding a signature
    try:
        binding = definition.signature.bind(*args, **kwargs)
    except TypeError:
        return None
    given = set(binding.arguments)
    binding.apply_defaults()
    keywords = _keywords(definition, binding, given)
    if definition.style == "setup_context" or keywords:
        return binding.args, keywords
    arguments = list(binding.args)
    names = [*definition.parameters]
    while arguments and len(arguments) <= len(names) and names[len(arguments) - 1] not in given:
        arguments.pop()
    return tuple(arguments), {}


def _keywords(definition: Definition, binding: inspect.BoundArguments, given: set[str]) -> dict[str, Any]:
    """The arguments that go by keyword: keyword-only ones up to the last that was given, then what `**rest` takes."""
    names = list(definition.keyword_only)
    more = [name for name in binding.kwargs if name not in names]  # as Dynamo can follow it
    if definition.style == "ctx" and not more:
        while names and names[-1] not in given:
            names.pop()
    return {
        **{name: binding.arguments[name] for name in names},
        **{name: binding.kwargs[name] for name in more},
    }


def takes_defaults(definition: Definition) -> bool:
    """Whether a call may leave out arguments that the node must have all the same (setup_context style)."""
    return definition.style == "setup_context" and any(
        parameter.default is not inspect.Parameter.empty for parameter in definition.signature.parameters.values()
    )
