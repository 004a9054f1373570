"""Where Functions are called: ``Name.apply(x)``, an alias of it, ``Name(x)``, ``Name()(x)``."""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from pullback.lint.discover import Project
from pullback.lint.functions import FunctionClass
from pullback.lint.names import Binding, Scope
from pullback.lint.source import Source
from pullback.lint.trees import children


class Use(NamedTuple):
    """One call of a Function.

    Attributes:
        function: The Function.
        source: The file of the call.
        node: The call.
        how: ``apply`` (``Name.apply(x)``, an alias of it, or ``Name().apply(x)``), ``class`` (``Name(x)``) or
            ``instance`` (``Name(...)(x)``).
        passed: How many positional arguments are passed; None where a star hides that.
        keywords: The names of keyword arguments; ``**`` for a double star.
        qualname: The function or class in which the call stands; empty at the top of the module.
    """

    function: FunctionClass
    source: Source
    node: ast.Call
    how: Literal["apply", "class", "instance"]
    passed: int | None
    keywords: tuple[str, ...]
    qualname: str


def uses(project: Project, source: Source) -> list[Use]:
    """Every call of a Function of the run in one file, in order.

    Args:
        project: All Functions of the run.
        source: The file.
    """
    lines = _lines(project, source)
    return list(_in_body(source.tree.body, source.names.root, project, source, lines)) if lines else []


def _lines(project: Project, source: Source) -> list[int]:
    """The lines on which a Function may be called, in order: those that say a name by which one can be reached."""
    words, packages = {".apply"}, set()  # `package.module.Square`: a package counts where a Function's name follows
    for scope in source.names.scopes():
        for name, bindings in scope.bindings.items():
            for bound in bindings:
                dotted = "" if bound.kind == "other" else _stands_for(bound, scope)
                if dotted in project.packages:
                    packages.add(name)
                elif dotted and (project.find(dotted) or project.applied(dotted)):
                    words.add(name)
    text = source.text
    places = {place for word in words for place in _places(text, word)}
    names = "|".join(sorted({function.node.name for function in project.functions.values()}))
    for word in packages:
        places.update(match.start() for match in re.finditer(rf"{word}\.(?:\w+\.)*(?:{names})\b", text))
    lines, line, last = [], 1, 0
    for place in sorted(places):
        line += text.count("\n", last, place)
        last = place
        lines.append(line)
    return lines


def _stands_for(bound: Binding, scope: Scope) -> str:
    """The full name that a binding stands for, as far as a Function could be behind it."""
    if bound.kind == "import":
        return bound.dotted
    if bound.kind == "class" and isinstance(bound.node, ast.ClassDef):
        return scope.class_name(bound.node)
    if bound.kind == "value" and isinstance(bound.node, (ast.Name, ast.Attribute)):
        return scope.qualified(bound.node, bound.line)
    return ""


def _places(text: str, word: str) -> Iterator[int]:
    place = text.find(word)
    while place >= 0:
        yield place
        place = text.find(word, place + len(word))


def _in_body(
    body: Iterable[ast.AST], scope: Scope, project: Project, source: Source, lines: list[int]
) -> Iterator[Use]:
    for node in body:
        if isinstance(node, (ast.stmt, ast.ExceptHandler)) and not _is_on(node, lines):
            continue
        inner = scope
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = source.names.scope_of(node)
        elif isinstance(node, ast.Call):
            use = _use(node, scope, project, source)
            if use is not None:
                yield use
        yield from _in_body(children(node), inner, project, source, lines)


def _is_on(node: ast.stmt | ast.ExceptHandler, lines: list[int]) -> bool:
    """Whether a statement, or a decorator above it, has one of the lines."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return bisect.bisect_left(lines, first) < bisect.bisect_right(lines, node.end_lineno or first)


def _use(node: ast.Call, scope: Scope, project: Project, source: Source) -> Use | None:
    found = _called(node.func, scope, project)
    if found is None:
        return None
    function, how = found
    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
    return Use(
        function=function,
        source=source,
        node=node,
        how=how,
        passed=None if starred else len(node.args),
        keywords=tuple(keyword.arg or "**" for keyword in node.keywords),
        qualname=scope.qualname,
    )


def _called(
    func: ast.expr, scope: Scope, project: Project
) -> tuple[FunctionClass, Literal["apply", "class", "instance"]] | None:
    """The Function that is called, and how; None where none is."""
    if isinstance(func, ast.Attribute) and func.attr == "apply" and isinstance(func.value, ast.Call):
        function = project.find(scope.qualified(func.value.func, func.lineno))
        return (function, "apply") if function is not None else None
    if isinstance(func, ast.Call):
        function = project.find(scope.qualified(func.func, func.lineno))
        return (function, "instance") if function is not None else None
    dotted = scope.qualified(func, func.lineno)
    function = project.applied(dotted)
    if function is not None:
        return function, "apply"
    function = project.find(dotted)
    return (function, "class") if function is not None else None
