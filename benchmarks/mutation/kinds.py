"""What a kind of fault is: a name, what goes wrong, and how to rewrite the source of a right Function so that it does.

A kind gets a `Target`, the parsed class with the functions that matter, and yields edits: each exchanges the source of
one or two functions. Most kinds look at one node at a time; `expression` makes such a kind from a generator that yields
what may stand in a node's place.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

DERIVATIVE = ("backward", "vjp", "double_backward")
"""The methods that are a derivative in reverse mode."""

STATED = ("forward", "setup_context")
"""The methods that decide what backward will know."""

FORMULA = (*DERIVATIVE, "helper", "formula")
"""Where arithmetic is derived from something that the class states elsewhere: see `Place`."""


@dataclass(frozen=True, eq=False)
class Place:
    """A function whose source may be rewritten.

    Attributes:
        function: Its syntax tree.
        role: The method's name; ``helper`` for a function beside the class that derivatives call and the class's own
            statement of what is right (reference, surrogate, samples, and forward where there is no reference) doesn't.
        owned: Whether the class has a reference, so that forward isn't the definition itself.
    """

    function: ast.FunctionDef
    role: str
    owned: bool

    @property
    def roles(self) -> set[str]:
        """The roles under which kinds may ask for it: forward's arithmetic is a formula where a reference owns it."""
        return {self.role, "formula"} if self.role == "forward" and self.owned else {self.role}

    @property
    def arguments(self) -> list[str]:
        """The names of the parameters, without ctx."""
        names = [argument.arg for argument in self.function.args.args]
        return names[1:] if names and names[0] == "ctx" else names


@dataclass(frozen=True, eq=False)
class Edit:
    """A rewritten source: functions in place of others, and what stands at the end of the module besides."""

    functions: tuple[tuple[Place, ast.FunctionDef | None], ...]
    epilogue: str = ""


