"""What names are where a condition holds: after ``if x is None``, ``isinstance(x, Tensor)`` and the like."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from pullback.lint.values import NONE, Kind, Value, a

Env: TypeAlias = dict[str, Value]
"""Name -> value; ``ctx.x`` for what this method put on ctx."""

_TYPES: Mapping[str, Kind] = {
    "int": "number", "float": "number", "complex": "number", "Number": "number", "Integral": "number",
    "Real": "number", "bool": "bool", "str": "text", "tuple": "tuple", "list": "list", "dict": "dict", "set": "set",
    "Size": "shape", "dtype": "dtype", "ndarray": "array",
}  # fmt: skip


def narrowed(env: Env, test: ast.expr, holds: bool) -> Env:
    """What the names are where a condition holds, or doesn't."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return narrowed(env, test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is holds:
            for part in test.values:
                env = narrowed(env, part, holds)
        return env
    if isinstance(test, ast.Name):
        return _without(env, test.id, "none") if holds else env
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Name):
        other, operator = test.comparators[0], test.ops[0]
        if isinstance(other, ast.Constant) and other.value is None and isinstance(operator, (ast.Is, ast.IsNot)):
            if isinstance(operator, ast.IsNot) is holds:
                return _without(env, test.left.id, "none")
            value = env.get(test.left.id)
            return env if value is None else {**env, test.left.id: NONE}
    if isinstance(test, ast.Call) and test.args and isinstance(test.args[0], ast.Name):
        return _known_by_test(env, test, test.args[0].id, holds)
    return env


def _known_by_test(env: Env, test: ast.Call, name: str, holds: bool) -> Env:
    value, called = env.get(name), ast.unparse(test.func)
    if value is None:
        return env
    asked = _kinds(test.args[1]) if called == "isinstance" and len(test.args) == 2 else frozenset()
    if called.endswith("is_tensor"):
        asked = frozenset(("tensor",))
    elif not holds and re.search(r"\wTensor\b", ast.unparse(test)):  # no such subclass, but maybe a tensor
        return env
    if holds and asked == {"tensor"}:
        return {**env, name: replace(value, kinds=asked)}
    if holds and asked and "tensor" not in asked:
        return {**env, name: a(*sorted(asked))}
    if not holds and "tensor" in asked and asked - {"number"} == {"tensor"}:
        # No tensor any more: what else it may be, or, where nothing is known, something that no rule speaks of.
        return {**env, name: a(*sorted(value.kinds - asked - {"unknown"}) or ("unknown",))}
    return env


def _kinds(types: ast.expr) -> frozenset[Kind]:
    """What is an instance of these types; empty where one of them isn't known."""
    if isinstance(types, ast.BinOp) and isinstance(types.op, ast.BitOr):
        several: list[ast.expr] = [types.left, types.right]
    elif isinstance(types, ast.Tuple) and types.elts:
        several = types.elts
    else:
        written = ast.unparse(types)
        kind: Kind | None = "tensor" if written.endswith("Tensor") else _TYPES.get(written.rpartition(".")[2])
        return frozenset((kind,)) if kind is not None else frozenset()
    found = [_kinds(one) for one in several]
    return frozenset().union(*found) if all(found) else frozenset()


def _without(env: Env, name: str, kind: Kind) -> Env:
    value = env.get(name)
    if value is None or kind not in value.kinds or value.kinds == {kind}:
        return env
    return {**env, name: replace(value, kinds=value.kinds - {kind})}
