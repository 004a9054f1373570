"""Can a rule take what it will be called with? Judged when the rule is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pullback.custom.arguments import Arguments
from pullback.define.parameters import misfit, shown
from pullback.errors import DefinitionError


def demand_same_arguments(arguments: Arguments, rule: Callable[..., Any], role: str) -> None:
    """Raise where `rule` can't be called as the decorated function is.

    Raises:
        DefinitionError: PB111.
    """
    signature = _signature(rule)
    if signature is None or arguments.has_rest:  # any number of arguments may be given: only a call tells
        return
    by_place, by_keyword = arguments.call_shape
    try:
        signature.bind(*by_place, **dict.fromkeys(by_keyword))
    except TypeError:
        error = DefinitionError(
            "PB111",
            f"the {role} of {arguments.name} can't take what it is called with.",
            expected=f"the arguments of {shown(arguments.name, arguments.signature)}",
            got=shown(getattr(rule, "__name__", role), signature),
            remedy=f"Write {shown(role, arguments.signature)}.",
        )
    else:
        return
    raise error


def demand_places(name: str, rule: Callable[..., Any], role: str, given: Sequence[str], *, variadic: bool) -> None:
    """Raise where `rule` can't take the arguments `given`, by position.

    Args:
        name: The decorated function.
        rule: The rule.
        role: What it is to `name`.
        given: A name for each.
        variadic: Whether there may be others, so that nothing is known for certain.

    Raises:
        DefinitionError: PB111.
    """
    if variadic:
        return
    error = misfit(
        rule,
        getattr(rule, "__name__", role),
        f"the {role} of {name}",
        len(given),
        len(given),
        ", ".join(given),
        f"Write {role}({', '.join(given)}).",
    )
    if error is not None:
        raise error


def _signature(rule: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(rule)
    except (TypeError, ValueError):
        return None
