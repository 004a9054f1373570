"""What an author declares constant, of the tensors that forward saves."""

from __future__ import annotations

from typing import Any

import torch

from pullback.errors import CallError

NONE: tuple[Any, ...] = ()
"""No declared constants; the default, known by its identity, so that most calls pay one comparison."""


def declared_constants(constants: Any, name: str) -> tuple[Any, ...]:
    """The tensors (or Nones) that ``save_for_backward`` was given as constants.

    Args:
        constants: What the author wrote.
        name: The class, for the error.

    Raises:
        CallError: PB110, they aren't a tuple or list of tensors.
    """
    if isinstance(constants, (tuple, list)):
        wrong = next((entry for entry in constants if not _can_be_saved(entry)), None)
        if wrong is None:
            return tuple(constants)
        got = f"{_kind(wrong)} among them"
        remedy = "Keep what isn't a tensor as an attribute of ctx: ctx.scale = scale."
    else:
        got = _kind(constants)
        remedy = "Write constants=(mask,)."
        if not isinstance(constants, torch.Tensor):
            remedy += " Keep what isn't a tensor as an attribute of ctx."
    raise CallError(
        "PB110",
        f"{name}: ctx.save_for_backward was given constants that aren't a tuple of tensors.",
        expected="a tuple of tensors",
        got=got,
        remedy=remedy,
    )


def _can_be_saved(entry: Any) -> bool:
    return entry is None or isinstance(entry, torch.Tensor)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"
