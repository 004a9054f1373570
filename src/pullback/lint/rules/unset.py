"""Attributes of ctx that are read, and that nothing sets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pullback.finding import Finding
from pullback.lint.analysis import Analysis, Confidence
from pullback.lint.ctx import attributes, escapes, is_closed, keeper_name, methods
from pullback.lint.functions import Method
from pullback.lint.walks import concerns, is_plain

OF_CTX = frozenset(
    (
        "apply", "apply_boxed", "apply_jvp", "dirty_tensors", "grad_outputs", "mark_dirty", "mark_non_differentiable",
        "mark_shared_storage", "materialize_grads", "maybe_clear_saved_tensors", "metadata", "name",
        "needs_input_grad", "next_functions", "non_differentiable", "register_hook", "register_prehook",
        "requires_grad", "save_for_backward", "save_for_forward", "saved_for_forward", "saved_tensors",
        "saved_variables", "set_materialize_grads", "to_save",
    )
)  # fmt: skip
"""Attributes that every ctx has. Those that begin with an underscore are PyTorch's own, or its decorators'."""


def attributes_of_ctx(analysis: Analysis) -> Iterator[Finding]:
    """PB237: an attribute of ctx is read that nothing sets."""
    if not is_closed(analysis) or not concerns(analysis, "backward", "vjp", "jvp", "double_backward"):
        return
    several = [*methods(analysis)]
    put = {node.attr for one in several for node in attributes(one) if not isinstance(node.ctx, ast.Load)}
    for name in ("backward", "vjp", "jvp", "double_backward"):
        method = analysis.function.own.get(name)
        if method is None or escapes(method):
            continue
        missing = {
            node.attr: node
            for node in reversed(attributes(method))
            if isinstance(node.ctx, ast.Load) and node.attr not in put | OF_CTX and not node.attr.startswith("_")
        }
        guarded = inside_try(method) | strings(several) if missing else set()
        for node in sorted(missing.values(), key=lambda one: (one.lineno, one.col_offset)):
            if node.attr in guarded or is_set_from_outside(analysis, node.attr):
                continue
            of_class = {name for one in analysis.function.lineage() for name in (*one.assigned, *one.others)}
            more = "; it is an attribute of the class, which ctx doesn't see" if node.attr in of_class else ""
            yield analysis.finding(
                "PB237",
                node,
                f"{name} reads {method.ctx}.{node.attr}, and nothing sets it{more}.",
                where=f"{name}, {method.ctx}.{node.attr}",
                expected=f"{method.ctx}.{node.attr} = … in {keeper_name(analysis)}",
                got="no attribute of that name",
                confidence=_sure(analysis, method),
                path=method.owner.source.path,
            )


def is_set_from_outside(analysis: Analysis, name: str) -> bool:
    """Whether the file sets an attribute of that name on anything: ``y.grad_fn.name = …`` sets it on ctx."""
    return re.search(rf"\.\s*{re.escape(name)}\s*(?::[^=\n]+)?=(?!=)", analysis.function.source.text) is not None


def _sure(analysis: Analysis, method: Method) -> Confidence:
    """How sure it is that ctx is a ctx: of the days before static methods, self was an instance of the class."""
    if method.bound == "plain" and method.ctx == "self":
        return "possible"
    return "certain" if is_plain(analysis.function.forward) else "likely"


def inside_try(method: Method) -> set[str]:
    """Attributes whose absence is caught."""
    tries = [node for node in method.nodes if isinstance(node, ast.Try) and any(map(_catches, node.handlers))]
    return {one.attr for node in tries for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler may catch an AttributeError."""
    return handler.type is None or any(name in ast.unparse(handler.type) for name in ("Attribute", "Exception"))


def strings(several: list[Method]) -> set[str]:
    """Strings, which may name an attribute for getattr, hasattr or setattr."""
    nodes = [node for method in several for node in method.nodes]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
