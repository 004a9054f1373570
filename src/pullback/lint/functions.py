"""Which classes are Functions, and what their authors wrote in them."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from pullback.lint.names import Scope
from pullback.lint.source import Source
from pullback.lint.trees import walk

METHODS = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap", "double_backward", "reference", "surrogate")
"""The methods that PyTorch or pullback call."""


class Parameter(NamedTuple):
    """One parameter of a method, but for ctx.

    Attributes:
        name: Its name.
        default: The expression of its default, None if it has none.
        annotation: Its annotation as source, such as ``Tensor``; empty if it has none.
        keyword_only: Whether it stands behind a star.
        node: Where it stands.
    """

    name: str
    default: ast.expr | None
    annotation: str
    keyword_only: bool
    node: ast.arg


@dataclass(frozen=True, eq=False)
class Method:
    """A method as it was written.

    Attributes:
        name: Its name.
        node: Its statement.
        scope: What names stand for in it.
        bound: ``static``, ``class`` or ``plain`` (no decorator that binds).
        receiver: The name of ``cls`` or ``self``, where there is one; empty otherwise.
        ctx: The name of ctx; empty for forward and others without one.
        parameters: What it takes after ctx, in order, keyword-only ones last.
        vararg: The name of ``*args``; empty if it takes none.
        kwarg: The name of ``**kwargs``; empty if it takes none.
        decorators: Their full names as far as they are known, outermost first; ``?`` for others.
        owner: The class in which it stands.
    """

    name: str
    node: ast.FunctionDef
    scope: Scope
    bound: Literal["static", "class", "plain"]
    receiver: str
    ctx: str
    parameters: tuple[Parameter, ...]
    vararg: str
    kwarg: str
    decorators: tuple[str, ...]
    owner: FunctionClass

    @property
    def positional(self) -> tuple[Parameter, ...]:
        """The parameters that a position can reach."""
        return tuple(parameter for parameter in self.parameters if not parameter.keyword_only)

    @property
    def required(self) -> tuple[Parameter, ...]:
        """The positional parameters without a default."""
        return tuple(parameter for parameter in self.positional if parameter.default is None)

    def is_decorated(self, *names: str) -> bool:
        """Whether it carries a decorator of one of these last names, such as ``once_differentiable``."""
        return any(decorator.rpartition(".")[2] in names for decorator in self.decorators)

    @property
    def is_wrapped(self) -> bool:
        """Whether it carries a decorator of which nobody knows what it does to the call."""
        return not all(map(leaves_alone, self.decorators))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of its statement, that one included."""
        return tuple(walk(self.node))

    @cached_property
    def inside(self) -> tuple[ast.AST, ...]:
        """Every node of its body."""
        return tuple(walk(*self.node.body))

    @property
    def line(self) -> int:
        """Where its ``def`` stands."""
        return self.node.lineno


@dataclass(eq=False)
class FunctionClass:
    """A class that descends from ``torch.autograd.Function`` or ``pullback.Function``.

    Attributes:
        name: Its qualified name in its module, ``Outer.Square`` or ``make.<locals>.Square``.
        dotted: Its full name, with the module.
        node: Its statement.
        source: Its file.
        scope: The scope that its body is.
        ours: Whether it descends from ``pullback.Function``.
        bases: The Functions of the run that it derives from, in order.
        foreign: Full names of bases that are neither Functions of the run nor PyTorch's or pullback's own (mixins);
            ``?`` for expressions. What they define isn't known.
        own: The methods of `METHODS` that stand in its body, by name. Of several by one name (``if`` and ``else``), it
            is the last.
        assigned: What its body assigns by plain assignment, name -> expression (``generate_vmap_rule = True``,
            ``backward = staticmethod(f)``).
        unrun: Those of `METHODS` that a call doesn't run: they are ``async``, or generators.
        others: The other functions of its body, by name.
    """

    name: str
    dotted: str
    node: ast.ClassDef
    source: Source
    scope: Scope
    ours: bool
    bases: list[FunctionClass]
    foreign: list[str]
    own: dict[str, Method] = field(default_factory=dict)
    assigned: dict[str, ast.expr] = field(default_factory=dict)
    others: dict[str, ast.FunctionDef] = field(default_factory=dict)
    unrun: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)

    def lineage(self) -> tuple[FunctionClass, ...]:
        """It and the Functions it derives from, in the order in which Python looks for a method (roughly)."""
        return self._lineage

    @cached_property
    def _lineage(self) -> tuple[FunctionClass, ...]:
        found: dict[int, FunctionClass] = {}
        waiting = [self]
        while waiting:
            current = waiting.pop(0)
            if id(current) not in found:
                found[id(current)] = current
                waiting = [*current.bases, *waiting]
        return tuple(found.values())

    def method(self, name: str) -> Method | None:
        """A method, inherited ones included; None where there is none, or something else was assigned to its name."""
        for one in self.lineage():
            if name in one.assigned:
                return None
            if name in one.own:
                return one.own[name]
        return None

    def declares(self, name: str) -> ast.expr | None:
        """What the class or one it derives from assigns to a name."""
        return next((one.assigned[name] for one in self.lineage() if name in one.assigned), None)

    @cached_property
    def twofold(self) -> frozenset[str]:
        """The functions that stand more than once in its body, as in ``if`` and ``else``."""
        names = Counter(one.name for one in _statements(self.node.body) if isinstance(one, ast.FunctionDef))
        return frozenset(name for name, count in names.items() if count > 1)

    @cached_property
    def forward(self) -> Method | None:
        """``forward``, inherited or not."""
        return self.method("forward")

    @cached_property
    def setup_context(self) -> Method | None:
        """``setup_context``, inherited or not."""
        return self.method("setup_context")

    @cached_property
    def backward(self) -> Method | None:
        """``backward``, or ``vjp`` where that is what was written."""
        return self.method("backward") or self.method("vjp")

    @property
    def style(self) -> Literal["ctx", "setup_context"]:
        """Whether ``forward`` takes ctx, or ``setup_context`` does."""
        return "setup_context" if self.setup_context is not None else "ctx"

    @property
    def is_abstract(self) -> bool:
        """Whether it has no ``forward`` that is known, so that it is made to be inherited from."""
        return self.forward is None

    @property
    def is_rebound(self) -> bool:
        """Whether its name is given to something else as well, so that it isn't sure which one a call means."""
        around = self.scope.parent
        return around is not None and len(around.bindings.get(self.node.name, ())) > 1

    @property
    def is_open(self) -> bool:
        """Whether a base isn't known, so that a method that seems to be missing may be there all the same."""
        return any(one.foreign for one in self.lineage())


def leaves_alone(decorator: str) -> bool:
    """Whether a decorator, by its full name, is one of which it is known what it does to the call."""
    return decorator in ("staticmethod", "classmethod") or decorator.startswith(("torch.", "pullback."))


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a class's body, those under ``if``, ``with`` and ``try`` too."""
    found: list[ast.stmt] = []
    for statement in body:
        found.append(statement)
        if isinstance(statement, (ast.If, ast.With, ast.Try)):
            for block in ("body", "orelse", "finalbody"):
                found.extend(_statements(getattr(statement, block, [])))
            for handler in getattr(statement, "handlers", ()):
                found.extend(_statements(handler.body))
    return found
