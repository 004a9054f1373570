"""Finds the Functions of several files: through aliases, and through bases that stand in other files of the run."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Sequence
from typing import Literal

from pullback.lint.functions import METHODS, FunctionClass, Method, Parameter, leaves_alone
from pullback.lint.names import Scope, canonical
from pullback.lint.passing import Passing, root_of
from pullback.lint.source import Source
from pullback.lint.trees import children

TORCHS = frozenset(
    f"torch.autograd.{name}"
    for name in ("Function", "InplaceFunction", "NestedIOFunction", "_SingleLevelFunction", "BackwardCFunction")
)
"""Classes of PyTorch that make a class a Function."""

OURS = frozenset(("pullback.Function",))
"""Those of pullback."""

_NO_FUNCTION = frozenset(("object", "abc.ABC", "typing.Generic", "typing.Protocol"))
_LINKS = 16  # of modules that pass a name on


class Project:
    """All files of a run, and the Functions in them.

    Args:
        sources: The files; more may be added.

    Attributes:
        sources: The files.
        functions: Full name -> Function.
        packages: The full names of the modules that have one, and of the packages around them.
    """

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self.sources: list[Source] = []
        self.functions: dict[str, FunctionClass] = {}
        self.packages: set[str] = set()
        self._modules: dict[str, Source] = {}
        self._classes: dict[str, tuple[Source, ast.ClassDef, Scope]] = {}
        self._short: dict[str, list[str]] = {}
        self._passing = Passing()
        self._others: set[str] = set()  # classes that are no Functions, as far as the files go that came in
        self._found: dict[str, FunctionClass | None] = {}  # what was asked for since the last file came in
        self.add(sources)

    def add(self, sources: Iterable[Source]) -> list[FunctionClass]:
        """Takes files in, and gives the Functions that are new through them."""
        for source in sources:
            self.sources.append(source)
            self._modules.setdefault(source.module, source)
            for node, scope in source.names.classes:
                # Of two by one name, as in `if` and `else`, each is a class of its own.
                dotted = scope.class_name(node)
                while dotted in self._classes:
                    dotted += "'"
                self._classes[dotted] = (source, node, scope)
        before = set(self.functions)
        self._found.clear()
        self._others.clear()
        order = list(self._classes)
        try:
            for dotted in order:
                self._function(dotted, ())
        except RecursionError:  # a thousand classes, each deriving from one that comes later
            for dotted in reversed(order):
                with contextlib.suppress(RecursionError):
                    self._function(dotted, ())
        return [function for dotted, function in self.functions.items() if dotted not in before]

    def resolve(self, dotted: str) -> str:
        """A full name by the module in which the thing is defined, as far as files of the run pass it on."""
        for _ in range(_LINKS):
            passed = self._passed_on(dotted)
            if not passed or passed == dotted:
                break
            dotted = passed
        return canonical(dotted)

    def find(self, dotted: str) -> FunctionClass | None:
        """The Function of a full name, None if it is none of the run's."""
        if not dotted:
            return None
        if dotted not in self._found:
            self._found[dotted] = self._find(dotted)
        return self._found[dotted]

    def applied(self, dotted: str) -> FunctionClass | None:
        """The Function whose ``apply`` a full name is, as that of ``square`` after ``square = Square.apply``."""
        if dotted.endswith(".apply"):
            return self.find(dotted.removesuffix(".apply"))
        resolved = self.resolve(dotted) if dotted else ""
        return self.find(resolved.removesuffix(".apply")) if resolved.endswith(".apply") else None

    def _find(self, dotted: str) -> FunctionClass | None:
        resolved = self.resolve(dotted)
        if resolved in self.functions:
            return self.functions[resolved]
        # Modules that say none of the words weren't read; they are where one may pass on a Function of that name.
        package, _, name = resolved.rpartition(".")
        for one in self._short.get(name, ()):
            if package and one.startswith(f"{package.partition('.')[0]}."):
                led = self._passing.follow(resolved, root_of(self.functions[one].source))
                if led in self.functions:
                    return self.functions[led]
        return None

    def _passed_on(self, dotted: str) -> str:
        if dotted in self._classes:
            return ""
        module, _, rest = dotted.rpartition(".")
        while module and module not in self._modules:
            module, _, more = module.rpartition(".")
            rest = f"{more}.{rest}"
        if not module:
            return ""
        head, _, tail = rest.partition(".")
        node = ast.Name(head)
        found = self._modules[module].names.root.qualified(node)
        return f"{found}.{tail}" if found and tail else found

    def _function(self, dotted: str, waiting: tuple[str, ...]) -> FunctionClass | None:
        """The Function of a class of the run, made now if need be; None if it is no Function."""
        if dotted in self.functions:
            return self.functions[dotted]
        if dotted not in self._classes or dotted in self._others or canonical(dotted) in (TORCHS | OURS):
            return None
        if dotted in waiting:
            return None
        source, node, scope = self._classes[dotted]
        bases, foreign, ours, torchs = [], [], False, False
        for expression in node.bases:
            if isinstance(expression, ast.Subscript):  # Base[T]
                expression = expression.value
            written = scope.qualified(expression, node.lineno)
            base = self.resolve(written) if written else ""
            function = self._function(base, (*waiting, dotted)) if base in self._classes else self.find(base)
            if function is not None:
                bases.append(function)
                ours, torchs = ours or function.ours, True
            elif base in OURS or base in TORCHS:
                ours, torchs = ours or base in OURS, True
            elif base not in _NO_FUNCTION and not (isinstance(expression, ast.Name) and expression.id in _NO_FUNCTION):
                foreign.append(base or "?")
        if not torchs:
            self._others.add(dotted)
            return None
        name = dotted.removeprefix(f"{source.module}.") if source.module else dotted
        inner = source.names.scope_of(node)
        made = FunctionClass(name.rstrip("'"), dotted, node, source, inner, ours, bases, foreign)
        read_body(made, node.body)
        self.functions[dotted] = made
        self._found.clear()
        parts = dotted.split(".")
        self.packages |= {".".join(parts[:end]) for end in range(1, len(parts))}
        self._short.setdefault(node.name, []).append(dotted)
        return made


