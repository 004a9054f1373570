"""Kinds of fault in what is written, kept, cut off and saved."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from benchmarks.mutation.arithmetic import in_returned
from benchmarks.mutation.kinds import (
    DERIVATIVE,
    Edit,
    Place,
    Replacement,
    Target,
    after_unpacking,
    called,
    exchanged,
    expression,
    kind,
    parsed,
    returned,
    saved_names,
    value,
)

REVERSE = ("backward", "vjp")


@kind("detached gradient", "a gradient has lost its graph")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, DERIVATIVE, "{}.detach()")


@kind("detached saved tensor", "backward detaches what it reads, and the second derivative loses a part")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in saved_names(place.function):
            lines = parsed(f"{name} = None if {name} is None else {name}.detach()")
            yield Edit(((place, after_unpacking(place.function, lines)),))


@kind("data of a cotangent", "backward reads .data of the incoming gradient, which hides it from the graph")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in place.arguments[:1]:
                yield Edit(((place, exchanged(place.function, index, ast.Attribute(node, "data", ast.Load()))),))


@kind("gradients switched off", "backward runs without a graph, and second derivatives are lost")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        made = copy.deepcopy(place.function)
        at = 1 if ast.get_docstring(made) else 0
        body = made.body[at:]
        made.body[at:] = [ast.With([ast.withitem(value("torch.no_grad()"))], body)]
        yield Edit(((place, ast.fix_missing_locations(made)),))


def _operands(target: Target, roles: tuple[str, ...], names_of: str) -> Iterator[tuple[Place, int, ast.BinOp]]:
    """Each product or sum whose left or right operand is a name of one sort."""
    for place in target.having(roles):
        names = place.arguments if names_of == "gradients" else saved_names(place.function)
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.BinOp) and type(node.op) in _IN_PLACE:
                if any(isinstance(side, ast.Name) and side.id in names for side in (node.left, node.right)):
                    yield place, index, node


_IN_PLACE = {ast.Mult: "mul_", ast.Add: "add_"}


def _written(names_of: str, target: Target) -> Iterator[Edit]:
    for place, index, node in _operands(target, REVERSE, names_of):
        names = place.arguments if names_of == "gradients" else saved_names(place.function)
        for mine, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(mine, ast.Name) and mine.id in names:
                call = value(f"{mine.id}.detach().{_IN_PLACE[type(node.op)]}({ast.unparse(other)})")
                yield Edit(((place, exchanged(place.function, index, call)),))
                break


@kind("written gradient", "a product is made in the memory of the incoming gradient")
def _(target: Target) -> Iterator[Edit]:
    yield from _written("gradients", target)
    for place in target.having(REVERSE):
        for name in place.arguments[:1]:
            lines = parsed(f"with torch.no_grad():\n    {name}.mul_(2)\n    {name} = {name} / 2")
            yield Edit(((place, after_unpacking(place.function, lines)),))


@kind("written saved tensor", "a product is made in the memory of a saved tensor")
def _(target: Target) -> Iterator[Edit]:
    yield from _written("saved", target)
    for place in target.having(REVERSE):
        for name in saved_names(place.function)[:1]:
            text = f"if {name} is not None and {name}.is_floating_point():\n    {name} = {name}.detach().neg_().neg()"
            yield Edit(((place, after_unpacking(place.function, parsed(text))),))


@kind("written input", "forward changes its argument")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is None:
        return
    for name in place.arguments[:2]:
        for change in ("neg_()", "clamp_(min=-0.5)", "data.mul_(1.5)"):
            text = f"if isinstance({name}, torch.Tensor) and {name}.is_floating_point():\n    {name}.{change}"
            for index, node in enumerate(ast.walk(place.function)):
                if isinstance(node, ast.Return) and node.value is not None:
                    lines = [*parsed(f"_result = {ast.unparse(node.value)}"), *parsed(text), *_return("_result")]
                    yield Edit(((place, exchanged(place.function, index, lines)),), _NEEDS_TORCH)


_NEEDS_TORCH = "import torch"


def _return(name: str) -> list[ast.stmt]:
    return [ast.Return(ast.Name(name, ast.Load()))]


@kind("written output", "backward uses the output's memory as scratch")
def _(target: Target) -> Iterator[Edit]:
    forward, backward = target.method("forward"), target.method(*REVERSE)
    if forward is None or backward is None or not forward.function.args.args:
        return
    ctx = forward.function.args.args[0].arg
    if ctx != "ctx":
        return
    returns_ = [(i, n) for i, n in enumerate(ast.walk(forward.function)) if isinstance(n, ast.Return)]
    index, node = returns_[-1]
    if isinstance(node.value, ast.Tuple):
        return
    for change in ("zero_()", "copy_(torch.zeros_like(ctx.scratch) + 1)"):
        keeps = [*parsed(f"_result = {ast.unparse(node.value)}\nctx.scratch = _result.detach()"), *_return("_result")]
        writes = parsed(f"if not torch.is_grad_enabled():\n    ctx.scratch.{change}")
        yield Edit(
            (
                (forward, exchanged(forward.function, index, keeps)),
                (backward, after_unpacking(backward.function, writes)),
            ),
            _NEEDS_TORCH,
        )


@kind("stale cache", "what backward reads is kept from an earlier call")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in saved_names(place.function)[:2]:
            for key in (f"({name!r}, {name}.shape, {name}.dtype)", f"({name!r}, {name}.data_ptr())"):
                lines = parsed(f"if {name} is not None:\n    {name} = _KEPT.setdefault({key}, {name})")
                yield Edit(((place, after_unpacking(place.function, lines)),), "_KEPT = {}")


@kind("kept on the class", "forward leaves on the class what backward reads, and the last call wins")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward", "setup_context")):
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.Expr) and called(node.value) == "save_for_backward":
                reader = target.method(*REVERSE)
                if reader is None or "save_for_forward" in ast.unparse(place.function):
                    continue
                arguments = ", ".join(ast.unparse(argument) for argument in node.value.args)
                if not arguments:
                    continue
                text = f"{target.name}.kept = tuple(t if t is None else t.detach() for t in ({arguments},))"
                body = copy.deepcopy(reader.function)
                swapped = ast.parse(ast.unparse(body).replace("ctx.saved_tensors", f"{target.name}.kept")).body[0]
                assert isinstance(swapped, ast.FunctionDef)
                yield Edit(((place, exchanged(place.function, index, parsed(text))), (reader, swapped)))


@expression(
    "wrong tensor saved", "forward saves another tensor than backward takes it for", ("forward", "setup_context")
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) == "save_for_backward" and len(node.args) >= 2:
        first, second, *rest = node.args
        if not isinstance(second, ast.Starred) and not isinstance(first, ast.Starred):
            yield ast.Call(node.func, [first, first, *rest], node.keywords)
            yield ast.Call(node.func, [second, second, *rest], node.keywords)


@kind("output saved for the input", "forward saves what it returns in place of its argument")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is None or place.function.args.args[0].arg != "ctx":
        return
    results = list(returned(place.function))
    if len(results) != 1:
        return
    for index, node in enumerate(ast.walk(place.function)):
        if isinstance(node, ast.Expr) and called(node.value) == "save_for_backward" and node.value.args:
            rest = ", ".join(["_result", *(ast.unparse(argument) for argument in node.value.args[1:])])
            made = exchanged(place.function, index, [ast.Pass()])
            last = made.body[-1]
            if isinstance(last, ast.Return):
                lines = f"_result = {ast.unparse(results[0])}\nctx.save_for_backward({rest})"
                made.body[-1:] = [*parsed(lines), *_return("_result")]
                yield Edit(((place, ast.fix_missing_locations(made)),))


@kind("copy saved", "forward saves a copy of its argument, and the graph ends there")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward", "setup_context")):
        for index, node in enumerate(ast.walk(place.function)):
            if called(node) != "save_for_backward":
                continue
            for number, argument in enumerate(node.args):
                if isinstance(argument, ast.Name):
                    for method in ("clone", "contiguous"):
                        text = f"{argument.id} if {argument.id} is None else {argument.id}.{method}()"
                        args = [*node.args[:number], value(text), *node.args[number + 1 :]]
                        yield Edit(
                            ((place, exchanged(place.function, index, ast.Call(node.func, args, node.keywords))),)
                        )


@kind("drawn again", "backward draws its random numbers anew")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in saved_names(place.function):
            text = f"if {name}.dtype == torch.bool:\n    {name} = torch.rand({name}.shape) < 0.5"
            yield Edit(((place, after_unpacking(place.function, parsed(text))),), _NEEDS_TORCH)
