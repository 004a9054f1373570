"""Functions of the same file that write into what they are given, so that who calls them writes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from pullback.lint import tensors
from pullback.lint.names import Scope, parameter_names
from pullback.lint.source import Source
from pullback.lint.trees import walk

RESHAPERS = frozenset(
    "t_ squeeze_ unsqueeze_ transpose_ swapaxes_ swapdims_ resize_ resize_as_ as_strided_ set_ rename_".split()
)
"""In place methods that change the tensor object (its shape, its memory), and no element of the memory that it had."""

NO_WRITES = frozenset(("detach_", "requires_grad_", "share_memory_", "coalesce_", "is_coalesced_", "_coalesced_"))
"""What ends in an underscore and writes no element."""

COLLECTIVES = ("torch.distributed.all_reduce", "torch.distributed.broadcast", "torch.distributed.reduce")
"""Functions that put what they compute into their first argument."""


class Helper(NamedTuple):
    """A function of a file.

    Attributes:
        parameters: The names of its parameters, in the order of their positions.
        writes: Parameter -> whether every call writes into it, or perhaps only one that doesn't return before.
    """

    parameters: tuple[str, ...]
    writes: dict[str, bool]

    def written(self, call: ast.Call) -> Iterator[tuple[ast.expr, bool]]:
        """The arguments of a call that it writes into, each with whether that is so of every call."""
        if any(isinstance(one, ast.Starred) for one in call.args):
            return
        given = dict(zip(self.parameters, call.args, strict=False))
        given |= {one.arg: one.value for one in call.keywords if one.arg is not None}
        for name, always in self.writes.items():
            if name in given:
                yield given[name], always


_helpers: WeakKeyDictionary[Source, dict[str, Helper | None]] = WeakKeyDictionary()


def helper(source: Source, scope: Scope, called: ast.expr) -> Helper | None:
    """The function of the same file that a call means, if it writes into something that it is given.

    Args:
        source: The file.
        scope: The scope of the call.
        called: What is called.
    """
    if not isinstance(called, ast.Name):
        return None
    bound = scope.binding(called.id)
    if bound is None or bound[1] is not source.names.root or len(bound[1].bindings[called.id]) != 1:
        return None
    known = _helpers.setdefault(source, {})
    if called.id not in known:
        known[called.id] = _read(source, called.id)
    return known[called.id]


def _read(source: Source, name: str) -> Helper | None:
    """The plain function of that name in a file, if it writes into a parameter."""
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name and not node.decorator_list:
            reader = _Reader(source.names.scope_of(node), set(parameter_names(node.args)))
            reader.block(node.body)
            names = tuple(one.arg for one in (*node.args.posonlyargs, *node.args.args))
            return Helper(names, reader.writes) if reader.writes else None
    return None


class _Reader:
    """Reads the statements of a function that each call carries out, for as long as a name is still its argument."""

    def __init__(self, scope: Scope, names: set[str]) -> None:
        self.writes: dict[str, bool] = {}
        self._scope = scope
        self._still = names
        self._always = True

    def block(self, body: list[ast.stmt]) -> None:
        """Takes in statements, one after the other."""
        for statement in body:
            if isinstance(statement, (ast.With, ast.AsyncWith)):
                self.block(statement.body)
                continue
            if isinstance(statement, (ast.If, ast.For, ast.While, ast.Try, ast.Match, ast.FunctionDef, ast.ClassDef)):
                inside = walk(statement)
                self._always &= not any(isinstance(one, (ast.Return, ast.Raise)) for one in inside)
            else:
                inside = walk(statement)
                for name in _written(inside, self._scope):
                    if name in self._still:
                        self.writes.setdefault(name, self._always)
            added = {id(one.target) for one in inside if isinstance(one, ast.AugAssign)}
            self._still -= {
                one.id for one in inside if isinstance(one, ast.Name) and _is_bound(one) and id(one) not in added
            }
            if isinstance(statement, (ast.Return, ast.Raise)):
                break


def _is_bound(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _written(nodes: list[ast.AST], scope: Scope) -> Iterator[str]:
    """The names that one statement writes into."""
    for node in nodes:
        target: ast.expr | None = None
        if isinstance(node, ast.Call):
            target = _by_call(node, scope)
        elif isinstance(node, ast.AugAssign):
            target = node.target
        elif isinstance(node, ast.Assign):
            subscripts = [one for one in node.targets if isinstance(one, ast.Subscript)]
            target = subscripts[0] if subscripts else None
        if isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            yield target.id


def _by_call(node: ast.Call, scope: Scope) -> ast.expr | None:
    """What a call writes into: what an in place method is called on, or the argument of a function."""
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        name = node.func.attr
        if tensors.is_in_place(name) and name not in NO_WRITES | RESHAPERS and not scope.qualified(node.func.value):
            return node.func.value
    dotted = scope.qualified(node.func, node.lineno)
    if not dotted.startswith("torch."):
        return None
    name = dotted.rpartition(".")[2]
    first = node.args[0] if node.args else None
    if dotted in COLLECTIVES or (tensors.is_in_place(name) and name not in NO_WRITES | RESHAPERS):
        return first
    return next((one.value for one in node.keywords if one.arg == "out"), None)
