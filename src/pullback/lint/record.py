"""What is written down while a method is followed: conditions, and calls of methods of ctx."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pullback.lint.values import Value


class Facts(NamedTuple):
    """What is known before a method is read.

    Attributes:
        attributes: What forward (or setup_context) put on ctx, by name.
        saved: What saved_tensors holds, in order, if that is the same on every path.
    """

    attributes: Mapping[str, Value] = MappingProxyType({})
    saved: tuple[Value, ...] | None = None


class Guard(NamedTuple):
    """What a statement or expression stands under.

    Attributes:
        kind: ``if`` (also of a conditional expression, ``and``, ``or``, ``while``), ``with``, ``for``, ``try``,
            ``except`` or ``def`` (a function inside the method).
        test: The condition, the context manager, or what is looped over; None for ``try`` and ``def``.
        holds: Whether the condition holds there.
    """

    kind: str
    test: ast.expr | None
    holds: bool = True


class CtxCall(NamedTuple):
    """A call of a method of ctx, such as ``ctx.save_for_backward(x, *others)``.

    Attributes:
        name: The method.
        node: The call.
        values: The arguments by position, stars spread where it is known what they hold.
        whole: Whether that was always known.
        guards: What it stands under.
    """

    name: str
    node: ast.Call
    values: tuple[Value, ...]
    whole: bool
    guards: tuple[Guard, ...]
