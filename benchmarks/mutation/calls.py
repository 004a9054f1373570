"""Kinds of fault in what goes in and comes out: flags, Nones, swapped names, forgotten declarations."""

from __future__ import annotations

import ast
import itertools
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
    returns,
)

REVERSE = ("backward", "vjp")


def _in_tuples(target: Target, roles: tuple[str, ...]) -> Iterator[tuple[Place, int, list[ast.expr]]]:
    """Each returned tuple: its place, its index in the walk, and its elements."""
    for place in target.having(roles):
        for statement in returns(place.function):
            if isinstance(statement.value, ast.Tuple):
                nodes = list(ast.walk(place.function))
                yield place, next(i for i, n in enumerate(nodes) if n is statement.value), statement.value.elts


def _tuple(place: Place, index: int, elements: list[ast.expr]) -> Edit:
    new = ast.Tuple(elements, ast.Load()) if len(elements) != 1 else elements[0]
    return Edit(((place, exchanged(place.function, index, new)),))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


@kind("forgotten None", "one entry of what backward returns is missing")
def _(target: Target) -> Iterator[Edit]:
    for place, index, parts in _in_tuples(target, REVERSE):
        for number, part in enumerate(parts):
            if _is_none(part):
                yield _tuple(place, index, parts[:number] + parts[number + 1 :])


@kind("None in the wrong place", "a None and a gradient are swapped")
def _(target: Target) -> Iterator[Edit]:
    for place, index, parts in _in_tuples(target, REVERSE):
        for number in range(len(parts) - 1):
            if _is_none(parts[number]) != _is_none(parts[number + 1]):
                swapped = [*parts]
                swapped[number], swapped[number + 1] = parts[number + 1], parts[number]
                yield _tuple(place, index, swapped)


@kind("gradient left out", "None stands where a gradient is due")
def _(target: Target) -> Iterator[Edit]:
    for place, index, parts in _in_tuples(target, DERIVATIVE):
        for number, part in enumerate(parts):
            if not isinstance(part, (ast.Constant, ast.Starred)):
                yield _tuple(place, index, [*parts[:number], ast.Constant(None), *parts[number + 1 :]])


@kind("gradients swapped", "two gradients stand in each other's place")
def _(target: Target) -> Iterator[Edit]:
    for place, index, parts in _in_tuples(target, DERIVATIVE):
        real = [number for number, part in enumerate(parts) if not isinstance(part, (ast.Constant, ast.Starred))]
        for one, other in itertools.pairwise(real):
            swapped = [*parts]
            swapped[one], swapped[other] = parts[other], parts[one]
            yield _tuple(place, index, swapped)


@kind("same gradient twice", "one gradient is returned for another argument as well")
def _(target: Target) -> Iterator[Edit]:
    for place, index, parts in _in_tuples(target, DERIVATIVE):
        real = [number for number, part in enumerate(parts) if not isinstance(part, (ast.Constant, ast.Starred))]
        for one, other in itertools.pairwise(real):
            yield _tuple(place, index, [*parts[:other], parts[one], *parts[other + 1 :]])


@kind("saved names swapped", "two saved tensors are unpacked in the wrong order")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having((*DERIVATIVE, "jvp")):
        for index, node in enumerate(ast.walk(place.function)):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
                continue
            if getattr(node.value, "attr", "") != "saved_tensors":
                continue
            names = node.targets[0].elts
            for number in range(len(names) - 1):
                if isinstance(names[number + 1], ast.Starred):
                    continue
                swapped = [*names]
                swapped[number], swapped[number + 1] = names[number + 1], names[number]
                new = ast.Assign([ast.Tuple(swapped, ast.Store())], node.value)
                yield Edit(((place, exchanged(place.function, index, new)),))


@expression("wrong variable", "a formula takes one tensor in place of another")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if not isinstance(node, ast.BinOp):
        return
    names = [part.id for part in ast.walk(place.function) if isinstance(part, ast.Name) and _assigned(part)]
    names += place.arguments
    for side in ("left", "right"):
        operand = getattr(node, side)
        if isinstance(operand, ast.Name) and operand.id in names:
            at = names.index(operand.id)
            other = names[(at + 1) % len(names)]
            if other != operand.id:
                sides = {"left": node.left, "right": node.right, side: ast.Name(other, ast.Load())}
                yield ast.BinOp(sides["left"], node.op, sides["right"])


def _assigned(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


@expression("arguments swapped", "the first two arguments of a call are swapped")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Call) and len(node.args) >= 2 and called(node) not in ("range", "isinstance", "where"):
        first, second, *rest = node.args
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            yield ast.Call(node.func, [second, first, *rest], node.keywords)
    if is_method(node) and len(node.args) == 1 and called(node) in ("sum_to_size", "view", "expand"):
        yield ast.Call(node.func, [ast.parse("()", mode="eval").body], node.keywords)


@expression("wrong flag", "needs_input_grad is asked about another argument", (*FORMULA, "forward"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "needs_input_grad":
        if isinstance(node.slice, ast.Constant):
            at = node.slice.value
            yield ast.Subscript(node.value, ast.Constant(at + 1 if at == 0 else at - 1), node.ctx)


@expression("flag turned round", "a gradient is computed where it isn't needed, and left out where it is", FORMULA)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, (ast.If, ast.IfExp)):
        test = ast.UnaryOp(ast.Not(), node.test)
        if isinstance(node, ast.If):
            yield [ast.If(test, node.body, node.orelse)]
        else:
            yield ast.IfExp(test, node.body, node.orelse)


@expression("condition ignored", "one of two branches is always taken", FORMULA)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    if isinstance(node, ast.If):
        yield list(node.body)
        yield list(node.orelse) or [ast.Pass()]


@expression("and for or", "two flags are combined the wrong way", FORMULA)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)


_DECLARATIONS = ("mark_dirty", "mark_non_differentiable", "set_materialize_grads", "save_for_forward")


@expression("declaration left out", "forward doesn't tell ctx what it should", ("forward", "setup_context"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Expr) and called(node.value) in _DECLARATIONS:
        yield [ast.Pass()]


@expression(
    "wrong attribute", "forward leaves another number or shape on ctx than backward needs", ("forward", "setup_context")
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        if isinstance(node.targets[0].value, ast.Name) and node.targets[0].value.id == "ctx":
            if isinstance(node.value, ast.Name):
                # still something that backward can work with
                yield ast.Assign(node.targets, ast.parse(f"{node.value.id} * 2", mode="eval").body)
            elif getattr(node.value, "attr", "") == "shape":
                yield ast.Assign(node.targets, ast.parse(f"{ast.unparse(node.value)}[-1:]", mode="eval").body)
