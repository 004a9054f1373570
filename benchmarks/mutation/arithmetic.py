"""Kinds of fault in a formula: factors, signs, terms, operators, constants, functions, edges."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutation.kinds import (
    DERIVATIVE,
    FORMULA,
    Edit,
    Place,
    Replacement,
    Target,
    called,
    exchanged,
    expression,
    is_method,
    kind,
    returned,
    value,
)


def in_returned(target: Target, roles: tuple[str, ...], template: str) -> Iterator[Edit]:
    """Each returned gradient put into a template in turn, where it isn't None."""
    for place in target.having(roles):
        for part in returned(place.function):
            index = next(i for i, node in enumerate(ast.walk(place.function)) if node is part)
            text = ast.unparse(part)
            new = value(template.format(f"({text})"))
            if isinstance(part, ast.Name) or "None" in text:
                # a name may hold None for what isn't asked for
                new = value(f"None if ({text}) is None else {template.format(f'({text})')}")
            yield Edit(((place, exchanged(place.function, index, new)),))


@kind("factor", "one gradient comes out twice as large")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, DERIVATIVE, "2 * {}")


@kind("sign", "one gradient has the other sign")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, DERIVATIVE, "-{}")


@expression("sign within", "one factor of a formula has the other sign, or has lost its minus")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.MatMult)):
        yield ast.BinOp(ast.UnaryOp(ast.USub(), node.left), node.op, node.right)


@expression("plus and minus", "a sum is a difference, or the other way round")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)


@expression("times and over", "a product is a quotient, or the other way round")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        yield ast.BinOp(node.left, ast.Div() if isinstance(node.op, ast.Mult) else ast.Mult(), node.right)


@expression("dropped term", "a sum lacks one of its terms")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield node.left
        yield node.right if isinstance(node.op, ast.Add) else ast.UnaryOp(ast.USub(), node.right)


@expression("dropped factor", "a product lacks one of its factors")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield node.left
        yield node.right
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield node.left


@expression("wrong exponent", "a power is one too high or too low")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
        yield ast.BinOp(node.left, node.op, ast.Constant(node.right.value + 1))
        yield ast.BinOp(node.left, node.op, ast.Constant(node.right.value - 1))
    if called(node) in _POWERS and is_method(node):
        yield node.func.value


_POWERS = ("square", "sqrt", "square_", "sqrt_", "reciprocal", "rsqrt")


@expression("fourth digit", "a constant is off by a few parts in ten thousand")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.FloorDiv):
        for side in ("left", "right"):
            constant = getattr(node, side)
            if _number(constant) and constant.value != 0:
                sides = {"left": node.left, "right": node.right, side: ast.Constant(constant.value * 1.0004)}
                yield ast.BinOp(sides["left"], node.op, sides["right"])


@kind("off by a little", "a gradient is off by five parts in a hundred thousand")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, DERIVATIVE, "1.00005 * {}")


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)


_OTHER = {
    "sin": "cos",
    "cos": "sin",
    "sinh": "cosh",
    "cosh": "sinh",
    "exp": "expm1",
    "exp_": "expm1_",
    "tanh": "sigmoid",
    "sigmoid": "tanh",
    "erf": "erfc",
    "log": "log1p",
    "sqrt": "rsqrt",
    "rsqrt": "sqrt",
    "rsqrt_": "sqrt_",
    "max": "min",
    "min": "max",
    "amax": "amin",
    "amin": "amax",
    "maximum": "minimum",
    "minimum": "maximum",
    "sum": "mean",
    "mean": "sum",
    "silu": "gelu",
    "gelu": "silu",
    "silu_backward": "gelu_backward",
    "abs": "sign",
    "sign": "abs",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "logsumexp": "amax",
    "round": "floor",
    "sub_": "add_",
    "add_": "sub_",
    "mul_": "div_",
    "div_": "mul_",
}


@expression("other function", "cos for sin, max for min, mean for sum, and the like")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Attribute) and node.attr in _OTHER:
        yield ast.Attribute(node.value, _OTHER[node.attr], node.ctx)


@expression("clamp at the wrong edge", "a comparison looks the other way, or a bound bounds the other side")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    flipped = {ast.Gt: ast.Lt, ast.Lt: ast.Gt, ast.GtE: ast.LtE, ast.LtE: ast.GtE}
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in flipped and not _static(node):
        yield ast.Compare(node.left, [flipped[type(node.ops[0])]()], node.comparators)
    if called(node) in ("clamp", "clip", "clamp_"):
        names = {"min": "max", "max": "min"}
        if node.keywords:
            keywords = [ast.keyword(names.get(k.arg or "", k.arg), k.value) for k in node.keywords]
            yield ast.Call(node.func, node.args, keywords)
        if len(node.args) >= 2:
            for place_, bound in ((-2, "inf"), (-1, "inf")):
                args = [*node.args]
                args[place_] = value(f"float('{'-' if place_ == -2 else ''}{bound}')")
                yield ast.Call(node.func, args, node.keywords)


@expression("edge left out", "one of two conditions on a region is forgotten")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        yield node.left
        yield node.right
        yield ast.BinOp(node.left, ast.BitOr() if isinstance(node.op, ast.BitAnd) else ast.BitAnd(), node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield node.operand


@expression("branches swapped", "where takes each value on the other side")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) == "where" and len(node.args) == 3:
        yield ast.Call(node.func, [node.args[0], node.args[2], node.args[1]], node.keywords)


def _static(node: ast.Compare) -> bool:
    """Whether a comparison is about dimensions and the like, not about elements."""
    return any(isinstance(part, ast.Call) or getattr(part, "attr", "") in ("ndim", "shape") for part in ast.walk(node))


@expression("eps left out", "what keeps a denominator from zero is missing", (*FORMULA, "forward"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if place.role == "forward" and not place.owned:
        return
    if called(node) in ("add", "add_") and is_method(node) and "eps" in ast.unparse(node.args[0]):
        yield node.func.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _tiny(node.right):
        yield node.left
    if called(node) in ("clamp_min", "clamp_min_") and is_method(node):
        yield node.func.value
    if called(node) == "max" and isinstance(node.func, ast.Name) and len(node.args) == 2:
        yield node.args[1]
    if isinstance(node, ast.Name) and node.id == "eps" and isinstance(node.ctx, ast.Load):
        yield ast.Constant(0.0)


def _tiny(node: ast.AST) -> bool:
    return "eps" in ast.unparse(node) or (_number(node) and 0 < abs(node.value) < 1e-2)


@expression("dropped elementwise step", "a method that changes values, such as exp, isn't called", FORMULA)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) in ("exp", "exp_", "log", "sin", "cos", "tanh", "sigmoid", "abs", "sign", "round") and is_method(
        node
    ):
        yield node.func.value


@expression("missing conjugate", "a complex factor isn't conjugated")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) == "conj" and is_method(node):
        yield node.func.value
    if isinstance(node, ast.Attribute) and node.attr in ("mH", "H"):
        yield ast.Attribute(node.value, node.attr.replace("H", "T"), node.ctx)
