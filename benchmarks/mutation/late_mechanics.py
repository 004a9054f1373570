"""Kinds of fault in the mechanics of Functions, as threads of their users and reviews of later changes show them.

Short cuts for the common case, frugal saving, buffers and caches, and what was kept where it doesn't belong.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

from benchmarks.mutation.kinds import (
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

REVERSE = ("backward", "vjp", "double_backward")


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _with(place: Place, node: ast.AST, new: ast.expr) -> ast.FunctionDef:
    return exchanged(place.function, _index(place.function, node), new)


def _index(function: ast.FunctionDef, node: ast.AST) -> int:
    return list(ast.walk(function)).index(node)


def _arguments(place: Place) -> list[str]:
    """The cotangents of a derivative; none where they come as a nest or a star."""
    return [name for name in place.arguments if not name.startswith("_")]


def _product(node: ast.AST, place: Place) -> tuple[str, str, ast.BinOp] | None:
    """A product of a cotangent and something that was saved, both by name."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    if not (isinstance(node.left, ast.Name) and isinstance(node.right, ast.Name)):
        return None
    pair = (node.left.id, node.right.id)
    for g, x in (pair, pair[::-1]):
        if g in place.arguments and x not in place.arguments:
            return g, x, node
    return None


def _saving(place: Place) -> Iterator[ast.Call]:
    for node in ast.walk(place.function):
        if isinstance(node, ast.Call) and called(node) == "save_for_backward":
            yield node


def _inserted(function: ast.FunctionDef, text: str) -> ast.FunctionDef:
    """A copy with statements at its beginning."""
    made = copy.deepcopy(function)
    at = 1 if ast.get_docstring(made) else 0
    made.body[at:at] = parsed(text)
    return ast.fix_missing_locations(made)


def _around(function: ast.FunctionDef, head: str) -> ast.FunctionDef:
    """A copy whose body stands in a with statement."""
    made = copy.deepcopy(function)
    (block,) = parsed(f"with {head}:\n    pass")
    assert isinstance(block, ast.With)
    at = 1 if ast.get_docstring(made) else 0
    block.body = made.body[at:]
    made.body[at:] = [block]
    return ast.fix_missing_locations(made)


def _nothing(target: Target) -> str:
    """As many Nones as forward has arguments, as source; empty where their number isn't known."""
    place = target.method("forward")
    if place is None or place.function.args.vararg is not None or place.function.args.kwonlyargs:
        return ""
    return ", ".join(["None"] * len(place.arguments))


def _wrapped(place: Place, call: str) -> Iterator[ast.FunctionDef]:
    """Copies in which one returned gradient is put into a call; its number stands for ``{index}``."""
    for number, part in enumerate(returned(place.function)):
        text = call.format(index=number, part=ast.unparse(part))
        yield exchanged(place.function, _index(place.function, part), value(text))


# -- Short cuts for the common case ------------------------------------------------------------------------------------


@kind("nothing for a zero gradient", "backward leaves early for zeros, and its graph is lost", late=True)
def _(target: Target) -> Iterator[Edit]:
    nothing = _nothing(target)
    for place in target.having(("backward",)):
        for name in _arguments(place)[:1]:
            if nothing and place.function.args.vararg is None and len(_arguments(place)) == 1:
                text = f"if not torch._C._functorch.is_functorch_wrapped_tensor({name})"
                text += f" and not torch._C._functorch.is_legacy_batchedtensor({name})"
                text += f" and not bool({name}.any()):\n    return {nothing}"
                yield Edit(((place, _inserted(place.function, text)),), "import torch")


@kind("expanded, so constant", "a cotangent with a stride of 0 is taken for one number", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("backward",)):
        for name in _arguments(place):
            text = (
                f"if {name} is not None and 0 in {name}.stride() and {name}.numel():\n"
                f"    {name} = {name}.flatten()[0].expand({name}.shape)"
            )
            yield Edit(((place, after_unpacking(place.function, parsed(text))),))


@expression("in place where no graph is kept", "without grad mode it overwrites g", REVERSE, late=True)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    found = _product(node, place)
    if found is not None:
        g, x, product = found
        test = f"not torch.is_grad_enabled() and hasattr({x}, 'shape') and {x}.shape == {g}.shape"
        test += f" and {x}.dtype in ({g}.dtype, torch.bool) and 0 not in {g}.stride()"
        yield value(f"({g}.mul_({x}) if {test} else {ast.unparse(product)})")


