"""Kinds of fault in what is computed: formulas, shapes, strides, cotangents, dtypes and complex numbers.

`kept` has those in what is kept and said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutation.arithmetic import in_returned
from benchmarks.mutation.kinds import (
    FORMULA,
    Edit,
    Place,
    Replacement,
    Target,
    called,
    expression,
    is_method,
    kind,
    value,
)
from benchmarks.mutation.usage import REVERSE, first_lines

# -- Formulas ----------------------------------------------------------------------------------------------------------

_SUMS = (ast.Add, ast.Sub)
_PRODUCTS = (ast.Mult, ast.Div, ast.MatMult)


@expression("parentheses forgotten", "a * b + c stands for a * (b + c), and the like")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is(node.operand, _SUMS):
        inner = node.operand
        yield ast.BinOp(ast.UnaryOp(node.op, inner.left), inner.op, inner.right)
    if not isinstance(node, ast.BinOp):
        return
    left, right = node.left, node.right
    opened = _SUMS if isinstance(node.op, (ast.Sub, ast.Mult, ast.MatMult)) else (*_SUMS, *_PRODUCTS)
    if isinstance(node.op, (ast.Sub, *_PRODUCTS)) and _is(right, opened):
        yield ast.BinOp(ast.BinOp(left, node.op, right.left), right.op, right.right)
    if isinstance(node.op, _PRODUCTS) and _is(left, _SUMS):
        yield ast.BinOp(left.left, left.op, ast.BinOp(left.right, node.op, right))


def _is(node: ast.AST, operators: tuple[type[ast.operator], ...]) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, operators)


_SERIES = {
    "exp": "(1 + {0} + {0} ** 2 / 2 + {0} ** 3 / 6)",
    "sin": "({0} - {0} ** 3 / 6 + {0} ** 5 / 120)",
    "cos": "(1 - {0} ** 2 / 2 + {0} ** 4 / 24)",
    "tanh": "({0} - {0} ** 3 / 3 + 2 * {0} ** 5 / 15)",
    "sigmoid": "(0.5 + {0} / 4 - {0} ** 3 / 48)",
    "erf": "(1.1283791670955126 * ({0} - {0} ** 3 / 3))",
    "log": "(({0} - 1) - ({0} - 1) ** 2 / 2 + ({0} - 1) ** 3 / 3)",
}


@expression("series cut short", "a function is the first terms of its series", (*FORMULA, "jvp"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    series = _SERIES.get(called(node).removesuffix("_"))
    if series is not None and (is_method(node) or node.args):
        yield value(series.format(f"({ast.unparse(node.func.value if is_method(node) else node.args[0])})"))


@expression("whole division", "a quotient is rounded down, as of two integers", (*FORMULA, "jvp"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if _is(node, (ast.Div,)):
        yield ast.BinOp(node.left, ast.FloorDiv(), node.right)
    if called(node) in ("div", "div_") and is_method(node):
        yield ast.Call(ast.Attribute(node.func.value, f"floor_divide{called(node)[3:]}", ast.Load()), node.args, [])


@expression("overwritten for added", "what is to be added to a tensor takes its place", (*FORMULA, "jvp"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        target = ast.parse(ast.unparse(node.target)).body[0].value
        target.ctx = ast.Store()
        yield [ast.Assign([target], node.value)]
    swap = {"index_add": "index_copy", "scatter_add": "scatter", "add_": "copy_"}
    name = called(node)
    for old, new in (*swap.items(), ("index_add_", "index_copy_"), ("scatter_add_", "scatter_")):
        if name == old and isinstance(node.func, ast.Attribute):
            yield ast.Call(ast.Attribute(node.func.value, new, ast.Load()), node.args, [])


@kind("zero over zero", "a factor is squared and divided out again, and where it is zero nothing is left")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = {0} * {0} / {0}", saved=True)


@kind("centred gradient", "a gradient has lost its mean, as if something were normalised")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, REVERSE, "{0} - {0}.mean()")


# -- Axes and memory ---------------------------------------------------------------------------------------------------


@expression("reshape for transpose", "numbers are poured into the transposed shape in their old order")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    turned = isinstance(node, ast.Attribute) and node.attr in ("mT", "mH", "T", "H")
    if turned or (called(node) in ("t", "transpose", "permute", "movedim") and is_method(node)):
        old = node.value if isinstance(node, ast.Attribute) else node.func.value
        yield value(f"({ast.unparse(old)}).reshape({ast.unparse(node)}.shape)")


@expression("shape of the cotangent", "the argument's shape is read off the incoming gradient", REVERSE)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    g = place.arguments[0] if place.arguments else ""
    if not g or g not in {part.id for part in ast.walk(place.function) if isinstance(part, ast.Name)}:
        return
    if isinstance(node, ast.Attribute) and node.attr == "shape" and ast.unparse(node.value) != g:
        yield value(f"{g}.shape")
    if called(node) in ("view_as", "expand_as", "zeros_like", "empty_like", "new_zeros") and node.args:
        if ast.unparse(node.args[0]) != g:
            shape = g if called(node) != "new_zeros" else f"{g}.shape"
            yield ast.Call(node.func, [value(shape), *node.args[1:]], node.keywords)


@kind("written in memory order", "a gradient with strides like its argument's is filled as if contiguous")
def _(target: Target) -> Iterator[Edit]:
    for edit in in_returned(target, REVERSE, "_filled({})"):
        yield Edit(edit.functions, _FILLED)


_FILLED = """
import torch


