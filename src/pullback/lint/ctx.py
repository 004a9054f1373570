"""What the methods of a Function do with ctx, as it stands in their source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from pullback.lint.analysis import Analysis
from pullback.lint.functions import Method
from pullback.lint.parts import integer
from pullback.lint.walks import is_odd, is_twofold

WITH_CTX = ("forward", "setup_context", "backward", "vjp", "jvp", "double_backward")
"""Methods that get ctx."""

SAVED = ("saved_tensors", "saved_variables")
"""Attributes of ctx that hold what was saved."""


def methods(analysis: Analysis) -> Iterator[Method]:
    """Every method that gets ctx, of the class and of those it derives from, overridden ones included."""
    for function in analysis.function.lineage():
        for name in WITH_CTX:
            if name in function.own:
                yield function.own[name]


class Use(NamedTuple):
    """What a method does with its ctx.

    Attributes:
        attributes: Every ``ctx.name`` in it.
        escapes: Whether ctx itself is handed on, or called by another name, or its name stands for something else too.
    """

    attributes: tuple[ast.Attribute, ...]
    escapes: bool


_uses: WeakKeyDictionary[Method, Use] = WeakKeyDictionary()


def _use(method: Method) -> Use:
    if method not in _uses:
        named: list[ast.Attribute] = []
        loads = plain = given = 0
        for node in method.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == method.ctx:
                named.append(node)
                plain += not node.attr.startswith("__")
            elif isinstance(node, ast.Name) and node.id == method.ctx and isinstance(node.ctx, ast.Load):
                loads += 1
            elif (isinstance(node, ast.arg) and node.arg == method.ctx) or (
                isinstance(node, ast.Name) and node.id == method.ctx
            ):
                given += 1  # the method's own parameter, that of a function in it, or an assignment
            elif isinstance(node, ast.Call):
                plain += _asks_by_name(node, method.ctx)
        named.sort(key=lambda node: (node.lineno, node.col_offset))
        _uses[method] = Use(tuple(named), loads > plain or given > 1) if method.ctx else Use((), False)
    return _uses[method]


def _asks_by_name(node: ast.Call, ctx: str) -> bool:
    """Whether a call is ``getattr(ctx, "name")`` or the like, with a name that isn't that of the saved tensors."""
    if not (isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr", "delattr")):
        return False
    if len(node.args) < 2 or not (isinstance(node.args[0], ast.Name) and node.args[0].id == ctx):
        return False
    name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
    return isinstance(name, str) and bool(name) and not name.startswith(("sav", "to_save", "__"))


def attributes(method: Method) -> tuple[ast.Attribute, ...]:
    """Every ``ctx.name`` in a method."""
    return _use(method).attributes


def escapes(method: Method | None) -> bool:
    """Whether ctx itself is handed on, or called by another name, so that others may set or read what is on it."""
    return method is not None and _use(method).escapes


def is_closed(analysis: Analysis) -> bool:
    """Whether all that is put on ctx can be seen: no unknown base, and nobody else gets ctx before backward."""
    function = analysis.function
    if (
        function.is_open
        or function.forward is None
        or any(name in one.assigned for one in function.lineage() for name in WITH_CTX)
        or any(is_twofold(analysis, name) for name in ("forward", "setup_context"))
    ):
        return False
    keepers = [function.method(name) for name in ("forward", "setup_context")]
    return not any(escapes(method) or is_odd(method) for method in keepers)


def keeper_name(analysis: Analysis) -> str:
    """The method that fills ctx."""
    return "forward" if analysis.function.setup_context is None else "setup_context"


class Reading(NamedTuple):
    """One place where saved tensors are read.

    Attributes:
        method: The method.
        node: The expression ``ctx.saved_tensors``.
        names: The targets that it is unpacked to, in order; None where it is used in another way.
        at: The index that is read; None where it isn't one.
    """

    method: Method
    node: ast.Attribute
    names: tuple[ast.expr, ...] | None
    at: int | None

    @property
    def star(self) -> int | None:
        """The position of the target with a star."""
        stars = [n for n, one in enumerate(self.names or ()) if isinstance(one, ast.Starred)]
        return stars[0] if stars else None


def readings(method: Method) -> list[Reading]:
    """Every place where a method reads saved tensors."""
    several = [node for node in attributes(method) if node.attr in SAVED]
    if not several:
        return []
    around = {id(child): node for node in method.nodes for child in ast.iter_child_nodes(node)}
    found = []
    for node in several:
        parent, names, index = around.get(id(node)), None, None
        if (
            isinstance(parent, ast.Assign)
            and len(parent.targets) == 1
            and isinstance(parent.targets[0], (ast.Tuple, ast.List))
        ):
            names = tuple(parent.targets[0].elts)
        elif isinstance(parent, ast.Subscript) and parent.value is node:
            index = integer(parent.slice)
        found.append(Reading(method, node, names, index))
    return found
