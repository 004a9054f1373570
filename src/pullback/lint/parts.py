"""Attributes, indices and slices of values."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from pullback.lint import tensors
from pullback.lint.values import BOOL, NUMBER, UNKNOWN, Value, a


def attribute_of(base: Value, name: str) -> Value:
    """What an attribute of a tensor is, or of what may be one."""
    if base.is_tensor is False and "array" not in base.kinds:
        return UNKNOWN
    if name == "shape":
        return a("shape")
    if name in ("dtype", "device"):
        return a("dtype") if name == "dtype" else a("device")
    if name in tensors.NUMBERS:
        return NUMBER
    if name in tensors.BOOLS:
        return BOOL
    if name in ("T", "mT", "H", "mH", "data", "real", "imag"):
        return base.seen_as("view" if name != "real" else "maybe")
    return UNKNOWN


def integer(node: ast.expr) -> int | None:
    """The number that a literal is, with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = integer(node.operand)
        return None if inner is None else -inner
    is_number = isinstance(node, ast.Constant) and type(node.value) is int
    return node.value if is_number and isinstance(node, ast.Constant) else None  # type: ignore[return-value]  # an int


def sliced(base: Value, node: ast.Slice) -> Value:
    """The items of a tuple between two literal bounds."""
    lower = 0 if node.lower is None else integer(node.lower)
    upper = None if node.upper is None else integer(node.upper)
    if node.step is not None or lower is None or (node.upper is not None and upper is None):
        return Value(base.kinds, family=(base.family[0], -1) if base.family else None)
    if base.items is not None:
        return Value(base.kinds, items=base.items[lower:upper])
    return base.rest(lower) if lower >= 0 and upper is None else Value(base.kinds, family=None)


def index_makes(node: ast.expr, index: Value, values: Mapping[int, Value]) -> str:
    """Whether indexing with this gives a ``view``, a ``copy``, or one of them."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    found = set()
    for part in parts:
        value = values.get(id(part), index)
        if isinstance(part, ast.Slice) or value.kinds <= {"number", "none"} or _is_ellipsis(part):
            found.add("view")
        elif value.is_tensor or value.kinds <= {"list", "bool"}:
            return "copy"
        else:
            found.add("maybe")
    return "view" if found == {"view"} else "maybe"


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis
