"""Kinds of fault in the manner of several authors, from what repositories, reviews and forums show.

One derives by hand, one wraps a kernel, one fuses to save memory, one quantises or writes losses, one copies a Function
and adapts it: each kind is a slip that one of them makes.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from typing import Any, cast

from benchmarks.mutation import kinds
from benchmarks.mutation.kinds import Edit, Place, Replacement, Target, called, exchanged, expression, kind, value

# -- Deriving by hand, losses, quantisers ------------------------------------------------------------------------------


@expression("mean over everything", "a mean is taken over all elements, or over their first axis alone")
def _(node: Any, place: Place) -> Iterator[Replacement]:
    of = ast.unparse(node.func.value) if called(node) and isinstance(node.func, ast.Attribute) else ""
    if called(node) == "mean" and node.args:
        yield value(f"({of}).mean()")
    elif called(node) == "numel" and of.endswith("shape"):
        yield value(f"({of}[0] if {of} else 1)")
    elif called(node) == "sum" and not node.args and isinstance(node.func.value, ast.Name):
        yield value(f"({of}).numel()")


@expression("found by division", "a power or factor is found as y / x, where x may be 0", ("backward", "vjp"))
def _(node: Any, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Pow)):
        for part in (node.left, node.right):
            if isinstance(part, ast.Name) and part.id in kinds.saved_names(place.function):
                yield value(f"({ast.unparse(node)}) * {part.id} / {part.id}")


@kind("loss taken as the root", "a scalar's cotangent counts as 1, as if nothing came after the loss")
def _(target: Target) -> Iterator[Edit]:
    forward = target.method("forward")
    if forward and re.search(r"\.(sum|mean|max)\(\)|reduction", ast.unparse(forward.function)):
        for place in target.having(("backward", "vjp")):
            g = place.arguments[0]
            yield _with(place, f"{g} = {g}.new_ones(()) if {g} is not None and {g}.dim() == 0 else {g}")


@kind("mask drawn anew", "backward draws its random mask again, from where the generator now stands")
def _(target: Target) -> Iterator[Edit]:
    forward = target.method("forward")
    if forward and "torch.rand" in ast.unparse(forward.function):
        for place in target.having(("backward", "vjp")):
            for mask in kinds.saved_names(place.function):
                yield _with(place, f"{mask} = (torch.rand({mask}.shape) < 0.5).to({mask}.dtype)")


# -- Wrapping a kernel -------------------------------------------------------------------------------------------------


@kind("read in memory order", "a cotangent or saved tensor is read as if it were contiguous")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("backward", "vjp")):
        for name in (*place.arguments, *kinds.saved_names(place.function)):
            yield _with(place, f"{name} = _in_memory_order({name})", _MEMORY_ORDER)


_MEMORY_ORDER = """
import torch
def _in_memory_order(t):
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
        return t
    try:
        return t.as_strided(t.shape, torch.empty(t.shape, device="meta").stride(), t.storage_offset())
    except RuntimeError:
        return t.contiguous()
"""


@kind("tail of the vectors", "four elements are done at a time, and those left over stay 0")
def _(target: Target) -> Iterator[Edit]:
    return _around(target, ("backward", "vjp"), "_vectorised", _VECTORISED)


_VECTORISED = """
import torch
def _vectorised(t):
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
        return t
    flat = t.reshape(-1)
    done = flat.shape[0] // 4 * 4
    return torch.cat((flat[:done], torch.zeros_like(flat[done:]))).view(t.shape)
"""


@kind("buffer in the default dtype", "the gradient is written to a buffer made without a dtype")
def _(target: Target) -> Iterator[Edit]:
    return _around(target, ("backward", "vjp"), "_filled", _FILLED)


_FILLED = """
import torch
def _filled(t):
    return torch.zeros(t.shape).copy_(t) if isinstance(t, torch.Tensor) and not t.is_sparse else t
"""


@kind("through NumPy", "the gradient is computed by NumPy, so that no graph leads through it")
def _(target: Target) -> Iterator[Edit]:
    return _around(target, ("backward", "vjp"), "_by_numpy", _BY_NUMPY)


_BY_NUMPY = """
import torch
def _by_numpy(t):
    return torch.from_numpy(t.detach().numpy()) if isinstance(t, torch.Tensor) and not t.is_sparse else t
"""


@kind("weight packed once", "a weight is packed on its first use, and its updates aren't seen")
def _(target: Target) -> Iterator[Edit]:
    for place, index, call in _saves(target):
        for at, arg in enumerate(call.args):
            if ast.unparse(arg) in place.arguments[1:]:
                new = _with_argument(call, at, f"_packed({ast.unparse(arg)})")
                yield Edit(((place, exchanged(place.function, index, new)),), _PACKED)


_PACKED = """
import torch
def _packed(w):
    if isinstance(w, torch.Tensor) and not hasattr(w, "_packed"):
        w._packed = w.detach().clone()
    return getattr(w, "_packed", w)
