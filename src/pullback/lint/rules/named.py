"""Gradients as pullback.Function takes them: by name, and none for arguments that are declared to have none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.alternatives import Made
from pullback.lint.analysis import Analysis
from pullback.lint.walks import concerns, gradients, owed, place, walk


def unknown(analysis: Analysis) -> Iterator[Finding]:
    """PB218: a dict of gradients has a name that forward doesn't."""
    walked, method, forward = walk(analysis), analysis.function.backward, analysis.function.forward
    if not analysis.function.ours or walked is None or method is None or forward is None:
        return
    if forward.kwarg or forward.vararg or not concerns(analysis, "forward", "backward", "vjp"):
        return
    names = [parameter.name for parameter in forward.parameters]
    for returned in walked.returns:
        for one in returned.what:
            node = one.thing.node if isinstance(one.thing, Made) else None
            if not isinstance(node, ast.Dict):
                continue
            for key in node.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in names:
                    yield analysis.finding(
                        "PB218",
                        key,
                        f"{method.name} returns a gradient for {key.value!r}, which is no argument of forward.",
                        where=f"{method.name}, gradient of {key.value}",
                        expected=f"names among {', '.join(names)}",
                        got=repr(key.value),
                        path=method.owner.source.path,
                    )


def declared(analysis: Analysis) -> Iterator[Finding]:
    """PB222: a gradient for an argument that nondiff_argnames declares to have none."""
    walked, method, due = walk(analysis), analysis.function.backward, owed(analysis)
    names = _strings(analysis.function.declares("nondiff_argnames"))
    if not analysis.function.ours or not names or walked is None or method is None or due is None:
        return
    if not concerns(analysis, "forward", "backward", "vjp"):
        return
    for returned in walked.returns:
        for index, entry in enumerate(gradients(returned, alone=due.most == 1)):
            made = [one for one in entry if isinstance(one.thing, Made) and one.thing.part is None]
            if index >= len(due.parameters) or due.name(index) not in names or len(made) < len(entry):
                continue
            values = [
                analysis.backward.value(one.thing.node)
                for one in made
                if isinstance(one.thing, Made) and analysis.backward
            ]
            if made and all(value.is_tensor for value in values):
                yield analysis.finding(
                    "PB222",
                    place(entry, returned.node),
                    f"{method.name} returns a gradient for {due.name(index)}, "
                    "which nondiff_argnames declares to have none.",
                    where=f"{method.name}, gradient of {due.name(index)}",
                    expected="None",
                    got="a gradient",
                    path=method.owner.source.path,
                )


def _strings(node: ast.expr | None) -> frozenset[str]:
    """The strings of a literal tuple, list or set of them."""
    if not isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return frozenset()
    return frozenset(one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str))
