"""What names are where a condition holds: after ``if x is None``, ``isinstance(x, Tensor)`` and the like."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TypeAlias

from pullback.lint.values import NONE, Kind, Value

Env: TypeAlias = dict[str, Value]
"""Name -> value; ``ctx.x`` for what this method put on ctx."""


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
    if holds and isinstance(test, ast.Call) and test.args and isinstance(test.args[0], ast.Name):
        return _known_by_test(env, test, test.args[0].id)
    return env


def _known_by_test(env: Env, test: ast.Call, name: str) -> Env:
    called = ast.unparse(test.func)
    asked = ast.unparse(test.args[1]) if len(test.args) > 1 else ""
    is_tensor = called.endswith("is_tensor") or (called == "isinstance" and asked.endswith("Tensor"))
    value = env.get(name)
    return {**env, name: replace(value, kinds=frozenset(("tensor",)))} if is_tensor and value is not None else env


def _without(env: Env, name: str, kind: Kind) -> Env:
    value = env.get(name)
    if value is None or kind not in value.kinds or value.kinds == {kind}:
        return env
    return {**env, name: replace(value, kinds=value.kinds - {kind})}
