"""What is written down while a method is followed: conditions, and calls of methods of ctx."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from pullback.lint.values import Value


@dataclass(frozen=True)
class Facts:
    """What is known before a method is read.

    Attributes:
        attributes: What forward (or setup_context) put on ctx, by name.
        saved: What saved_tensors holds, in order, if that is the same on every path.
    """

    attributes: Mapping[str, Value] = field(default_factory=dict)
    saved: tuple[Value, ...] | None = None


@dataclass(frozen=True)
class Guard:
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


@dataclass(frozen=True)
class CtxCall:
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
