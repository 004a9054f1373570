"""What a Function's backward returns, beside what it owes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from pullback.lint.alternatives import Alternative, Alternatives, Made, Nothing, Rest, Several
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.functions import Method, Parameter
from pullback.lint.returned import Returned, Walk

HARMLESS = frozenset(
    (
        "staticmethod", "classmethod", "once_differentiable", "custom_bwd", "custom_fwd", "no_grad", "enable_grad",
        "set_grad_enabled", "inference_mode", "disable", "allow_in_graph", "override", "typing.override", "overload",
    )
)  # fmt: skip
"""Decorators that leave alone what a method takes and gives back, by their last names."""

_walks: WeakKeyDictionary[Analysis, Walk | None] = WeakKeyDictionary()
_owed: WeakKeyDictionary[Analysis, Owed | None] = WeakKeyDictionary()


class Owed(NamedTuple):
    """How many gradients backward owes.

    Attributes:
        parameters: Those of forward that a position can reach, in order.
        least: How many arguments every call passes.
        most: How many a call can pass; None where there is no limit.
    """

    parameters: tuple[Parameter, ...]
    least: int
    most: int | None

    @property
    def names(self) -> str:
        """The arguments, as a tuple would list them."""
        several = ", ".join(parameter.name for parameter in self.parameters)
        return f"({several}, …)" if self.most is None else f"({several})"

    def name(self, index: int) -> str:
        """The argument at a position."""
        return self.parameters[index].name if index < len(self.parameters) else f"argument {index}"


def owed(analysis: Analysis) -> Owed | None:
    """What backward owes, as forward's parameters have it; None where that can't be told."""
    if analysis not in _owed:
        _owed[analysis] = _counted(analysis)
    return _owed[analysis]


def _counted(analysis: Analysis) -> Owed | None:
    method = analysis.function.forward
    if method is None or is_odd(method) or is_twofold(analysis, "forward") or is_twofold(analysis, "setup_context"):
        return None
    if analysis.function.is_open and analysis.function.setup_context is None and not method.ctx:
        return None
    if method.kwarg or any(parameter.keyword_only for parameter in method.parameters):
        return Owed(method.positional, len(method.required), None)
    most = None if method.vararg else len(method.positional)
    return Owed(method.positional, len(method.required), most)


def walk(analysis: Analysis) -> Walk | None:
    """What backward returns on each path; None where there is no backward, or two of them."""
    if analysis not in _walks:
        method = analysis.function.backward
        count = None
        due = owed(analysis)
        if due is not None and due.most == due.least:
            count = due.most
        unsure = method is None or is_odd(method) or is_twofold(analysis, "backward") or is_twofold(analysis, "vjp")
        _walks[analysis] = (
            None if unsure or method is None else Walk(method.ctx, count).method(method.node, method.nodes)
        )
    return _walks[analysis]


def concerns(analysis: Analysis, *names: str) -> bool:
    """Whether one of these methods stands in this very class: what is wrong in a base is said of the base alone."""
    found = [analysis.function.method(name) for name in names]
    if any(is_odd(method) for method in found):
        return False
    return any(method is not None and method.owner is analysis.function for method in found)


def is_odd(method: Method | None) -> bool:
    """Whether a method isn't called as it is written: for others to call, or by a decorator that rearranges arguments.

    The former takes cls or self before ctx, and is static.
    """
    if method is None:
        return False
    for_others = (
        method.bound == "static"
        and method.ctx in ("cls", "self")
        and (bool(method.positional) and method.positional[0].name in ("ctx", "context"))
    )
    return for_others or any(_rearranges(one) for one in _defined_here(method))


def _defined_here(method: Method) -> Iterator[ast.FunctionDef]:
    """The decorators of a method that are functions of its own file."""
    if method.is_wrapped:
        written = [one.func if isinstance(one, ast.Call) else one for one in method.node.decorator_list]
        names = {one.id for one in written if isinstance(one, ast.Name)}
        for statement in method.owner.source.tree.body:
            if isinstance(statement, ast.FunctionDef) and statement.name in names:
                yield statement


def _rearranges(decorator: ast.FunctionDef) -> bool:
    """Whether it calls what it was given with arguments of its own choice, and not with ``*args`` as they came."""
    nodes = list(ast.walk(decorator))
    given = {one.arg for one in nodes if isinstance(one, ast.arg)}
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return any(
        isinstance(call.func, ast.Name)
        and call.func.id in given
        and not any(isinstance(one, ast.Starred) for one in call.args)
        for call in calls
    )


def is_twofold(analysis: Analysis, name: str) -> bool:
    """Whether a method stands twice in its class, as in ``if`` and ``else``: it isn't known which one counts."""
    method = analysis.function.method(name)
    return method is not None and name in method.owner.twofold


def is_plain(method: Method | None) -> bool:
    """Whether nothing is around a method that might change what it takes and gives back."""
    return method is None or all(decorator.rpartition(".")[2] in HARMLESS for decorator in method.decorators)


def lowered(confidence: Confidence, *methods: Method | None) -> Confidence:
    """The confidence that is left where a decorator around one of the methods may change things."""
    return confidence if confidence != "certain" or all(is_plain(method) for method in methods) else "likely"


def tuples(returned: Returned) -> list[tuple[Alternative, Several]]:
    """The tuples that may be returned at one place."""
    return [(one, one.thing) for one in returned.what if isinstance(one.thing, Several) and not one.thing.is_list]


def gradients(returned: Returned, alone: bool) -> list[Alternatives]:
    """The gradients by position, as far as they are known at one place.

    Args:
        returned: The place.
        alone: Whether what isn't a tuple is the gradient of a single argument.
    """
    found: list[Alternatives] = []
    for alternative, several in tuples(returned):
        for index, entry in enumerate(several.entries):
            if isinstance(entry, Rest):
                break
            if index == len(found):
                found.append(())
            conditions = alternative.conditions | returned.path
            found[index] += tuple(Alternative(one.thing, one.conditions | conditions) for one in entry)
    single = tuple(one for one in returned.what if isinstance(one.thing, (Made, Nothing)))
    if alone and single and not found:
        found.append(tuple(Alternative(one.thing, one.conditions | returned.path) for one in single))
    return found


def place(alternatives: Alternatives, other: ast.AST) -> ast.AST:
    """The expression that makes a gradient, the first of several; `other` where none is known."""
    nodes = [one.thing.node for one in alternatives if isinstance(one.thing, Made) and one.thing.node is not None]
    return min(nodes, key=lambda node: (node.lineno, node.col_offset), default=other)