@dataclass(frozen=True, eq=False)
class Target:
    """A right Function made ready to be rewritten."""

    name: str
    places: tuple[Place, ...]
    body: tuple[ast.stmt, ...] = ()

    def having(self, roles: Iterable[str]) -> Iterator[Place]:
        """The places with one of these roles."""
        wanted = set(roles)
        return (place for place in self.places if place.roles & wanted)

    def method(self, *roles: str) -> Place | None:
        """The first method with one of these names."""
        return next((place for role in roles for place in self.places if place.role == role), None)


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: What tables call it.
        says: What goes wrong, in one line.
        edits: The ways to plant it in a Function.
        late: Whether it was written after the battery was frozen.
    """

    name: str
    says: str
    edits: Callable[[Target], Iterator[Edit]] = field(repr=False)
    late: bool = False


KINDS: dict[str, Kind] = {}
"""Every kind by its name; importing `plant` fills it."""


def kind(
    name: str, says: str, *, late: bool = False
) -> Callable[[Callable[[Target], Iterator[Edit]]], Callable[[Target], Iterator[Edit]]]:
    """Register a kind that rewrites a whole target."""

    def register(edits: Callable[[Target], Iterator[Edit]]) -> Callable[[Target], Iterator[Edit]]:
        assert name not in KINDS, f"two kinds are called {name}"
        KINDS[name] = Kind(name, says, edits, late)
        return edits

    return register


Replacement = ast.AST | Sequence[ast.stmt] | None
Swap = Callable[[ast.AST, Place], Iterator[Replacement]]


def expression(name: str, says: str, roles: Sequence[str] = FORMULA, *, late: bool = False) -> Callable[[Swap], Swap]:
    """Register a kind that exchanges one node for another, in every function with one of these roles."""

    def register(swap: Swap) -> Swap:
        def edits(target: Target) -> Iterator[Edit]:
            for place in target.having(roles):
                apart = _not_computed(place.function)
                for index, node in enumerate(ast.walk(place.function)):
                    if id(node) not in apart:
                        for new in swap(node, place):
                            yield Edit(((place, exchanged(place.function, index, new)),))

        kind(name, says, late=late)(edits)
        return swap

    return register


def _not_computed(function: ast.FunctionDef) -> set[int]:
    """The identities of nodes where nothing is computed: in annotations, decorators and ``(None,) * 6``."""
    apart: list[ast.AST] = [*function.decorator_list]
    for inner in ast.walk(function):
        if isinstance(inner, ast.FunctionDef) and inner.returns is not None:
            apart.append(inner.returns)
        elif isinstance(inner, (ast.arg, ast.AnnAssign)) and inner.annotation is not None:
            apart.append(inner.annotation)
        elif isinstance(inner, ast.BinOp) and isinstance(inner.left, ast.Tuple):
            apart.append(inner)
    return {id(part) for outer in apart for part in ast.walk(outer)}


def exchanged(function: ast.FunctionDef, index: int, new: Replacement) -> ast.FunctionDef:
    """A copy of a function with the node of this index in ``ast.walk`` exchanged; None takes a statement out."""
    made = copy.deepcopy(function)
    old = list(ast.walk(made))[index]
    put = copy.deepcopy(new)

    class Exchange(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt] | None:
            if node is old:
                return list(put) if isinstance(put, (list, tuple)) else put  # type: ignore[arg-type, return-value]
            return self.generic_visit(node)

    result = Exchange().visit(made)
    for inner in ast.walk(result):
        if isinstance(inner, (ast.FunctionDef, ast.If, ast.For, ast.With)) and not inner.body:
            inner.body = [ast.Pass()]
    return ast.fix_missing_locations(result)


# -- Helpers for the kinds ---------------------------------------------------------------------------------------------


def parsed(text: str) -> list[ast.stmt]:
    """Statements from their source."""
    return ast.parse(text).body


def value(text: str) -> ast.expr:
    """An expression from its source."""
    return ast.parse(text, mode="eval").body


def called(node: ast.AST) -> str:
    """The name of what a node calls: ``sum`` for ``x.sum(0)`` and for ``torch.sum(x)``; empty for other nodes."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_method(node: ast.AST) -> bool:
    """Whether a node is a call of a tensor's method, not of a module's function."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return not any(isinstance(part, ast.Name) and part.id in _MODULES for part in _chain(node.func.value))


_MODULES = frozenset({"torch", "F", "math", "ctx", "pullback", "nn", "np", "bits", "draws", "chunks"})


def _chain(node: ast.AST) -> Iterator[ast.AST]:
    while isinstance(node, ast.Attribute):
        node = node.value
    yield node


def returns(function: ast.FunctionDef) -> Iterator[ast.Return]:
    """The function's own return statements, not those of functions within."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def returned(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The gradients that a function returns one by one: no constants, and no tuples of None."""
    for statement in returns(function):
        parts = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
        for part in parts:
            nothing = part is None or isinstance(part, (ast.Constant, ast.Starred))
            if not nothing and not (isinstance(part, ast.BinOp) and isinstance(part.left, ast.Tuple)):  # (None,) * 6
                yield part


def saved_names(function: ast.FunctionDef) -> list[str]:
    """The names that a function gives to what it unpacks from ``ctx.saved_tensors``."""
    names = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _reads_saved(node.value):
            names += [part.id for part in ast.walk(node.targets[0]) if isinstance(part, ast.Name)]
    return names


def _reads_saved(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "saved_tensors"


def after_unpacking(function: ast.FunctionDef, statements: Sequence[ast.stmt]) -> ast.FunctionDef:
    """A copy with statements after the line that unpacks what was saved, or at the beginning where there is none."""
    made = copy.deepcopy(function)
    at = 1 if ast.get_docstring(made) else 0
    for index, node in enumerate(made.body):
        if isinstance(node, ast.Assign) and _reads_saved(node.value):
            at = index + 1
            break
    made.body[at:at] = copy.deepcopy(list(statements))
    return ast.fix_missing_locations(made)
