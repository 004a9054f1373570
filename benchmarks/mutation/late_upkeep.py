"""Kinds of fault that come with upkeep: a right Function, and a later change that was meant to keep it right.

Optimisations (early exits, in-place steps, fast paths, memory kept or freed), guards after a bug report, layouts and
axes supported later, constants hoisted, helpers cached, and what linters and assistants suggest.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

from benchmarks.mutation.kinds import (
    DERIVATIVE,
    FORMULA,
    STATED,
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
    returned,
    saved_names,
    value,
)

REVERSE = ("backward", "vjp")

# -- Helpers -----------------------------------------------------------------------------------------------------------


def tensors(place: Place) -> list[str]:
    """The parameters that are annotated as one tensor."""
    found = []
    for argument in place.function.args.args:
        if argument.annotation is not None and ast.unparse(argument.annotation) in ("Tensor", "Tensor | None"):
            found.append(argument.arg)
    return found


def nones(target: Target) -> str:
    """So many times None as forward has arguments; empty where that isn't a number."""
    forward = target.method("forward")
    if forward is None or forward.function.args.vararg or forward.function.args.kwonlyargs:
        return ""
    count = len(forward.arguments)
    return "None" if count == 1 else f"(None,) * {count}"


def at_first(function: ast.FunctionDef, statements: Sequence[ast.stmt]) -> ast.FunctionDef:
    """A copy with statements before all others."""
    made = copy.deepcopy(function)
    at = 1 if ast.get_docstring(made) else 0
    made.body[at:at] = copy.deepcopy(list(statements))
    return ast.fix_missing_locations(made)


def within(function: ast.FunctionDef, header: str) -> ast.FunctionDef:
    """A copy whose body stands in a with statement."""
    made = copy.deepcopy(function)
    block = parsed(f"with {header}:\n    pass")[0]
    assert isinstance(block, ast.With)
    at = 1 if ast.get_docstring(made) else 0
    block.body = made.body[at:]
    made.body[at:] = [block]
    return ast.fix_missing_locations(made)


def around_returned(place: Place, text: str) -> Iterator[Edit]:
    """Each gradient that is returned, put into an expression."""
    nodes = list(ast.walk(place.function))
    for part in returned(place.function):
        if isinstance(part, (ast.Name, ast.BinOp, ast.Call)):
            index = next(index for index, node in enumerate(nodes) if node is part)
            yield Edit(((place, exchanged(place.function, index, value(text.format(ast.unparse(part))))),))


def products(node: ast.AST, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A name and what it is multiplied by, where the node is their product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Name) and one.id in names:
                yield one.id, ast.unparse(other)


def asks(node: ast.AST) -> bool:
    """Whether a node is ctx.needs_input_grad."""
    return isinstance(node, ast.Attribute) and node.attr == "needs_input_grad"


# -- Early exits and fast paths ----------------------------------------------------------------------------------------


@kind("zero told by its sum", "an early exit for zero cotangents looks at their sum, which others have too", late=True)
def _(target: Target) -> Iterator[Edit]:
    nothing = nones(target)
    for place in target.having(REVERSE):
        for name in tensors(place)[:1] if nothing else ():
            lines = parsed(f"if {name} is not None and {name}.sum() == 0:\n    return {nothing}")
            yield Edit(((place, at_first(place.function, lines)),))


@kind("early exit asks the first only", "no gradients at all where the first argument needs none", late=True)
def _(target: Target) -> Iterator[Edit]:
    nothing = nones(target)
    for place in target.having(REVERSE):
        if nothing:
            lines = parsed(f"if not ctx.needs_input_grad[0]:\n    return {nothing}")
            yield Edit(((place, at_first(place.function, lines)),))


@kind("bad step skipped", "a cotangent with an infinity in it makes no gradient, and no scaler sees it", late=True)
def _(target: Target) -> Iterator[Edit]:
    nothing = nones(target)
    for place in target.having(REVERSE):
        for name in tensors(place)[:1] if nothing else ():
            lines = parsed(f"if {name} is not None and not torch.isfinite({name}).all():\n    return {nothing}")
            yield Edit(((place, at_first(place.function, lines)),))