def read_body(function: FunctionClass, body: Sequence[ast.stmt]) -> None:
    """Reads methods and assignments from a class's body into it, those under ``if`` and ``try`` too."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name in METHODS:
            if isinstance(statement, ast.AsyncFunctionDef) or _yields(statement):
                function.own.pop(statement.name, None)
                function.assigned[statement.name] = ast.Name(statement.name)  # it isn't what PyTorch takes it for
                if all(leaves_alone(_decorator(one, function.scope)) for one in statement.decorator_list):
                    function.unrun.append(statement)
            else:
                function.own[statement.name] = read_method(function, statement)
                function.assigned.pop(statement.name, None)
        elif isinstance(statement, ast.FunctionDef):
            function.others[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    _assign(function, target.id, statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value and isinstance(statement.target, ast.Name):
            _assign(function, statement.target.id, statement.value)
        elif isinstance(statement, (ast.If, ast.With, ast.Try)):
            for block in ("body", "orelse", "finalbody"):
                read_body(function, getattr(statement, block, ()))
            for handler in getattr(statement, "handlers", ()):
                read_body(function, handler.body)


def _yields(node: ast.FunctionDef) -> bool:
    """Whether a function is a generator: it has a ``yield`` that is its own."""
    waiting: list[ast.AST] = [*node.body]
    for one in waiting:  # it grows meanwhile
        if isinstance(one, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += children(one)
    return False


def _assign(function: FunctionClass, name: str, value: ast.expr) -> None:
    if isinstance(value, ast.Call) and len(value.args) == 1 and name in function.own:
        wrapped = value.args[0]
        if isinstance(wrapped, ast.Name) and wrapped.id == name:  # forward = staticmethod(forward)
            return
    function.own.pop(name, None)
    function.assigned[name] = value


def read_method(function: FunctionClass, node: ast.FunctionDef) -> Method:
    """A method as it was written: how it is bound, its ctx, and what it takes after that."""
    inner = function.source.names.scope_of(node)
    decorators = tuple(_decorator(one, function.scope) for one in node.decorator_list)
    bound: Literal["static", "class", "plain"] = "plain"
    if "staticmethod" in decorators:
        bound = "static"
    elif "classmethod" in decorators:
        bound = "class"
    parameters = _parameters(node.args)
    positional = [parameter for parameter in parameters if not parameter.keyword_only]
    receiver = ctx = ""
    if positional and (bound == "class" or (bound == "plain" and positional[0].name in ("self", "cls"))):
        # Of plain methods PyTorch binds none: `self` is what gets ctx, unless a ctx follows.
        if bound == "class" or (len(positional) > 1 and positional[1].name in ("ctx", "context")):
            receiver = positional.pop(0).name
        elif not _takes_ctx(function, node.name):
            receiver = positional.pop(0).name
    if positional and (_takes_ctx(function, node.name) or (node.name == "forward" and positional[0].name == "ctx")):
        ctx = positional.pop(0).name
    rest = tuple(positional) + tuple(parameter for parameter in parameters if parameter.keyword_only)
    vararg, kwarg = (one.arg if one is not None else "" for one in (node.args.vararg, node.args.kwarg))
    return Method(node.name, node, inner, bound, receiver, ctx, rest, vararg, kwarg, decorators, function)


def _takes_ctx(function: FunctionClass, name: str) -> bool:
    if name in ("reference", "surrogate", "vmap"):
        return False
    if name != "forward":
        return True
    stands_here = any(getattr(one, "name", "") == "setup_context" for one in function.node.body)
    return not (stands_here or any(base.setup_context is not None for base in function.bases))


def _parameters(arguments: ast.arguments) -> list[Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = len(positional) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [*[None] * missing, *arguments.defaults]
    pairs = [(node, default, False) for node, default in zip(positional, defaults, strict=True)]
    pairs += [(n, d, True) for n, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return [Parameter(n.arg, d, _annotation(n), k, n) for n, d, k in pairs]


def _annotation(node: ast.arg) -> str:
    try:
        return ast.unparse(node.annotation) if node.annotation else ""
    except RecursionError:  # nobody writes one so deep; a program may
        return "?"


def _decorator(expression: ast.expr, scope: Scope) -> str:
    called = expression.func if isinstance(expression, ast.Call) else expression
    if isinstance(called, ast.Name) and scope.binding(called.id) is None:
        return called.id  # staticmethod, or from a star import
    return scope.qualified(called) or "?"