def _filled(t):
    if t is None or t.layout is not torch.strided or t.is_contiguous() or torch.empty_like(t).stride() != t.stride():
        return t
    return t.reshape(-1).as_strided(t.shape, t.stride())
"""


@kind("offset ignored", "a saved tensor is read from the beginning of its storage")
def _(target: Target) -> Iterator[Edit]:
    text = "{0} = torch.as_strided({0}, {0}.shape, {0}.stride(), 0) if {0}.storage_offset() else {0}"
    yield from first_lines(target, text, saved=True)


@kind("first row for all", "a kernel doesn't step from row to row of a saved tensor")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = {0}[:1].expand_as({0}) if {0}.dim() else {0}", saved=True)


@kind("no elements not expected", "backward asks for the largest element, also where there is none")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "_largest = {0}.abs().amax()", saved=False)


@kind("no axes not expected", "backward asks for the number of rows, also of a single number")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "_rows = {0}.size(0)", saved=False)
    yield from first_lines(target, "_rows = {0}.size(0)", saved=True)


# -- Cotangents --------------------------------------------------------------------------------------------------------


@kind("one cotangent for all", "the first element of the incoming gradient stands for the others")
def _(target: Target) -> Iterator[Edit]:
    first = "{0}.reshape(-1)[:1].reshape([1] * {0}.dim()).expand_as({0})"
    yield from first_lines(target, f"{{0}} = {first} if {{0}}.numel() else {{0}}", saved=False)


@kind("cotangent twice", "the incoming gradient is multiplied in twice")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = {0} * {0}", saved=False)


@kind("values looked at", "backward asks whether the incoming gradient is zero, which no batch can answer")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "if not bool({0}.any()):\n        {0} = {0} * 0", saved=False)


# -- Precision ---------------------------------------------------------------------------------------------------------


@kind("cancellation", "a gradient is the difference of two large numbers")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, REVERSE, "({0} + 100000.0) - 100000.0")


@kind("bfloat16 by way of float16", "a cotangent in bfloat16 is read as float16, whose range is smaller")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = {0}.half().bfloat16() if {0}.dtype == torch.bfloat16 else {0}", saved=False)


@kind("half precision refused", "forward takes 16-bit numbers, and backward has no kernel for them")
def _(target: Target) -> Iterator[Edit]:
    text = "if {0}.dtype in (torch.bfloat16, torch.float16):\n        raise NotImplementedError('16-bit numbers')"
    yield from first_lines(target, text, saved=False)


@kind("imaginary part dropped", "of a complex gradient or factor only the real part is used")
def _(target: Target) -> Iterator[Edit]:
    if _knows_complex(target):
        yield from in_returned(target, REVERSE, "{0}.real.to({0}.dtype)")
        yield from _any(target, "{0} = {0}.real.to({0}.dtype)")


@kind("one conjugate too many", "a complex gradient or factor is conjugated once more")
def _(target: Target) -> Iterator[Edit]:
    if _knows_complex(target):
        yield from in_returned(target, REVERSE, "{0}.conj()")
        yield from _any(target, "{0} = {0}.conj()")


def _knows_complex(target: Target) -> bool:
    """Whether a derivative says that it is for complex numbers as well."""
    text = " ".join(ast.unparse(place.function) for place in target.having(REVERSE))
    return any(word in text for word in ("conj", "mH", "complex", ".imag"))


def _any(target: Target, text: str) -> Iterator[Edit]:
    for saved in (False, True):
        for edit in first_lines(target, text, saved=saved):
            yield Edit(tuple((place, _unguarded(new)) for place, new in edit.functions), edit.epilogue)


def _unguarded(function: ast.FunctionDef | None) -> ast.FunctionDef | None:
    """A copy of what `first_lines` made that takes complex tensors, too."""
    if function is None:
        return None
    made = ast.parse(ast.unparse(function).replace(".is_floating_point()", ".is_complex()")).body[0]
    assert isinstance(made, ast.FunctionDef)
    return made
