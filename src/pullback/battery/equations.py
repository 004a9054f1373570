"""Shapes that a forward itself tells: those of the arguments of its ``einsum``, from the letters of the equation."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from pullback.battery.guesses import Guess, Made, Shape, Slot

_SIZES = ((2, 3, 4, 5), (3, 4, 2, 5))
"""The sizes of the letters in the order in which they come, for two samples; later ones are 2 and 3 by turns."""


def by_equation(function: Callable[..., Any] | None, slots: tuple[Slot, ...]) -> Iterator[list[Guess]]:
    """Guesses for a function whose source has an equation over its arguments; none where it has none.

    Args:
        function: The function, or a class's forward.
        slots: The arguments to fill.
    """
    letters = _letters(function)
    named = [slot.name for slot in slots if slot.open and slot.name in letters]
    if not named:
        return
    order = list(dict.fromkeys("".join(letters[name] for name in letters)))
    family = []
    for sizes in _SIZES:
        size = {letter: sizes[i] if i < len(sizes) else 2 + i % 2 for i, letter in enumerate(order)}
        shapes: dict[str, Shape] = {name: tuple(size[letter] for letter in letters[name]) for name in named}
        entries = (Made(shapes.get(slot.name, shapes[named[0]])) if slot.open else slot.value for slot in slots)
        family.append(Guess(slots, tuple(entries)))
    yield family


def _letters(function: Callable[..., Any] | None) -> dict[str, str]:
    """What equations call the axes of each name that they are over."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))  # type: ignore[arg-type]  # None raises
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("einsum") or not node.args:
            continue
        equation, *operands = node.args
        if not isinstance(equation, ast.Constant) or not isinstance(equation.value, str):
            continue
        sides = equation.value.replace(" ", "").partition("->")[0].split(",")
        for side, operand in zip(sides, operands, strict=False):
            if isinstance(operand, ast.Name) and side.isalpha():
                found.setdefault(operand.id, side)
    return found
