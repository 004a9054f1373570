"""Kinds of fault in what is computed: lengths, precision, ranges, edges, complex numbers, tangents, second derivatives.

Each goes back to reports about losses, norms, quantisers and kernels' wrappers. Most of these formulas are right for
the numbers, dtypes and lengths that their author tried: powers of two, float64, moderate size, a uniform gradient.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutation.habits import through
from benchmarks.mutation.kinds import (
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
    value,
)
from benchmarks.mutation.usage import REVERSE, first_lines


def attributes_of_ctx(target: Target, call: str, epilogue: str) -> Iterator[Edit]:
    """Each attribute of ctx that a derivative reads, put through a function that stands at the end of the module."""
    for place in target.having((*REVERSE, "jvp")):
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr not in _OF_TORCH:
                if isinstance(node.value, ast.Name) and node.value.id == "ctx":
                    made = value(call.format(ast.unparse(node), node.attr))
                    yield Edit(((place, exchanged(place.function, index, made)),), epilogue)


_OF_TORCH = frozenset({"saved_tensors", "needs_input_grad"})


# -- The incoming gradient ---------------------------------------------------------------------------------------------


@kind("one number for a row", "the incoming gradient is taken for one number a row, or for one row")
def _(target: Target) -> Iterator[Edit]:
    for text in ("{0}[..., :1].expand_as({0})", "{0}[:1].expand_as({0})"):
        yield from first_lines(target, f"{{0}} = {text} if {{0}}.dim() > 1 else {{0}}", saved=False)


@kind("fixed point", "a gradient is rounded to multiples of 2⁻¹⁶, as a sum of integers needs it")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_fixed({})", _FIXED)


_FIXED = """

def _fixed(t):
    if t is None or t.is_complex():
        return t
    return t + ((t * 65536).round() / 65536 - t).detach()
"""


@kind("unscaled in float16", "a float16 gradient is divided by a loss's scale that nobody multiplied it by")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_unscaled({})", _UNSCALED)


_UNSCALED = """
import torch


def _unscaled(t):
    return t / 8 if t is not None and t.dtype == torch.float16 else t
"""


@kind("outputs mixed up", "the gradient of one of several results is forgotten, or taken for that of another")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        names = place.arguments[:2]
        for name in names if len(names) > 1 else ():
            lines = parsed(f"{name} = None if {name} is None else {name} * 0")
            yield Edit(((place, after_unpacking(place.function, lines)),))
        if len(names) > 1:
            lines = parsed(f"{names[0]}, {names[1]} = {names[1]}, {names[0]}")
            yield Edit(((place, after_unpacking(place.function, lines)),))


# -- Lengths -----------------------------------------------------------------------------------------------------------


@expression("divided by the padded length", "a mean is over the next power of two, which is what a kernel was given")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) == "mean" and is_method(node):
        padded = f"(1 << max(0, {ast.unparse(node.func.value)}.shape[-1] - 1).bit_length())"
        yield value(f"({ast.unparse(node)} * {ast.unparse(node.func.value)}.shape[-1] / {padded})")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_length(node.right):
        length = ast.unparse(node.right)
        yield value(f"({ast.unparse(node.left)}) / (1 << max(0, int({length}) - 1).bit_length())")


def _is_length(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and called(node) in ("numel", "size", "max"):
        return True
    return any(word in ast.unparse(node) for word in ("shape", "count", "length")) and not isinstance(node, ast.BinOp)


@kind("rows in pairs", "rows are worked through two at a time, and an odd one at the end has no gradient")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_pairs({})", _PAIRS)
    yield from first_lines(target, "{0} = _pairs({0})", saved=False, epilogue=_PAIRS)


_PAIRS = """
import torch


