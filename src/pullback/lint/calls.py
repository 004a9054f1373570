"""What a call gives: views, memory of its own, numbers, or nobody knows."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from pullback.lint import tensors
from pullback.lint.narrow import Env
from pullback.lint.record import CtxCall
from pullback.lint.values import BOOL, NONE, NUMBER, UNKNOWN, Value, a

if TYPE_CHECKING:
    from pullback.lint.evaluate import Evaluator

_BUILTIN_NUMBERS = frozenset(
    f"builtins.{name}" for name in ("int", "float", "len", "ord", "hash", "id", "round", "divmod", "complex")
)
_BUILTIN_BOOLS = frozenset(
    f"builtins.{name}" for name in ("bool", "isinstance", "issubclass", "callable", "hasattr", "any", "all")
)
_MATH = ("math.", "operator.index")


def called(evaluator: Evaluator, node: ast.Call, env: Env) -> Value:
    """What a call gives.

    Args:
        evaluator: Evaluates the parts of the call.
        node: The call.
        env: What the names are.
    """
    function = evaluator.value(node.func, env)
    arguments = [evaluator.value(argument, env) for argument in node.args]
    keywords = {keyword.arg: evaluator.value(keyword.value, env) for keyword in node.keywords}
    if "out" in keywords and keywords["out"].kinds != {"none"}:
        return keywords["out"]
    if isinstance(node.func, ast.Attribute):
        base = evaluator.values[id(node.func.value)]
        if base.kinds == {"ctx"}:
            return _of_ctx(evaluator, node, env)
        if not function.dotted:
            return _method(evaluator, node, node.func.attr, base)
    if function.dotted:
        return _function(evaluator, node, function.dotted, arguments)
    return UNKNOWN


def _of_ctx(evaluator: Evaluator, node: ast.Call, env: Env) -> Value:
    assert isinstance(node.func, ast.Attribute)
    values, whole = evaluator.spread(node.args, env)
    name = node.func.attr
    if all(id(node) != id(call.node) for call in evaluator.ctx_calls):
        evaluator.ctx_calls.append(CtxCall(name, node, values, whole, tuple(evaluator.standing)))
    return NONE if name.startswith(("save_for", "mark_", "set_")) else UNKNOWN


def _method(evaluator: Evaluator, node: ast.Call, name: str, base: Value) -> Value:
    """What a method gives that is called on a tensor, or on what may be one."""
    if base.is_tensor is False:
        return a("text") if base.kinds == {"text"} else UNKNOWN
    if tensors.is_in_place(name) or name in ("requires_grad_", "share_memory_"):
        return base
    simple = _by_name(name)
    if simple is not None:
        return simple
    if name in tensors.ARRAYS:
        return Value(frozenset(("array",)), base.seen_as("view").origins)
    if name in tensors.TUPLES:
        found = _several(evaluator, node, name, base) if base.is_tensor or base.origins else UNKNOWN
        return found if base.is_tensor else replace(found, kinds=found.kinds | {"unknown"})
    if name in tensors.VIEWS:
        return base.seen_as("view")
    if name in tensors.MAYBE_VIEWS:
        copies = any(k.arg == "copy" and isinstance(k.value, ast.Constant) and k.value.value for k in node.keywords)
        return evaluator.fresh(node, base.kinds) if copies else base.seen_as("maybe")
    if name not in tensors.torch_names()["torch.Tensor"] or name in tensors.NO_TENSORS:
        return UNKNOWN
    if name in tensors.EITHER and (len(node.args) or node.keywords):
        return evaluator.fresh(node, frozenset(("unknown",)))
    return evaluator.fresh(node, base.kinds if base.is_tensor else frozenset(("unknown",)))


def _by_name(name: str) -> Value | None:
    if name in tensors.NUMBERS:
        return NUMBER
    if name in tensors.SHAPES:
        return a("shape", "number") if name == "size" else a("shape")
    return BOOL if name in tensors.BOOLS else None


def _several(evaluator: Evaluator, node: ast.Call, name: str, base: Value) -> Value:
    """A tuple of tensors, of views where the function gives views."""
    if name in tensors.VIEWS:
        return Value(frozenset(("tuple",)), base.seen_as("view").origins, elements=True)
    return Value(frozenset(("tuple",)), evaluator.fresh(node).origins, elements=True)


def _function(evaluator: Evaluator, node: ast.Call, dotted: str, arguments: list[Value]) -> Value:
    """What a function gives whose full name is known."""
    first = arguments[0] if arguments else UNKNOWN
    if dotted in _BUILTIN_NUMBERS or dotted.startswith(_MATH):
        return NUMBER
    if dotted in _BUILTIN_BOOLS:
        return BOOL
    if dotted in ("builtins.tuple", "builtins.list") and len(arguments) < 2:
        kind = a("tuple" if dotted.endswith("tuple") else "list")
        if not arguments:
            return Value(kind.kinds, items=())
        return Value(kind.kinds, first.origins, first.items, first.family, elements=first.elements)
    if dotted in ("builtins.str", "builtins.repr", "builtins.type", "builtins.getattr", "builtins.super"):
        return a("text") if dotted in ("builtins.str", "builtins.repr") else UNKNOWN
    if dotted in ("builtins.max", "builtins.min", "builtins.sum", "builtins.abs", "builtins.pow"):
        return NUMBER if arguments and all(value.kinds <= {"number", "bool"} for value in arguments) else UNKNOWN
    if dotted.startswith("torch."):
        return _of_torch(evaluator, node, dotted, first)
    return UNKNOWN


def _of_torch(evaluator: Evaluator, node: ast.Call, dotted: str, first: Value) -> Value:
    name = dotted.rpartition(".")[2]
    module = dotted.rpartition(".")[0]
    if module in ("torch", "torch.Tensor"):
        simple = _by_name(name)
        if simple is not None:
            return simple
    if module == "torch" and name in ("device", "Size", "finfo"):
        return a("device") if name == "device" else a("shape") if name == "Size" else UNKNOWN
    if module == "torch" and name in tensors.VIEWS:
        return _several(evaluator, node, name, first) if name in tensors.TUPLES else first.seen_as("view")
    in_place = any(
        keyword.arg == "inplace" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
        for keyword in node.keywords
    )
    if (name.endswith("_") and not name.endswith("__")) or in_place:
        return Value(frozenset(("tensor",)), first.origins) if tensors.gives_tensor(dotted) or in_place else first
    if not tensors.gives_tensor(dotted):
        return UNKNOWN
    if name in tensors.MAYBE_VIEWS and module in ("torch", "torch.nn.functional"):
        return Value(frozenset(("tensor",)), first.seen_as("maybe").origins)
    if name in tensors.TUPLES:
        return _several(evaluator, node, name, first)
    if name in tensors.EITHER and not (name == "where" and len(node.args) > 1):
        return evaluator.fresh(node, frozenset(("unknown",)))
    return evaluator.fresh(node)
