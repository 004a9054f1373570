"""Kinds of fault about axes and memory: transposes, reductions, dimensions, slices, layouts, dtypes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutation.arithmetic import in_returned
from benchmarks.mutation.kinds import (
    DERIVATIVE,
    FORMULA,
    Edit,
    Place,
    Replacement,
    Target,
    after_unpacking,
    called,
    exchanged,
    expression,
    is_method,
    kind,
    parsed,
    saved_names,
)

REVERSE = ("backward", "vjp")


@expression("transpose", "a factor isn't transposed")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Attribute) and node.attr in ("mT", "mH", "T", "H"):
        yield node.value
    if called(node) in ("t", "transpose", "movedim", "permute") and is_method(node):
        yield node.func.value


@expression("product turned round", "the factors of a matrix product are swapped")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield ast.BinOp(node.right, node.op, node.left)


_REDUCTIONS = ("sum_to_size", "sum", "mean")


@expression("missing reduction", "what was broadcast isn't summed, or a sum is left out", (*DERIVATIVE, "helper"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) in _REDUCTIONS and is_method(node):
        yield node.func.value


@kind("sum over one axis too few", "of two axes that were broadcast only the last is summed")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having((*DERIVATIVE, "helper")):
        for index, node in enumerate(ast.walk(place.function)):
            if called(node) == "sum_to_size" and is_method(node):
                # right as long as the leading axes are all there
                made = ast.Call(ast.Attribute(node.func.value, "sum", ast.Load()), [ast.Constant(0)], [])
                yield _exchange(place, index, made)
            if called(node) == "sum" and is_method(node) and node.args and isinstance(node.args[0], ast.Tuple):
                made = ast.Call(node.func, [node.args[0].elts[-1], *node.args[1:]], node.keywords)
                yield _exchange(place, index, made)


def _exchange(place: Place, index: int, new: ast.AST) -> Edit:
    return Edit(((place, exchanged(place.function, index, new)),))


_WITH_DIM = (
    "sum", "mean", "amax", "amin", "softmax", "log_softmax", "unsqueeze", "squeeze", "gather", "cat", "stack",
    "index_add", "index_select", "scatter", "scatter_add", "narrow", "flip", "chunk", "split", "logsumexp", "max",
    "size", "cumsum",
)  # fmt: skip


@expression("wrong dimension", "an operation runs along another axis")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) not in _WITH_DIM:
        return
    for index, argument in enumerate(node.args):
        for other in _other_axis(argument):
            yield ast.Call(node.func, [*node.args[:index], other, *node.args[index + 1 :]], node.keywords)
            return
    for index, keyword in enumerate(node.keywords):
        for other in _other_axis(keyword.value) if keyword.arg in ("dim", "axis") else ():
            keywords = [*node.keywords]
            keywords[index] = ast.keyword(keyword.arg, other)
            yield ast.Call(node.func, node.args, keywords)


def _other_axis(node: ast.expr) -> Iterator[ast.expr]:
    try:
        axis = ast.literal_eval(node)
    except ValueError:
        return
    if isinstance(axis, int) and not isinstance(axis, bool):
        yield ast.Constant({0: -1, -1: 0, 1: 0}.get(axis, axis + 1 if axis < 0 else axis - 1))


@expression("axis not kept", "a reduction drops an axis that has to stay for broadcasting")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Call) and any(keyword.arg == "keepdim" for keyword in node.keywords):
        yield ast.Call(node.func, node.args, [keyword for keyword in node.keywords if keyword.arg != "keepdim"])
    if called(node) in ("unsqueeze", "expand", "expand_as", "view_as") and is_method(node):
        yield node.func.value


@expression("off by one", "a slice or an index is off by one")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Slice):
        for bound in ("lower", "upper"):
            at = getattr(node, bound)
            if at is not None:
                parts = {"lower": node.lower, "upper": node.upper, bound: ast.BinOp(at, ast.Add(), ast.Constant(1))}
                yield ast.Slice(parts["lower"], parts["upper"], node.step)
    if called(node) in ("narrow", "arange", "range") and node.args:
        last = ast.BinOp(node.args[-1], ast.Sub(), ast.Constant(1))
        yield ast.Call(node.func, [*node.args[:-1], last], node.keywords)


@expression("wrong half", "an index or a slice takes the other end")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if not isinstance(node, ast.Subscript) or "needs_input_grad" in ast.unparse(node) or "ctx" in ast.unparse(node):
        return
    if isinstance(node.slice, ast.Constant) and node.slice.value in (0, 1, -1):
        yield ast.Subscript(node.value, ast.Constant({0: 1, 1: 0, -1: 0}[node.slice.value]), node.ctx)
    for part in ast.walk(node.slice):
        if isinstance(part, ast.Slice) and (part.lower is None) != (part.upper is None):
            text = ast.unparse(node).replace(ast.unparse(part), ast.unparse(ast.Slice(part.upper, part.lower, None)))
            yield ast.parse(text, mode="eval").body


@expression("view for reshape", "a view is taken of what need not be contiguous", (*FORMULA, "forward"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) in ("reshape", "flatten") and is_method(node):
        args = node.args if called(node) == "reshape" else [ast.Constant(-1)]
        yield ast.Call(ast.Attribute(node.func.value, "view", ast.Load()), args, node.keywords)
    if called(node) == "contiguous" and is_method(node):
        yield node.func.value


@kind("flat view", "a tensor is viewed as one row, which takes a contiguous one")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in (*place.arguments[:1], *saved_names(place.function)[:1]):
            lines = parsed(f"{name} = {name}.view(-1).view({name}.shape)")
            yield Edit(((place, after_unpacking(place.function, lines)),))


@kind("strides ignored", "a tensor's memory is read as if it were contiguous, as a kernel does")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in (*place.arguments[:1], *saved_names(place.function)[:2]):
            text = f"if {name} is not None and {name}.numel():\n    {name} = {_RAW.format(name)}"
            yield Edit(((place, after_unpacking(place.function, parsed(text))),), _RAW_READER)


_RAW = "_as_if_contiguous({})"
_RAW_READER = """

def _as_if_contiguous(t):
    flat = torch.as_strided(t, (t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
    start = t.storage_offset()
    index = (torch.arange(t.numel(), device=t.device) + start) % flat.numel()
    return flat[index].view(t.shape)
"""


@kind("float32 detour", "a part of a float64 gradient is computed in float32")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in (*place.arguments[:1], *saved_names(place.function)[:1]):
            lines = parsed(f"if {name}.dtype == torch.float64:\n    {name} = {name}.float().double()")
            yield Edit(((place, after_unpacking(place.function, lines)),))
    yield from in_returned(target, REVERSE, "{}.float()")


@expression("dtype lost", "a result isn't brought back to the dtype that it came in")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) in ("to", "type_as", "double") and is_method(node):
        yield node.func.value
    if called(node) == "to" and is_method(node) and node.args:
        yield ast.Call(node.func, [ast.parse("torch.float32", mode="eval").body, *node.args[1:]], node.keywords)


@kind("result of the wrong shape", "a gradient has an axis too many, or is one number")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, REVERSE, "{}.unsqueeze(0)")
    yield from in_returned(target, REVERSE, "{}.sum()")
    yield from in_returned(target, REVERSE, "{}.flatten()")


@kind("turned gradient", "a gradient's rows come in another order")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, REVERSE, "{}.flip(-1)")


@kind("one element", "the first element of a gradient is zero")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, REVERSE, "{0} * (torch.arange({0}.numel()).view({0}.shape) > 0)")
