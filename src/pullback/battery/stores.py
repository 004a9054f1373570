"""What a Function's methods can reach that outlives a call: containers, memoising functions, and single variables.

A variable is a store of one entry: a global, a closure's, an attribute of the class, of a helper, or of an object that
holds a cache. Calls that make it where it is None, or isn't there, use it as a memory; what was assigned once at import
is a table, and no call makes it again.
"""

from __future__ import annotations

import ast
import dis
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pullback.battery.observe import references
from pullback.battery.subject import Subject

_METHODS = ("forward", "setup_context", "backward", "vjp")

_CONTAINERS = (MutableMapping, MutableSequence, MutableSet)

_ABSENT = object()
"""In the place of a variable that isn't there."""

_FOREIGN = ("torch", "pullback", "builtins", "numpy")


@dataclass(frozen=True)
class Container:
    """A container, or a memoising function, by the name under which the Function knows it."""

    name: str
    value: Any

    @property
    def is_memo(self) -> bool:
        """Whether it is a function that remembers its results."""
        return hasattr(self.value, "cache_clear")

    def filled(self) -> bool:
        """Whether it holds any entry."""
        return bool(self.value.cache_info().currsize if self.is_memo else len(self.value))

    def clear(self) -> None:
        """Empty it."""
        if self.is_memo:
            self.value.cache_clear()
        else:
            self.value.clear()

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Restore the contents at the end; a memoising function only loses its memory."""
        contents: Any = None if self.is_memo else self.value.copy()
        try:
            yield
        finally:
            self.clear()
            if isinstance(self.value, MutableSequence):
                self.value.extend(contents)
            elif contents is not None:
                self.value.update(contents)


@dataclass(frozen=True)
class Variable:
    """A variable that holds one thing.

    Attributes:
        name: The name under which the Function knows it: ``_mask``, ``Rope.table``.
        owner: What it is a variable of: a namespace, a closure's cell, or an object.
        key: Its name there.
        empty: What it holds before a call makes it.
    """

    name: str
    owner: Any
    key: str
    empty: object = None

    def value(self) -> object:
        """What it holds."""
        if isinstance(self.owner, types.CellType):
            try:
                return self.owner.cell_contents
            except ValueError:
                return _ABSENT
        space = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return space.get(self.key, _ABSENT)

    def assign(self, value: object) -> None:
        """Let it hold `value`, or take it away."""
        if isinstance(self.owner, types.CellType):
            self.owner.cell_contents = value
        elif isinstance(self.owner, dict):
            self.owner[self.key] = value
        elif value is not _ABSENT:
            setattr(self.owner, self.key, value)
        elif self.value() is not _ABSENT:
            delattr(self.owner, self.key)

    def emptied(self, function: str, own: type | None) -> str:
        """Code that empties it.

        Args:
            function: What the Function is called there.
            own: Its class.
        """
        if isinstance(self.owner, types.CellType):
            methods = f"({function}.forward, {function}.backward)" if own is not None else f"({function},)"
            cells = f"for m in {methods} for n, c in zip(m.__code__.co_freevars, m.__closure__ or ())"
            return f"[setattr(c, 'cell_contents', {self.empty!r}) {cells} if n == {self.key!r}]"
        owner = function if self.owner is own else f"sys.modules[{function}.__module__].{self.name}".rpartition(".")[0]
        if self.empty is not _ABSENT:
            return f"{owner}.{self.key} = {self.empty!r}"
        return f"{self.key!r} in vars({owner}) and delattr({owner}, {self.key!r})"


@dataclass(frozen=True)
class Variables:
    """Variables that are emptied together: what calls write is of one piece, as a table and the flag that it is made.

    Attributes:
        parts: Those variables, at least one.
    """

    parts: tuple[Variable, ...]

    @property
    def name(self) -> str:
        """Their names."""
        return ", ".join(part.name for part in self.parts)

    def filled(self) -> bool:
        """Whether any of them holds something that it doesn't when it is empty."""
        return any(part.value() is not part.empty for part in self.parts)

    def clear(self) -> None:
        """Empty them."""
        for part in self.parts:
            part.assign(part.empty)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Restore them at the end."""
        with ExitStack() as stack:
            for part in self.parts:
                stack.callback(part.assign, part.value())
            yield

    def emptied(self, function: str, own: type | None) -> str:
        """Code that empties them, as `Variable.emptied`."""
        return "; ".join(part.emptied(function, own) for part in self.parts)


Store = Container | Variables


def stores_of(subject: Subject) -> list[Store]:
    """What the methods can reach and write to: attributes, globals, closures, defaults, and objects among these."""
    functions, owners = _roots(subject)
    found: dict[str, object] = {}
    for function in functions:
        found.update(references(function))
    reached = [*functions, *filter(inspect.isfunction, found.values())]
    written = _written(reached)
    spaces: dict[str, Any] = {owner.__qualname__: owner for owner in owners}
    spaces.update({name: value for name, value in found.items() if name.isidentifier() and _has_own_variables(value)})
    variables = [*_globals(written), *_cells(written)]
    for owner_name, owner in spaces.items():
        for key, value in list(vars(owner).items()):
            if key[:2] == "__":
                continue
            name = f"{owner_name}.{key}"
            found.setdefault(name, value)
            if isinstance(value, torch.Tensor) or (key in written.attributes and not callable(value)):
                variables += [Variables((Variable(name, owner, key, empty),)) for empty in (None, _ABSENT)]
    unique: dict[int, Store] = {}
    for name, value in found.items():
        is_memo = callable(getattr(value, "cache_clear", None)) and not isinstance(value, type)
        if is_memo or (isinstance(value, _CONTAINERS) and hasattr(value, "copy")):
            unique.setdefault(id(value), Container(name, value))
    return [*unique.values(), *variables]


def _roots(subject: Subject) -> tuple[list[Callable[..., Any]], list[type]]:
    """The functions that a call runs first, and the classes that they are methods of."""
    if subject.definition is None:
        return [subject.function], []
    own = [base for base in subject.function.__mro__ if base.__module__.partition(".")[0] not in _FOREIGN]
    return [getattr(subject.function, name) for name in _METHODS], own


def _has_own_variables(value: object) -> bool:
    """Whether it is an object, class or function of the author's, whose attributes may be a memory."""
    if isinstance(value, (types.ModuleType, torch.nn.Module, torch.Tensor)) or not hasattr(value, "__dict__"):
        return False
    kind = value if isinstance(value, type) or inspect.isfunction(value) else type(value)
    module = getattr(kind, "__module__", None) or ""
    own = module.partition(".")[0] not in _FOREIGN
    return own and not (isinstance(value, type) and issubclass(value, torch.autograd.Function))


