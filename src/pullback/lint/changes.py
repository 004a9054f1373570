"""Which names statements read, set or change, as far as their source shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

_CHANGERS = ("append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort")
"""Methods that change a list."""

_INNER = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def loads(node: ast.AST) -> list[ast.Name]:
    """The names that are surely read when a statement runs, in order."""
    found: list[ast.Name] = []
    if isinstance(node, ast.Name):
        return [node] if isinstance(node.ctx, ast.Load) else []
    if isinstance(
        node, (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.GeneratorExp, ast.ListComp)
    ):
        return []
    if isinstance(node, (ast.SetComp, ast.DictComp, ast.Delete, ast.BoolOp, ast.IfExp)):
        return []  # what stands in a later part of `and`, `or` and `if else` may never be read
    for child in ast.iter_child_nodes(node):
        found.extend(loads(child))
    return found


def set_in(node: ast.AST) -> list[str]:
    """Every name that is set somewhere in a statement, but for those that are only added to (``x += 1``)."""
    added = {id(one.target) for one in ast.walk(node) if isinstance(one, ast.AugAssign)}
    found: dict[str, None] = {}
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, (ast.Store, ast.Del)) and id(one) not in added:
            found[one.id] = None
        elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[one.name] = None
        elif isinstance(one, (ast.MatchAs, ast.MatchStar)) and one.name:
            found[one.name] = None
        elif isinstance(one, ast.MatchMapping) and one.rest:
            found[one.rest] = None
        elif isinstance(one, ast.ExceptHandler) and one.name:
            found[one.name] = None
        elif isinstance(one, ast.alias):
            found[(one.asname or one.name).partition(".")[0]] = None
    return [*found]


def changed_in(node: ast.AST) -> set[str]:
    """Every name whose contents may be changed somewhere in a statement, or which is added to."""
    added = {
        one.target.id for one in ast.walk(node) if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name)
    }
    return added | _changed(ast.walk(node))


def untracked(node: ast.FunctionDef, nodes: Sequence[ast.AST]) -> frozenset[str]:
    """The names of a method that can't be followed from statement to statement.

    Those are the names that functions inside it set or change, and lists that go by two names of which one is changed.

    Args:
        node: The method.
        nodes: Every node of it.
    """
    found: set[str] = set()
    pairs: list[list[str]] = []
    for one in nodes:
        if isinstance(one, (ast.Nonlocal, ast.Global)):
            found.update(one.names)
        elif isinstance(one, _INNER) and one is not node:
            found |= _changed(ast.walk(one))
        elif isinstance(one, ast.Assign):
            several = [name.id for name in (*one.targets, one.value) if isinstance(name, ast.Name)]
            if len(several) > 1:
                pairs.append(several)
        elif isinstance(one, ast.Delete):
            parts = [part.value for part in one.targets if isinstance(part, ast.Subscript)]
            found |= {part.id for part in parts if isinstance(part, ast.Name)}
    changed = _changed(nodes) if pairs else set()
    for names in pairs:
        if changed & set(names):
            found.update(names)
    return frozenset(found)


def _changed(nodes: Iterable[ast.AST]) -> set[str]:
    """The names whose contents some of the nodes change."""
    found: set[str] = set()
    for one in nodes:
        if isinstance(one, (ast.Subscript, ast.Attribute)) and isinstance(one.value, ast.Name):
            stored = isinstance(one, ast.Subscript) and not isinstance(one.ctx, ast.Load)
            if stored or (isinstance(one, ast.Attribute) and one.attr in _CHANGERS):
                found.add(one.value.id)
    return found