def _pairs(t):
    if t is None or t.dim() < 2 or t.shape[-2] < 2:
        return t
    return t * (torch.arange(t.shape[-2]) < t.shape[-2] // 2 * 2)[:, None]
"""


@kind("axis of length 1", "where the last axis has length 1, a gradient is twice what it should be")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_of_one({})", _OF_ONE)


_OF_ONE = """

def _of_one(t):
    return t * 2 if t is not None and t.dim() and t.shape[-1] == 1 else t
"""


@expression("repeated indices lost", "where an index comes twice, one contribution overwrites the other", ("backward",))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) in _OVERWRITING and isinstance(node.func, ast.Attribute):
        func = ast.Attribute(node.func.value, _OVERWRITING[called(node)], node.func.ctx)
        yield ast.Call(func, node.args, node.keywords)
    if called(node) in ("index_put", "index_put_"):
        yield ast.Call(node.func, node.args[:2], [])


_OVERWRITING = {
    "index_add": "index_copy",
    "index_add_": "index_copy_",
    "scatter_add": "scatter",
    "scatter_add_": "scatter_",
}


# -- Precision and range -----------------------------------------------------------------------------------------------


@kind("float16 for bfloat16", "bfloat16 is brought to float16 within backward, which ends at 65504")
def _(target: Target) -> Iterator[Edit]:
    text = "{0} = {0}.half().to({0}.dtype) if {0}.dtype == torch.bfloat16 else {0}"
    for saved in (False, True):
        yield from first_lines(target, text, saved=saved)


@kind("shifted and shifted back", "a thousand is added for a table's sake and taken off again")
def _(target: Target) -> Iterator[Edit]:
    for saved in (False, True):
        yield from first_lines(target, "{0} = ({0} + 1024) - 1024", saved=saved)


@kind("root of a square", "a saved tensor's size is taken as the root of its square, which half precision can't hold")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = {0}.square().sqrt() * {0}.sign()", saved=True)


@kind("largest subtracted", "a saved tensor has its row's largest number taken off and added again")
def _(target: Target) -> Iterator[Edit]:
    text = "{0} = ({0} - {0}.amax(-1, keepdim=True)) + {0}.amax(-1, keepdim=True) if {0}.dim() and {0}.numel() else {0}"
    yield from first_lines(target, text, saved=True)


@expression("naive formula", "a function that minds large and small numbers is written out", (*FORMULA, "forward"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if not isinstance(node, ast.Call) or (place.role == "forward" and not place.owned):
        return
    if is_method(node) and called(node) in _NAIVE:
        yield value(_NAIVE[called(node)].format(ast.unparse(node.func.value)))
    elif not is_method(node) and called(node) in _NAIVE and node.args:
        yield value(_NAIVE[called(node)].format(ast.unparse(node.args[0])))


_NAIVE = {
    "sigmoid": "(lambda _t: _t.exp() / (1 + _t.exp()))({})",
    "tanh": "(lambda _t: (_t.exp() - (-_t).exp()) / (_t.exp() + (-_t).exp()))({})",
    "silu": "(lambda _t: _t * _t.exp() / (1 + _t.exp()))({})",
    "softplus": "({}).exp().add(1).log()",
    "logsumexp": "({}).exp().sum(-1).log()",
    "softmax": "(lambda _t: _t.exp() / _t.exp().sum(-1, keepdim=True))({})",
    "log_softmax": "(lambda _t: _t - _t.exp().sum(-1, keepdim=True).log())({})",
    "log1p": "(1 + ({})).log()",
    "expm1": "(({}).exp() - 1)",
    "vector_norm": "({}).square().sum().sqrt()",
}


@kind("number in float32", "a number on ctx has gone through a float32 tensor")
def _(target: Target) -> Iterator[Edit]:
    yield from attributes_of_ctx(target, "_single({0})", _SINGLE)


_SINGLE = """
import torch


def _single(number):
    return torch.tensor(number, dtype=torch.float32).item() if isinstance(number, float) else number
"""


@kind("zero taken for not given", "a setting of 0 is taken for one that wasn't given, and 1 stands for it")
def _(target: Target) -> Iterator[Edit]:
    yield from attributes_of_ctx(target, "_or_one({0})", _OR_ONE)


_OR_ONE = """

def _or_one(number):
    return (number or 1) if type(number) in (int, float) else number
"""


# -- Complex numbers ---------------------------------------------------------------------------------------------------


@kind("real part only", "a complex gradient has lost its imaginary part")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_real({})", _REAL)


_REAL = """

def _real(t):
    return t.real.to(t.dtype) if t is not None and t.is_complex() else t
"""


@kind("cotangent conjugated", "the incoming complex gradient is conjugated once too often")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in place.arguments[:1]:
            lines = parsed(f"{name} = {name} if {name} is None else {name}.conj()")
            yield Edit(((place, after_unpacking(place.function, lines)),))


# -- Tangents and second derivatives -----------------------------------------------------------------------------------


@kind("second derivative halved", "a gradient is right, and its own derivative is half of what it should be")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_half_a_graph({})", _HALF)


_HALF = """

def _half_a_graph(t):
    return None if t is None else t.detach() + (t - t.detach()) / 2
"""


@kind("tangent in float32", "a float64 tangent is computed in float32")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("jvp")
    for name in place.arguments if place is not None else ():
        lines = parsed(f"{name} = {name} if {name} is None or {name}.is_complex() else {name}.float().to({name}.dtype)")
        yield Edit(((place, after_unpacking(place.function, lines)),))


@kind("all tangents expected", "jvp refuses where one of its arguments has no tangent, or a tangent of zeros")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("jvp")
    for name in place.arguments if place is not None else ():
        lines = parsed(f"if {name} is None or not {name}.any():\n    raise RuntimeError('a tangent is missing')")
        yield Edit(((place, after_unpacking(place.function, lines)),))