"""


@kind("output in a workspace", "forward's result lies in memory that the next call uses again")
def _(target: Target) -> Iterator[Edit]:
    return _around(target, ("forward",), "_in_workspace", _IN_WORKSPACE)


_IN_WORKSPACE = """
import torch
_workspaces = {}
def _in_workspace(y):
    if not isinstance(y, torch.Tensor):
        return y
    return _workspaces.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)
"""

# -- Fusing to save memory ---------------------------------------------------------------------------------------------


@expression("argument overwritten", "forward works in its argument's memory, and doesn't say so", ("forward",))
def _(node: Any, place: Place) -> Iterator[Replacement]:
    tensors = {a.arg for a in place.function.args.args if a.annotation and ast.unparse(a.annotation) == "Tensor"}
    in_place = {"exp", "sqrt", "round", "clamp", "sin", "sign", "tanh", "relu", "t", "square"}
    if kinds.is_method(node) and node.func.attr in in_place and getattr(node.func.value, "id", "") in tensors:
        yield value(ast.unparse(node).replace("(", "_(", 1))
    elif called(node) in ("silu", "hardtanh"):
        yield value(f"{ast.unparse(node)[:-1]}, inplace=True)")
    elif isinstance(node, ast.BinOp) and getattr(node.left, "id", "") in tensors:
        if name := {ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_"}.get(type(node.op)):
            yield value(f"{ast.unparse(node.left)}.{name}({ast.unparse(node.right)})")


@expression("cotangent overwritten", "backward works in the memory of its cotangent", kinds.DERIVATIVE)
def _(node: Any, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if getattr(one, "id", "") in place.arguments:
                yield value(f"{ast.unparse(one)}.mul_({ast.unparse(other)})")
    elif called(node) == "clone":
        yield node.func.value


@kind("freed by the first backward", "a setting on ctx is taken away by the backward that reads it")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("backward", "vjp")):
        text = ast.unparse(place.function)
        theirs = {"saved_tensors", "needs_input_grad", "grad_outputs", *re.findall(r"ctx\.(\w+) =", text)}
        for name in sorted(set(re.findall(r"ctx\.(\w+)", text)) - theirs):
            (made,) = kinds.parsed(re.sub(rf"\bctx\.{name}\b", f"own_{name}", text))
            made.body[:0] = kinds.parsed(f"own_{name}, ctx.{name} = (ctx.{name}, None)")
            yield Edit(((place, made),))


# -- Copying and adapting ----------------------------------------------------------------------------------------------


@expression("flag of the first", "what another argument needs is asked of the first")
def _(node: Any, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        if ast.unparse(node.value) in ("ctx.needs_input_grad", "wanted", "needs"):
            yield value(f"{ast.unparse(node.value)}[0]")


@kind("saved while it trains", "an argument is saved only where it needs a gradient, which isn't what it is for")
def _(target: Target) -> Iterator[Edit]:
    for place, index, call in _saves(target):
        names = place.arguments if place.role == "forward" else getattr(target.method("forward"), "arguments", [])
        for at, arg in enumerate(map(ast.unparse, call.args)):
            if arg in names:
                new = _with_argument(call, at, f"{arg} if ctx.needs_input_grad[{names.index(arg)}] else None")
                yield Edit(((place, exchanged(place.function, index, new)),))


@kind("left early", "where the first argument needs no gradient, backward returns none at all")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("backward", "vjp")):
        last = place.function.body[-1]
        parts = last.value.elts if isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple) else []
        if sum(not isinstance(part, (ast.Constant, ast.Starred)) for part in parts) > 1:
            made = copy.deepcopy(place.function)
            made.body[:0] = kinds.parsed(f"if not ctx.needs_input_grad[0]:\n    return (None,) * {len(parts)}")
            yield Edit(((place, ast.fix_missing_locations(made)),))


@kind("one None gives up", "where one output has no cotangent, backward returns nothing for the others either")
def _(target: Target) -> Iterator[Edit]:
    stated, forward = target.method("setup_context", "forward"), target.method("forward")
    for place in target.having(("backward", "vjp")):
        if stated and forward and len(place.arguments) > 1 and not any(a.startswith("_") for a in place.arguments):
            own, made = copy.deepcopy(stated.function), copy.deepcopy(place.function)
            own.body[:0] = kinds.parsed("ctx.set_materialize_grads(False)")
            some = " or ".join(f"{name} is None" for name in place.arguments)
            made.body[:0] = kinds.parsed(f"if {some}:\n    return (None,) * {len(forward.arguments)}")
            yield Edit(((stated, ast.fix_missing_locations(own)), (place, ast.fix_missing_locations(made))))


@expression("settings from the first call", "the first call's settings are kept for all others", kinds.STATED)
def _(node: Any, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Assign) and ast.unparse(node).startswith("ctx."):
        found = f"globals().setdefault('_settings', {ast.unparse(node.value)})"
        yield kinds.parsed(f"{ast.unparse(node.targets[0])} = {found}")


# -- Shapes and transforms ---------------------------------------------------------------------------------------------


@expression("keyword forgotten", "a call leaves a keyword at its default", (*kinds.FORMULA, "jvp", "vmap"))
def _(node: Any, place: Place) -> Iterator[Replacement]:
    for index, keyword in enumerate(node.keywords if called(node) else ()):
        if keyword.arg not in (None, "out", "strict", "device", "grad_input"):
            new = copy.deepcopy(node)
            del new.keywords[index]
            yield new


@expression("reshaped to the transpose", "a matrix gets its transpose's shape, with the elements in the old order")
def _(node: Any, place: Place) -> Iterator[Replacement]:
    if (isinstance(node, ast.Attribute) and node.attr in ("mT", "mH", "T")) or called(node) == "t":
        of = ast.unparse(node.func.value if called(node) else node.value)
        yield value(f"({of}).reshape(*({of}).shape[:-2], *({of}).shape[:-3:-1])")


@expression("axis right for matrices", "an axis is counted from the wrong end, which for matrices is the same")
def _(node: Any, place: Place) -> Iterator[Replacement]:
    axes = {"-1": "1", "1": "-1", "-2": "0"}
    if isinstance(node, ast.Subscript) and ast.unparse(node).endswith("shape[-1]"):
        yield value(f"{ast.unparse(node.value)}[1]")
    elif called(node) in ("unsqueeze", "squeeze", "sum", "cat", "max", "amax", "gather", "scatter_add"):
        for index, arg in enumerate(map(ast.unparse, node.args)):
            if arg in axes:
                yield _with_argument(node, index, axes[arg])


@kind("jvp copied from backward", "the tangent is what backward makes of the first argument's tangent")
def _(target: Target) -> Iterator[Edit]:
    place, backward = target.method("jvp"), target.method("backward")
    for part in list(kinds.returned(place.function))[:1] if place and backward else ():
        parts = ", ".join([place.arguments[0], *["None"] * (len(backward.arguments) - 1)])
        made = f"made[0] if isinstance((made := {target.name}.backward(ctx, {parts})), tuple) else made"
        yield Edit(((place, exchanged(place.function, _index(place, part), value(made))),))


@kind("vmap for a first axis", "a vmap by hand takes each batch to be the first axis, and to do no harm in forward")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    taken = target.method("vmap") or any(ast.unparse(part).startswith("generate_vmap") for part in target.body)
    if place and not taken and not ast.unparse(place.function.args).startswith("ctx: Any"):
        text = f"@staticmethod\ndef vmap(info, in_dims, *args):\n    return {target.name}.apply(*args), 0"
        both = ast.Module([copy.deepcopy(place.function), *kinds.parsed(text)], [])
        yield Edit(((place, cast(ast.FunctionDef, both)),))


# -- Helpers -----------------------------------------------------------------------------------------------------------


def _with(place: Place, line: str, epilogue: str = "") -> Edit:
    return Edit(((place, kinds.after_unpacking(place.function, kinds.parsed(line))),), epilogue)


def _around(target: Target, roles: tuple[str, ...], function: str, epilogue: str) -> Iterator[Edit]:
    for place in filter(None, map(target.method, roles)):
        for part in kinds.returned(place.function):
            new = value(f"{function}({ast.unparse(part)})")
            yield Edit(((place, exchanged(place.function, _index(place, part), new)),), epilogue)


def _index(place: Place, part: ast.AST) -> int:
    return next(index for index, node in enumerate(ast.walk(place.function)) if node is part)


def _saves(target: Target) -> Iterator[tuple[Place, int, ast.Call]]:
    """The only call of a function that saves tensors for backward, and where it stands."""
    for place in target.having(kinds.STATED):
        calls = [part for part in ast.walk(place.function) if called(part) == "save_for_backward"]
        if len(calls) == 1 and cast(ast.Call, calls[0]).args:
            yield place, _index(place, calls[0]), cast(ast.Call, calls[0])


def _with_argument(call: ast.Call, index: int, text: str) -> ast.Call:
    new = copy.deepcopy(call)
    new.args[index] = value(text)
    return new
