"""Arguments that may be memory lent to a Function, for it to work in: those stay the objects that they are."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from pullback.lint.analysis import Analysis
from pullback.lint.flow import Flow
from pullback.lint.given import gradient_of, returned
from pullback.lint.writing import Write, writes

_OVERWRITES = frozenset(("copy_", "zero_", "fill_", "out=", "[…] ="))
"""Writes that don't ask what was there before, as `Write.shown` has them."""


def is_overwritten(analysis: Analysis, write: Write, names: Iterable[str]) -> bool:
    """Whether a write fills arguments that get no gradient, as far as is known, whatever was in them before.

    Args:
        analysis: The Function.
        write: The write.
        names: The arguments that it goes into.
    """
    return write.shown in _OVERWRITES and all(name and gradient_of(analysis, name) != "some" for name in names)


def is_output(analysis: Analysis, name: str) -> bool:
    """Whether forward gives an argument back."""
    return any(one.kind == "input" and one.name == name for one in returned(analysis))


def is_room(analysis: Analysis, name: str) -> bool:
    """Whether an argument may be filled anew by this Function: by a write, or by whom backward hands it on to.

    Args:
        analysis: The Function.
        name: The argument; one that surely gets a gradient is no such memory.
    """
    if not name or gradient_of(analysis, name) == "some":
        return False
    flows = [one for one in (analysis.forward, analysis.setup_context, analysis.backward) if one is not None]
    filled = any(
        name in _written(analysis, write) for flow in flows for write in writes(flow) if write.shown in _OVERWRITES
    )
    return filled or (analysis.backward is not None and _is_handed_on(analysis, analysis.backward, name))


def _written(analysis: Analysis, write: Write) -> set[str]:
    """The arguments that a write of any method goes into."""
    return {one.name for one in write.into("input")} | {
        one.name for kept in write.into("ctx") for one in analysis.came_from(kept).of("input")
    }


def _is_handed_on(analysis: Analysis, flow: Flow, name: str) -> bool:
    """Whether backward hands an argument that is kept on ctx to something that may write into it."""
    for call in flow.nodes(ast.Call):
        if _is_known(flow, call.func):
            continue
        for given in (*call.args, *(one.value for one in call.keywords)):
            parts = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]
            kept = [origin for part in parts for origin in flow.value(part).of("ctx")]
            if any(one.name == name for origin in kept for one in analysis.came_from(origin).of("input")):
                return True
    return False


def _is_known(flow: Flow, function: ast.expr) -> bool:
    """Whether what is called is PyTorch's or Python's own, or a method of a tensor: none of them fills an argument."""
    dotted = flow.value(function).dotted
    if dotted.startswith(("torch.", "builtins.", "math.")):
        return not dotted.startswith("torch.ops.")
    return isinstance(function, ast.Attribute) and flow.value(function.value).is_tensor is True
