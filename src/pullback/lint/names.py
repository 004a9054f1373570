"""What a name stands for: imports, classes and plain assignments, by the scopes in which they stand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Node: TypeAlias = "ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef"

_HOMES = {
    "torch.autograd.function.": "torch.autograd.",
    "pullback.function.": "pullback.",
    "pullback.context.": "pullback.",
    "torch._C.": "torch.",
}
"""Modules whose names are known by a shorter path."""

_IDLE = frozenset((ast.Expr, ast.Return, ast.Raise, ast.Assert, ast.Pass, ast.Delete, ast.Continue, ast.Break))
"""Statements that bind no name, which are most of them."""

_DEPTH = 12  # of assignments that lead to each other


class Binding(NamedTuple):
    """One statement that gives a name its value.

    Attributes:
        line: Where it stands.
        kind: ``import``, ``class``, ``value`` (a plain assignment of an expression) or ``other`` (anything else: a
            parameter, a function, a loop's variable).
        dotted: Of an import, the full name.
        node: Of a class its statement, of a value its expression.
    """

    line: int
    kind: Literal["import", "class", "value", "other"]
    dotted: str = ""
    node: ast.ClassDef | ast.expr | None = None


@dataclass(eq=False)
class Scope:
    """A module, class or function, and the names that are bound in it.

    Attributes:
        node: Its statement.
        parent: The scope around it.
        qualname: As Python's ``__qualname__``, empty for a module.
        module: The dotted name of the module.
        bindings: Name -> what gives it a value, in order.
        stars: Modules of ``from module import *``.
    """

    node: Node
    parent: Scope | None
    qualname: str
    module: str
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    def binding(self, name: str, line: int = 0) -> tuple[Binding, Scope] | None:
        """What gives a name its value, seen from a line of this scope (its end, for 0), and the scope it stands in."""
        scope: Scope | None = self
        while scope is not None:
            bound = scope.bindings.get(name)
            if bound and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                before = [one for one in bound if one.line <= line] if scope is self and line else bound
                # Of several in another scope the last one stands when this code runs, unless that one is a fallback.
                chosen = (before or bound)[-1]
                if chosen.kind == "value" and isinstance(chosen.node, ast.Constant) and len(bound) > 1:
                    chosen = next((one for one in bound if one.kind != "value"), chosen)
                elif len(bound) > 1 and _stands_in(chosen):
                    # Without torch: `Function = object`, or an empty class of that name.
                    chosen = next((one for one in bound if one.dotted.startswith("torch.")), chosen)
                return chosen, scope
            scope = scope.parent
        return None

    def class_name(self, node: ast.ClassDef) -> str:
        """The full name of a class that stands in this scope."""
        inner = f"{self.qualname}.<locals>" if not isinstance(self.node, (ast.Module, ast.ClassDef)) else self.qualname
        return ".".join(part for part in (self.module, inner, node.name) if part)

    def qualified(self, expression: ast.expr | None, line: int = 0) -> str:
        """The full name of what an expression names, ``torch.nn.functional.relu``; empty if that isn't known.

        Args:
            expression: A name or a chain of attributes.
            line: Where it stands in this scope, 0 for its end.
        """
        return self._qualified(expression, line, _DEPTH)

    def _qualified(self, expression: ast.expr | None, line: int, depth: int) -> str:
        attributes: list[str] = []
        while isinstance(expression, ast.Attribute):
            attributes.append(expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name) or not depth:
            return ""
        head = self._name(expression.id, line, depth)
        return canonical(".".join((head, *reversed(attributes)))) if head else ""

    def _name(self, name: str, line: int, depth: int) -> str:
        found = self.binding(name, line)
        if found is None:
            stars = self._root().stars
            return f"{stars[-1]}.{name}" if len(stars) == 1 else ""
        bound, scope = found
        if bound.kind == "import":
            return bound.dotted
        if bound.kind == "class" and isinstance(bound.node, ast.ClassDef):
            return scope.class_name(bound.node)
        if bound.kind == "value" and isinstance(bound.node, (ast.Name, ast.Attribute)):
            own = isinstance(bound.node, ast.Name) and bound.node.id == name  # F = F
            return "" if own else scope._qualified(bound.node, bound.line, depth - 1)
        return ""

    def _root(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope


def _stands_in(binding: Binding) -> bool:
    """Whether a class or a value can only stand in for something that couldn't be imported."""
    if isinstance(binding.node, ast.ClassDef):
        return not binding.node.bases or (len(binding.node.bases) == 1 and _is_object(binding.node.bases[0]))
    return isinstance(binding.node, ast.expr) and _is_object(binding.node)


def _is_object(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "object"


def canonical(dotted: str) -> str:
    """A full name by the path under which it is documented."""
    for long, short in _HOMES.items():
        if dotted.startswith(long):
            return short + dotted.removeprefix(long)
    return dotted


class Names:
    """The scopes of one module.

    Args:
        tree: The module.
        module: Its dotted name.
        package: Whether it is a package's ``__init__``.

    Attributes:
        root: The module's own scope.
        classes: Every class of the file with the scope it stands in, in order.
    """

    def __init__(self, tree: ast.Module, module: str, *, package: bool = False) -> None:
        self.root = Scope(tree, None, "", module)
        self.classes: list[tuple[ast.ClassDef, Scope]] = []
        self._scopes: dict[int, Scope] = {id(tree): self.root}
        self._package = module if package else module.rpartition(".")[0]
        self._body(tree.body, self.root)

    def scope_of(self, node: Node) -> Scope:
        """The scope that a module, class or function opens."""
        return self._scopes[id(node)]

    def scopes(self) -> Iterator[Scope]:
        """Every scope, the outer ones first."""
        return iter(self._scopes.values())

    def _body(self, body: list[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        if node.__class__ in _IDLE:
            return
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _bind_target(scope, target, node.value)
        elif isinstance(node, (ast.If, ast.While, ast.Try, ast.Match)) or type(node).__name__ == "TryStar":
            self._blocks(node, scope)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, scope)
        elif isinstance(node, ast.ClassDef):
            self.classes.append((node, scope))
            _bind(scope, node.name, Binding(node.lineno, "class", node=node))
            self._open(node, scope)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            _bind(scope, node.name, Binding(node.lineno, "other"))
            self._open(node, scope)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            _bind_target(scope, node.target, node.value if isinstance(node, ast.AnnAssign) else None)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            _bind_target(scope, node.target, None)
            self._blocks(node, scope)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    _bind_target(scope, item.optional_vars, None)
            self._blocks(node, scope)

    def _blocks(self, node: ast.stmt, scope: Scope) -> None:
        for block in ("body", "handlers", "orelse", "finalbody", "cases"):
            for child in getattr(node, block, ()):
                if isinstance(child, ast.stmt):
                    self._statement(child, scope)
                else:  # a handler or a case
                    self._body(child.body, scope)

    def _open(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        outer = scope.qualname
        if outer and not isinstance(scope.node, ast.ClassDef):
            outer += ".<locals>"
        inner = Scope(node, scope, f"{outer}.{node.name}" if outer else node.name, scope.module)
        self._scopes[id(node)] = inner
        if not isinstance(node, ast.ClassDef):
            for name in parameter_names(node.args):
                _bind(inner, name, Binding(node.lineno, "other"))
        self._body(node.body, inner)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                _bind(scope, alias.asname or dotted, Binding(node.lineno, "import", dotted))
            return
        base = node.module or ""
        if node.level:
            parts = self._package.split(".") if self._package else []
            kept = parts[: len(parts) - (node.level - 1)] if node.level > 1 else parts
            base = ".".join([*kept, base] if base else kept)
        for alias in node.names:
            if alias.name == "*":
                self.root.stars.append(base)
            else:
                dotted = f"{base}.{alias.name}" if base else alias.name
                _bind(scope, alias.asname or alias.name, Binding(node.lineno, "import", dotted))


def parameter_names(arguments: ast.arguments) -> list[str]:
    """The names that a function's parameters bind."""
    several = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    several += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return [one.arg for one in several]


def _bind(scope: Scope, name: str, binding: Binding) -> None:
    scope.bindings.setdefault(name, []).append(binding)


def _bind_target(scope: Scope, target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, ast.Name):
        kind: Literal["value", "other"] = "value" if value is not None else "other"
        _bind(scope, target.id, Binding(target.lineno, kind, node=value))
    elif isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            _bind_target(scope, element.value if isinstance(element, ast.Starred) else element, None)