# -- what is written --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Written:
    """The names that functions assign to outside themselves: each function's globals and closures', and attributes."""

    names: Mapping[types.FunctionType, frozenset[tuple[str, str]]]
    attributes: frozenset[str]


def _written(functions: Sequence[object]) -> _Written:
    names: dict[types.FunctionType, frozenset[tuple[str, str]]] = {}
    attributes: set[str] = set()
    for given in functions:
        method: Any = getattr(given, "__func__", given)
        function = inspect.unwrap(method)
        if isinstance(function, types.FunctionType) and (function.__module__ or "").partition(".")[0] not in _FOREIGN:
            steps = [step for code in _codes(function.__code__) for step in dis.get_instructions(code)]
            names[function] = frozenset((step.opname, str(step.argval)) for step in steps)
            attributes |= {str(step.argval) for step in steps if step.opname == "STORE_ATTR"}
    return _Written(names, frozenset(attributes))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _globals(written: _Written) -> list[Variables]:
    """The globals that the functions write, of each module together, empty as they are at its import."""
    by_module: dict[str, tuple[dict[str, Any], set[str]]] = {}
    for function, steps in written.names.items():
        space = function.__globals__
        stored = {name for step, name in steps if step == "STORE_GLOBAL" and name in space}
        if stored:
            by_module.setdefault(str(space.get("__name__", "")), (space, set()))[1].update(stored)
    found = []
    for module, (space, names) in by_module.items():
        initial = _initial(module)
        found.append(Variables(tuple(Variable(name, space, name, initial.get(name)) for name in sorted(names))))
    return found


def _initial(module: str) -> dict[str, object]:
    """What a module's own lines assign to its names, where that is a literal."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return {}
    found: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update({target.id: node.value.value for target in targets if isinstance(target, ast.Name)})
    return found


def _cells(written: _Written) -> list[Variables]:
    """The variables of closures that the functions write."""
    found: dict[int, Variable] = {}
    for function, steps in written.names.items():
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            if ("STORE_DEREF", name) in steps:
                found.setdefault(id(cell), Variable(name, cell, name))
    return [Variables((variable,)) for variable in found.values()]
