"""Does a method take what it is called with? Its parameters, counted and shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pullback.define.definition import Definition
from pullback.errors import DefinitionError

_STARS: Mapping[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}

_NO_NESTS = ("Tensor", "Parameter", "bool", "int", "float", "complex", "str", "dtype", "device")
"""Annotations of arguments that are no containers."""


def misfit(
    method: Callable[..., Any] | None, name: str, label: str, least: int, most: int, expected: str, remedy: str
) -> DefinitionError | None:
    """The error to raise where `method` can take no number of positional arguments from `least` to `most`, else None.

    Args:
        method: The author's method, as it is looked up on the class.
        name: Its name.
        label: The class and the method, such as ``Square.backward``.
        least: The fewest arguments that it may be given, ctx included.
        most: The most.
        expected: What it is given, in words.
        remedy: What to write.
    """
    signature = _signature(method)
    if signature is None or any(_binds(signature, count) for count in range(least, most + 1)):
        return None
    return DefinitionError(
        "PB111", f"{label} can't take what it is called with.", expected=expected, got=shown(name, signature),
        remedy=remedy,
    )  # fmt: skip


def backward_misfit(definition: Definition, name: str, grads: int) -> DefinitionError | None:
    """The error to raise where backward (or vjp) can't take ctx and `grads` grad_outputs, else None."""
    whose = "one grad_output" if grads == 1 else f"{grads} grad_outputs, one for each output"
    each = ["grad_output"] if grads == 1 else [f"grad_output_{index}" for index in range(grads)]
    return misfit(
        definition.backward,
        name,
        f"{definition.name}.{name}",
        grads + 1,
        grads + 1,
        f"ctx and {whose}",
        _remedy(name, each, "grad_outputs"),
    )


def double_backward_misfit(definition: Definition, arguments: int | None = None) -> DefinitionError | None:
    """The error to raise where double_backward can't take one grad_grad_input for each argument, else None.

    Args:
        definition: What the author wrote.
        arguments: How many a call was given; None where only the class is known, which may be certain all the same.
    """
    parameters = definition.signature.parameters.values()
    if arguments is not None:
        return leaves_misfit(definition, [definition.argument_name(index) for index in range(arguments)])
    if any(parameter.kind in _STARS for parameter in parameters):
        return None
    least, most = _arguments_of_a_call(definition)
    names = [definition.argument_name(index) for index in range(most)]
    if any(map(_may_be_nest, parameters)):  # a nest has any number of leaves, but for none at all
        taken = _signature(definition.double_backward)
        most = max(most, len(taken.parameters) if taken is not None else 0)
    return _double_backward_misfit(definition, names, least, most)


def leaves_misfit(definition: Definition, leaves: Sequence[str]) -> DefinitionError | None:
    """The error to raise where double_backward can't take one grad_grad_input for each of `leaves`, else None."""
    return _double_backward_misfit(definition, leaves, len(leaves), len(leaves))


def _double_backward_misfit(
    definition: Definition, names: Sequence[str], least: int, most: int
) -> DefinitionError | None:
    return misfit(
        definition.double_backward,
        "double_backward",
        f"{definition.name}.double_backward",
        least + 1,
        most + 1,
        f"ctx and one grad_grad_input for each of {', '.join(names)}",
        _remedy("double_backward", [f"gg_{name}" for name in names], "grad_grad_inputs"),
    )


def shown(name: str, signature: inspect.Signature) -> str:
    """`name` and its parameters without annotations, as in ``backward(ctx, g, scale=…)``."""
    parts, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        stars = _STARS.get(parameter.kind, "")
        given = "" if parameter.default is inspect.Parameter.empty else "=…"
        parts.append(f"{stars}{parameter.name}{given}")
    return f"{name}({', '.join(parts)})"


def _arguments_of_a_call(definition: Definition) -> tuple[int, int]:
    """The fewest and the most arguments that a call of forward may have."""
    parameters = definition.signature.parameters.values()
    most = len(parameters)
    if definition.style == "setup_context":  # the defaults are filled in
        return most, most
    return sum(parameter.default is inspect.Parameter.empty for parameter in parameters), most


def _may_be_nest(parameter: inspect.Parameter) -> bool:
    """Whether an argument may be a container of tensors, as far as the annotation tells."""
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rpartition(".")[2] not in _NO_NESTS


def _remedy(name: str, parameters: Sequence[str], rest: str) -> str:
    starred = f"{name}(ctx, *{rest})"
    if all(parameter.isidentifier() for parameter in parameters):
        return f"Write {name}({', '.join(('ctx', *parameters))}), or {starred}."
    return f"Write {starred}."


def _signature(method: Callable[..., Any] | None) -> inspect.Signature | None:
    try:
        return None if method is None else inspect.signature(method)
    except (TypeError, ValueError):
        return None


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*(None,) * count)
    except TypeError:
        return False
    return True