@kind("overwrites constants", "forward works in place where no gradient is wanted", late=True)
def _(target: Target) -> Iterator[Edit]:
    methods = {ast.Mult: "mul_", ast.Add: "add_", ast.Sub: "sub_", ast.Div: "div_"}
    place = target.method("forward")
    if place is None or place.function.args.args[0].arg != "ctx":
        return
    for node in ast.walk(place.function):
        if not (isinstance(node, ast.BinOp) and isinstance(node.left, ast.Name) and type(node.op) in methods):
            continue
        x, other = node.left.id, ast.unparse(node.right)
        if x in place.arguments and isinstance(node.right, (ast.Name, ast.Constant)):
            test = f"isinstance({x}, torch.Tensor) and getattr({other}, 'shape', {x}.shape) == {x}.shape"
            test = f"not any(ctx.needs_input_grad) and {test} and {x}.is_floating_point()"
            new = value(f"({x}.{methods[type(node.op)]}({other}) if {test} else {ast.unparse(node)})")
            yield Edit(((place, _with(place, node, new)),), "import torch")


# -- Who needs a gradient ----------------------------------------------------------------------------------------------


def _asks(node: ast.AST) -> int | None:
    """Which gradient ``ctx.needs_input_grad[i]`` asks about."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        if node.value.attr == "needs_input_grad" and isinstance(node.slice, ast.Constant):
            return int(node.slice.value) if isinstance(node.slice.value, int) else None
    return None


@kind("asks what was saved", "a saved tensor's requires_grad decides what is made", late=True)
def _(target: Target) -> Iterator[Edit]:
    forward = target.method("forward")
    for place in target.having(("backward",)):
        names = saved_names(place.function)
        for node in ast.walk(place.function):
            at = _asks(node)
            if at is None or forward is None or at >= len(forward.arguments) or forward.arguments[at] not in names:
                continue
            name = forward.arguments[at]
            new = value(f"({name} is not None and {name}.requires_grad and {name}.is_leaf)")
            yield Edit(((place, _with(place, node, new)),))


@kind("indented too far", "one gradient's block stands in that of another", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        body = place.function.body
        for first in range(len(body)):
            for second in range(first + 1, len(body)):
                one, two = body[first], body[second]
                if not (isinstance(one, ast.If) and isinstance(two, ast.If) and not one.orelse and not two.orelse):
                    continue
                if any("needs_input_grad" not in ast.unparse(part.test) for part in (one, two)):
                    continue
                made = copy.deepcopy(place.function)
                outer = made.body[first]
                assert isinstance(outer, ast.If)
                outer.body.append(made.body.pop(second))
                yield Edit(((place, ast.fix_missing_locations(made)),))


@kind("needed by both", "a gradient is made only where another is wanted as well", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("backward",)):
        asked = [node for node in ast.walk(place.function) if _asks(node) is not None]
        wanted = sorted({_asks(node) or 0 for node in asked})
        for node in asked:
            for other in wanted:
                if other != _asks(node):
                    new = value(f"({ast.unparse(node)} and ctx.needs_input_grad[{other}])")
                    yield Edit(((place, _with(place, node, new)),))


# -- What is saved, and how --------------------------------------------------------------------------------------------


def _saves(target: Target, text: str, names: Sequence[str] = ()) -> Iterator[Edit]:
    """Each argument that is saved by name is saved as something else."""
    for place in target.having(("forward", "setup_context")):
        known = [argument.arg for argument in place.function.args.args] if not names else names
        for call in _saving(place):
            for part in call.args:
                if isinstance(part, ast.Name) and (part.id in known or place.role == "setup_context"):
                    new = value(text.replace("_x_", part.id))
                    yield Edit(((place, _with(place, part, new)),))


@kind("its contiguous copy is saved", "an argument that isn't contiguous is saved as a copy", late=True)
def _(target: Target) -> Iterator[Edit]:
    yield from _saves(target, "_x_ if _x_ is None or _x_.is_sparse else _x_.contiguous()")


@kind("its wider copy is saved", "half precision is saved as float32, apart from the graph", late=True)
def _(target: Target) -> Iterator[Edit]:
    yield from _saves(
        target,
        "_x_.float() if str(getattr(_x_, 'dtype', '')) in ('torch.half', 'torch.float16', 'torch.bfloat16') else _x_",
    )


@kind("mode of forward restored", "backward runs in the mode that forward saw: always off", late=True)
def _(target: Target) -> Iterator[Edit]:
    first = target.method("setup_context", "forward")
    for place in target.having(("backward", "vjp")):
        if first is not None and place.function.args.args[0].arg == "ctx":
            before = _inserted(first.function, "ctx.grad_mode = torch.is_grad_enabled()")
            yield Edit(
                ((first, before), (place, _around(place.function, "torch.set_grad_enabled(ctx.grad_mode)"))),
                "import torch",
            )