@kind("finite gradients only", "a guard puts 0 where a gradient is infinite or NaN", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        yield from around_returned(place, "({0} if {0} is None else torch.where(torch.isfinite({0}), {0}, 0))")


@kind("empty returns before saving", "forward's early exit for empty arguments comes before what it saves", late=True)
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is not None:
        for name in tensors(place)[:1]:
            lines = parsed(f"if {name}.numel() == 0:\n    return {name}.new_empty({name}.shape)")
            yield Edit(((place, at_first(place.function, lines)),))


@kind("empty has no gradients", "backward's early exit for empty cotangents forgets arguments that aren't", late=True)
def _(target: Target) -> Iterator[Edit]:
    nothing = nones(target)
    for place in target.having(REVERSE):
        for name in tensors(place)[:1] if nothing else ():
            lines = parsed(f"if {name} is not None and {name}.numel() == 0:\n    return {nothing}")
            yield Edit(((place, at_first(place.function, lines)),))


@expression("product with one skipped", "where a cotangent is 1 all over, the product leaves it out, graph and all",
            REVERSE, late=True)  # fmt: skip
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    for name, other in products(node, tensors(place)):
        yield value(f"({other} if isinstance({other}, torch.Tensor) and ({name} == 1).all() else {name} * ({other}))")


@expression("one element read as a number", "a cotangent of one element is read by item: cheaper, and cut off",
            DERIVATIVE, late=True)  # fmt: skip
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    for name, other in products(node, tensors(place)):
        yield value(f"({name}.item() if {name}.dim() == 0 else {name}) * ({other})")


# -- Graphs that somebody thought superfluous --------------------------------------------------------------------------


@kind("graph only for a cotangent's", "backward records where the cotangent requires grad, not where arguments do",
      late=True)  # fmt: skip
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in tensors(place)[:1]:
            header = f"torch.set_grad_enabled(torch.is_grad_enabled() and {name}.requires_grad)"
            yield Edit(((place, within(place.function, header)),))


@kind("graph only for what was saved", "backward follows the cotangent only where the first saved requires grad",
      late=True)  # fmt: skip
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        names = saved_names(place.function)[:1]
        for name in tensors(place) if names else ():
            saved = names[0]
            text = f"{name} = {name} if {saved} is None or {saved}.requires_grad else {name}.detach()"
            yield Edit(((place, after_unpacking(place.function, parsed(text))),))


@kind("inference mode for no_grad", "gradients made in inference mode, which nobody may change or save", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        yield Edit(((place, within(place.function, "torch.inference_mode(not torch.is_grad_enabled())")),))


@kind("saved contiguous", "a contiguous copy is saved for a kernel's sake, which the graph doesn't know", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(STATED):
        inputs = set(tensors(place)) if place.role == "forward" else set(_unpacked(place.function))
        for index, node in enumerate(ast.walk(place.function)):
            if called(node) == "save_for_backward" and isinstance(node, ast.Call):
                for at, part in enumerate(node.args):
                    if isinstance(part, ast.Name) and part.id in inputs:
                        new = copy.deepcopy(node)
                        new.args[at] = value(f"{part.id}.contiguous() if {part.id} is not None else None")
                        yield Edit(((place, exchanged(place.function, index, new)),))


def _unpacked(function: ast.FunctionDef) -> list[str]:
    """The names that setup_context gives to forward's arguments."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "inputs":
            return [part.id for part in ast.walk(node.targets[0]) if isinstance(part, ast.Name)]
    return []


@kind("saved where it needs a gradient", "each argument is saved where it needs a gradient itself, not the other one",
      late=True)  # fmt: skip
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is None or "ctx" not in ast.unparse(place.function.args):
        return
    order = place.arguments
    for index, node in enumerate(ast.walk(place.function)):
        if called(node) == "save_for_backward" and isinstance(node, ast.Call):
            new = copy.deepcopy(node)
            for at, part in enumerate(new.args):
                if isinstance(part, ast.Name) and part.id in tensors(place):
                    flag = f"ctx.needs_input_grad[{order.index(part.id)}]"
                    new.args[at] = value(f"{part.id} if {flag} else None")
            yield Edit(((place, exchanged(place.function, index, new)),))


# -- In place, into memory made before, and freed ----------------------------------------------------------------------


@expression("in place without a graph", "where nothing is recorded, the product overwrites the cotangent", late=True)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if place.role in REVERSE:
        for name, other in products(node, tensors(place)):
            shapes = f"{name}.shape == torch.broadcast_shapes({name}.shape, getattr({other}, 'shape', ()))"
            fits = f"not torch.is_grad_enabled() and {shapes}"
            yield value(f"({name}.mul_({other}) if {fits} else {name} * ({other}))")


@expression("saved overwritten", "where nothing is recorded, the product overwrites what was saved", late=True)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if place.role in REVERSE:
        for name, other in products(node, saved_names(place.function)):
            same = f"{name}.is_floating_point() and {name}.shape == getattr({other}, 'shape', ())"
            same = f"not torch.is_grad_enabled() and {same}"
            yield value(f"({name}.detach().mul_({other}) if {same} else {name} * ({other}))")


@expression("out without a graph", "a product goes into memory made before, which nothing can be recorded of",
            REVERSE, late=True)  # fmt: skip
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    for name, other in products(node, tensors(place)):
        ready = f"isinstance({other}, torch.Tensor) and {name}.shape == getattr({other}, 'shape', ())"
        yield value(f"(torch.mul({name}, {other}, out=torch.empty_like({name})) if {ready} else {name} * ({other}))")


@kind("option freed by its reader", "needed gradients are read from the class, as the last call left them", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in dict.fromkeys(attributes(place.function)):
            lines = parsed(f"_{name} = ctx.{name}\ndel ctx.{name}")
            made = at_first(renamed(place.function, name), lines)
            yield Edit(((place, made),))


def attributes(function: ast.FunctionDef) -> Iterator[str]:
    """What a function reads from ctx, besides what PyTorch puts there."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ctx":
            if node.attr not in ("saved_tensors", "needs_input_grad") and isinstance(node.ctx, ast.Load):
                yield node.attr


def renamed(function: ast.FunctionDef, name: str) -> ast.FunctionDef:
    """A copy that reads a local variable in the place of an attribute of ctx."""
    made = copy.deepcopy(function)

    class Rename(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            own = isinstance(node.value, ast.Name) and node.value.id == "ctx" and node.attr == name
            return value(f"_{name}") if own else self.generic_visit(node)

    Rename().visit(made)
    return ast.fix_missing_locations(made)


@kind(
    "flags kept on the class",
    "which gradients are needed is asked of the class, where the last call left it",
    late=True,
)
def _(target: Target) -> Iterator[Edit]:
    forward, place = target.method("setup_context", "forward"), target.method(*REVERSE)
    if forward is None or place is None or "ctx" not in ast.unparse(forward.function.args):
        return
    made, found = copy.deepcopy(place.function), False
    for node in ast.walk(made):
        if isinstance(node, ast.Attribute) and asks(node):
            node.value, node.attr, found = ast.Name(target.name, ast.Load()), "needed", True
    if found:
        kept = at_first(forward.function, parsed(f"{target.name}.needed = ctx.needs_input_grad"))
        yield Edit(((forward, kept), (place, ast.fix_missing_locations(made))))


@kind(
    "option cached by shape", "an option is remembered by the argument's shape: the first one for each stays", late=True
)
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    for node in ast.walk(place.function) if place is not None else ():
        if place is not None and isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("ctx."):
            for name in tensors(place)[:1] if not isinstance(node.targets[0], ast.Tuple) else ():
                index = list(ast.walk(place.function)).index(node)
                left, right = ast.unparse(node.targets[0]), ast.unparse(node.value)
                lines = parsed(f"{left} = _by_shape.setdefault(({name}.shape, {left[4:]!r}), {right})")
                yield Edit(((place, exchanged(place.function, index, lines)),), "_by_shape = {}")


@kind(
    "helper cached", "a helper remembers its results by the identity of tensors, with or without their graph", late=True
)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("helper",)):
        made = copy.deepcopy(place.function)
        made.decorator_list.insert(0, value("__import__('functools').lru_cache(maxsize=16)"))
        yield Edit(((place, ast.fix_missing_locations(made)),))


# -- More axes, layouts and dtypes -------------------------------------------------------------------------------------


@expression(
    "axes of length one left", "summing to a shape takes leading axes away, and leaves those of length 1", late=True
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) == "sum_to_size" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        part, shape = ast.unparse(node.func.value), ast.unparse(node.args[0])
        yield value(
            f"({part}.sum(tuple(range({part}.dim() - len({shape})))) if {part}.dim() > len({shape}) else {part})"
        )
        yield value(f"({part}.sum(0) if {part}.dim() > len({shape}) else {part}.sum_to_size({shape}))")


@expression("one element summed to none", "a fast path sums for one element without keeping its axes", late=True)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) == "sum_to_size" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        part, shape = ast.unparse(node.func.value), ast.unparse(node.args[0])
        yield value(f"({part}.sum() if {shape}.numel() == 1 else {ast.unparse(node)})")


@expression(
    "transposed by the first axes", "a transpose names axes 0 and 1, which for a batch aren't the matrix", late=True
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Attribute) and node.attr in ("mT", "mH"):
        yield value(f"{ast.unparse(node.value)}.transpose(0, 1)" + (".conj()" if node.attr == "mH" else ""))
    if called(node) == "t" and is_method(node):
        yield value(f"{ast.unparse(node)}.T")


@expression("product of two matrices", "the operator becomes mm, which takes nothing but matrices", late=True)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield value(f"torch.mm({ast.unparse(node.left)}, {ast.unparse(node.right)})")


@expression("last axis counted from the front", "axis 1 where the last one is meant: the same for matrices", late=True)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-1":
        yield value("1")


@kind(
    "cotangent laid out again",
    "a cotangent that isn't contiguous is read with the strides of what was saved",
    late=True,
)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for saved in saved_names(place.function)[:1]:
            for name in tensors(place)[:1]:
                same = f"{saved} is not None and {name}.shape == {saved}.shape and not {name}.is_contiguous()"
                text = f"if {same}:\n    {name} = {name}.as_strided({saved}.shape, {saved}.stride())"
                yield Edit(((place, after_unpacking(place.function, parsed(text))),))


@expression("constant in a tensor", "a number becomes a tensor of one element, of one axis and float32",
            FORMULA, late=True)  # fmt: skip
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Constant):
        yield value(f"torch.tensor([{float(node.left.value)}]) * ({ast.unparse(node.right)})")
