"""Calls of a Function: without ``.apply``, or with arguments that forward doesn't take."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis
from pullback.lint.rules.misspelt import contexts
from pullback.lint.uses import Use
from pullback.lint.walks import is_twofold


def not_applied(analysis: Analysis) -> Iterator[Finding]:
    """PB108: the class is called, or an instance of it."""
    function = analysis.function
    if any("__call__" in one.others or "__new__" in one.others for one in function.lineage()):
        return
    if function.is_open or function.is_rebound or any(_may_be_called(one.node) for one in function.lineage()):
        return
    name = function.node.name
    for use in analysis.uses:
        if use.how == "apply":
            continue
        inside = {id(part.node.func) for part in analysis.uses if part.how in ("instance", "apply")}
        if use.how == "class" and (id(use.node) in inside or _is_made_only(use, analysis)):
            continue  # said of the call of the instance; and Name().apply(x) works
        # An instance without arguments may be made on purpose; only calling it, or giving it arguments, is an error.
        if use.how == "class" and use.passed == 0 and not use.keywords:
            continue
        written = f"{name}(...)(...)" if use.how == "instance" else f"{name}(...)"
        yield analysis.finding(
            "PB108",
            use.node,
            f"{written} makes an instance and doesn't run forward in the graph.",
            where=f"call in {use.qualname}" if use.qualname else "call",
            expected=f"{name}.apply(...)",
            got=written,
            path=use.source.path,
        )


def _may_be_called(node: ast.ClassDef) -> bool:
    """Whether calling a class may well be something else: by its metaclass, or by a decorator that gives another thing.

    Args:
        node: The class.
    """
    last = [ast.unparse(one).rpartition(".")[2] for one in node.decorator_list]
    return any(one.arg == "metaclass" for one in node.keywords) or any(one != "final" for one in last)


def _is_made_only(use: Use, analysis: Analysis) -> bool:
    """Whether this makes the instance of ``Name(...).apply(x)``, which PyTorch runs."""
    return any(
        other.how == "apply" and use.node in (getattr(other.node.func, "value", None),) for other in analysis.uses
    )


def wrong_count(analysis: Analysis) -> Iterator[Finding]:
    """PB131: apply gets fewer arguments than forward demands, more than it takes, or a keyword that it doesn't know."""
    function, forward = analysis.function, analysis.function.forward
    if forward is None or forward.is_wrapped or function.is_rebound or is_twofold(analysis, "forward"):
        return
    if next(contexts(analysis), None) is not None:  # a misspelt setup_context: forward's first argument isn't ctx
        return
    least, most = len(forward.required), None if forward.vararg else len(forward.positional)
    names = {parameter.name for parameter in forward.parameters}
    due = {p.name for p in forward.parameters if p.keyword_only and p.default is None}
    for use in analysis.uses:
        if use.how != "apply" or use.passed is None or "**" in use.keywords:
            continue
        given = use.passed + len(use.keywords)
        if not forward.kwarg and set(use.keywords) - names:
            unknown = sorted(set(use.keywords) - names)[0]
            yield _wrong(analysis, use, f"forward takes no argument {unknown}", ", ".join(sorted(names)))
        elif given < least + len(due):
            yield _wrong(analysis, use, f"forward demands {_arguments(least + len(due))}, and gets {given}", "")
        elif most is not None and use.passed > most:
            yield _wrong(analysis, use, f"forward takes {_arguments(most)} at most, and gets {use.passed}", "")


def _wrong(analysis: Analysis, use: Use, what: str, expected: str) -> Finding:
    forward = analysis.function.forward
    assert forward is not None
    names = ", ".join(parameter.name for parameter in forward.parameters)
    return analysis.finding(
        "PB131",
        use.node,
        f"{what}.",
        where=f"call in {use.qualname}" if use.qualname else "call",
        expected=expected if expected and expected != names else f"arguments for ({names})",
        got=f"{use.passed} by position" + (f", {', '.join(use.keywords)} by keyword" if use.keywords else ""),
        path=use.source.path,
    )


def _arguments(number: int) -> str:
    return "1 argument" if number == 1 else f"{number} arguments"
