"""What traced code finds on a class and can't make itself: facts, worked out in Python while Dynamo traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pullback.call.binding import takes_defaults
from pullback.call.casting import declares
from pullback.call.nests import is_container
from pullback.define.definition import Definition, describe
from pullback.errors import TransformError

TRACED = "pullback_traced"
"""The attribute of a class in which traced code finds what it can't make itself."""


class Facts(NamedTuple):
    """What a call goes by, as constants: traced code that reads them from the definition is guarded for each.

    Attributes:
        style: As in the definition.
        method: As in the definition.
        boxed: As in the definition.
        declares: Whether there is anything about autocast.
        flat: Whether the arguments are tensors and plain values, all in their places.
        names: Whether a gradient must be looked at by its argument's name.
    """

    style: str
    method: str
    boxed: bool
    declares: bool
    flat: bool
    names: bool


class Traced:
    """What traced code finds on a class.

    Attributes:
        definition: What the author wrote.
        apply: Runs a call, given the class and the arguments, in Python.
        refused: The same, and says why it isn't compiled; None until that is due.
    """

    def __init__(self, definition: Definition, apply: Callable[..., Any]) -> None:
        self.definition = definition
        self.apply = apply
        self.refused: Callable[..., Any] | None = None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch leaves it so
def prepared(cls: Any, kinds: tuple[type, ...], declared: tuple[Any, ...]) -> Facts:
    """In Python: bring up to date what traced code finds on `cls`, as methods may have been put there since.

    Args:
        cls: The author's class.
        kinds: The types of the arguments by place.
        declared: What the class declares that is here made into constants.
    """
    traced: Traced = getattr(cls, TRACED)
    definition = describe(cls)
    if TRACED not in vars(cls):  # a base's: the author's __init_subclass__ leaves that of pullback out
        traced = Traced(definition, traced.apply)
        setattr(cls, TRACED, traced)
    if traced.definition != definition:
        traced.definition = definition
    if traced.refused is None:
        traced.refused = torch.compiler.disable(traced.apply, reason=str(_refusal(definition)))
    return Facts(
        style=definition.style,
        method=definition.method,
        boxed=definition.boxed,
        declares=declares(definition),
        flat=not (declares(definition) or takes_defaults(definition) or any(map(_may_hold, kinds))),
        names=bool(definition.nondiff_argnames),
    )


def _refusal(definition: Definition) -> TransformError:
    return TransformError(
        "PB516",
        f"{definition.name}.apply under a torch.func transform, or in forward mode, can't be compiled: PyTorch would "
        "follow forward, and leave out the derivative that is written by hand.",
        remedy="Compile without fullgraph=True, which leaves this call to Python; or take the derivative with "
        "torch.autograd.grad, outside of the compiled function.",
    )


def _may_hold(kind: type) -> bool:
    return not issubclass(kind, Tensor) and (issubclass(kind, (tuple, list)) or is_container(kind))
