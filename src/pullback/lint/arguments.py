"""What the arguments of forward may be: tensors, numbers, or nobody knows."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from pullback.lint import tensors
from pullback.lint.functions import Method, Parameter
from pullback.lint.values import Kind, Origin, Value

_ANNOTATED: Mapping[str, Kind] = {
    "int": "number", "float": "number", "bool": "bool", "str": "text", "Tensor": "tensor", "torch.Tensor": "tensor",
}  # fmt: skip


def parameter_value(parameter: Parameter, tensors_known: frozenset[str]) -> Value:
    """What an argument of forward may be, by its annotation, its default, and what is known of it."""
    here = frozenset((Origin("input", parameter.name),))
    if parameter.name in tensors_known:
        return Value(frozenset(("tensor",)), here)
    text = parameter.annotation.strip("\"'")
    optional = text.removeprefix("Optional[").removeprefix("typing.Optional[").removesuffix("]")
    plain = text.removesuffix(" | None").removeprefix("None | ")
    for written, extra in ((text, ()), (plain, ("none",)), (optional, ("none",))):
        if written in _ANNOTATED:
            kind = _ANNOTATED[written]
            return Value(frozenset((kind, *extra)), here if kind == "tensor" else frozenset())
    default = parameter.default
    if isinstance(default, ast.Constant) and isinstance(default.value, (bool, int, float, str)):
        kind = "bool" if isinstance(default.value, bool) else "text" if isinstance(default.value, str) else "number"
        return Value(
            frozenset((kind, "unknown") if kind == "number" else (kind,)), here if kind == "number" else frozenset()
        )
    return Value(frozenset(("unknown",)), here)


def tensors_by_use(method: Method) -> frozenset[str]:
    """Parameters of which some use shows that they are tensors: a method that only tensors have."""
    telling = tensors.telling_methods()
    names = {parameter.name for parameter in method.parameters}
    found = set()
    rebound = set()
    changed = {id(node.target) for node in method.inside if isinstance(node, ast.AugAssign)}
    for node in method.inside:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in changed:
            rebound.add(node.id)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if isinstance(node.func.value, ast.Name):
            if node.func.value.id in names and node.func.attr in telling:
                found.add(node.func.value.id)
            if node.func.value.id == method.ctx and node.func.attr == "mark_dirty":
                found |= {one.id for one in node.args if isinstance(one, ast.Name) and one.id in names}
    return frozenset(found - rebound)
