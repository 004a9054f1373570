"""Kinds of fault in jvp and vmap."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutation.arithmetic import in_returned
from benchmarks.mutation.kinds import (
    Edit,
    Place,
    Replacement,
    Target,
    called,
    exchanged,
    expression,
    kind,
    returns,
)


@kind("wrong jvp", "a tangent has another factor, sign or order")
def _(target: Target) -> Iterator[Edit]:
    for template in ("2 * {}", "-{}", "1.0004 * {}", "{}.flip(-1)"):
        yield from in_returned(target, ("jvp",), template)


@expression("term of a jvp", "a tangent lacks a term or a factor", ("jvp",))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        yield node.left
        yield node.right
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)


@kind("jvp without its graph", "a tangent is detached, or conjugated as a gradient would be")
def _(target: Target) -> Iterator[Edit]:
    for template in ("{}.detach()", "{}.conj()", "torch.zeros_like({})"):
        yield from in_returned(target, ("jvp",), template)


@expression(
    "wrong vmap dimension", "vmap moves another axis than the batched one, or says that it lies elsewhere", ("vmap",)
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) == "movedim":
        yield node.func.value
        yield ast.Call(node.func, [*node.args[:-1], ast.Constant(-1)], node.keywords)
        yield ast.Call(node.func, [ast.Constant(-1), *node.args[1:]], node.keywords)
    if called(node) == "expand":
        yield node.func.value


@kind("wrong out_dims", "vmap says that its results are batched along another axis, or not at all")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("vmap",)):
        nodes = list(ast.walk(place.function))
        for statement in returns(place.function):
            if not isinstance(statement.value, ast.Tuple):
                continue
            last = statement.value.elts[-1]
            index = next(i for i, node in enumerate(nodes) if node is last)
            for new in ("-1", "1", "None"):
                text = ast.unparse(last).replace("0", new)
                if text != ast.unparse(last):
                    made = exchanged(place.function, index, ast.parse(text, mode="eval").body)
                    yield Edit(((place, made),))


@expression("batch forgotten", "vmap takes a batched argument for a shared one", ("vmap",))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        yield ast.Compare(node.left, [ast.IsNot() if isinstance(node.ops[0], ast.Is) else ast.Is()], node.comparators)
