"""Kinds of fault in what is kept, said and declared: saved tensors, flags, state, paths, tangents.

`computed` has those in what is computed.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from benchmarks.mutation.arithmetic import in_returned
from benchmarks.mutation.kinds import (
    Edit,
    Place,
    Target,
    after_unpacking,
    called,
    exchanged,
    kind,
    parsed,
    returned,
    returns,
    saved_names,
    value,
)
from benchmarks.mutation.usage import REVERSE

# -- Outputs and flags -------------------------------------------------------------------------------------------------


@kind("other output forgotten", "of several incoming gradients one counts as zero")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in _several(place):
            yield _at_first(place, f"{name} = {name} * 0 if isinstance({name}, torch.Tensor) else {name}")


def _several(place: Place) -> list[str]:
    """The names of the cotangents, where there are several."""
    return place.arguments if len(place.arguments) > 1 else []


def _at_first(place: Place, text: str, epilogue: str = "import torch") -> Edit:
    return Edit(((place, after_unpacking(place.function, parsed(text))),), epilogue)


@kind("early return", "where one argument needs no gradient, the others get none either")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for statement in returns(place.function):
            if isinstance(statement.value, ast.Tuple):
                parts = statement.value.elts
                real = [i for i, part in enumerate(parts) if not isinstance(part, (ast.Constant, ast.Starred))]
                for index in real if len(real) > 1 else ():
                    nothing = f"if not ctx.needs_input_grad[{index}]:\n    return (None,) * {len(parts)}"
                    yield _at_first(place, nothing)


@kind("constant in place of an argument", "backward has its own idea of a number that forward was given")
def _(target: Target) -> Iterator[Edit]:
    forward = target.method("forward")
    defaults, words = {}, []
    if forward is not None:
        arguments = forward.function.args
        with_default = arguments.args[len(arguments.args) - len(arguments.defaults) :]
        defaults = {a.arg: d for a, d in zip(with_default, arguments.defaults, strict=True)}
        words = [a.arg for a in arguments.args if a.annotation is not None and ast.unparse(a.annotation) == "str"]
    for place in target.having(REVERSE):
        nodes = list(ast.walk(place.function))
        apart = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        for index, node in enumerate(nodes):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ctx":
                unfit = (
                    node.attr in ("saved_tensors", "needs_input_grad", "shape", "options", *words) or id(node) in apart
                )
                if not unfit and isinstance(node.ctx, ast.Load):
                    new = defaults.get(node.attr, ast.Constant(1))
                    yield Edit(((place, exchanged(place.function, index, new)),))


@kind("marked by mistake", "forward declares its result non-differentiable")
def _(target: Target) -> Iterator[Edit]:
    for place in _forwards(target):
        if "mark_" not in ast.unparse(place.function):
            text = "ctx.mark_non_differentiable(_result[-1] if isinstance(_result, (tuple, list)) else _result)"
            yield from _before_returning(place, text)


@kind("other values for inference", "where nothing needs a gradient forward computes in bfloat16")
def _(target: Target) -> Iterator[Edit]:
    for place in _forwards(target):
        text = (
            "if not any(ctx.needs_input_grad) and isinstance(_result, torch.Tensor) and _result.is_floating_point():\n"
            "    _result = _result.bfloat16().to(_result.dtype)"
        )
        yield from _before_returning(place, text)


def _forwards(target: Target) -> Iterator[Place]:
    """The forward that has a ctx."""
    place = target.method("forward")
    if place is not None and place.function.args.args and place.function.args.args[0].arg == "ctx":
        yield place


def _before_returning(place: Place, text: str) -> Iterator[Edit]:
    """Lines about `_result` between the last value that a function makes and its return."""
    nodes = list(ast.walk(place.function))
    for statement in list(returns(place.function))[-1:]:
        if statement.value is not None:
            index = next(i for i, node in enumerate(nodes) if node is statement)
            lines = parsed(f"_result = {ast.unparse(statement.value)}\n{text}")
            made = exchanged(place.function, index, [*lines, ast.Return(ast.Name("_result", ast.Load()))])
            yield Edit(((place, made),), "import torch")


# -- What is kept ------------------------------------------------------------------------------------------------------


@kind("saved and then used as scratch", "the memory of a saved intermediate is cleared before forward ends")
def _(target: Target) -> Iterator[Edit]:
    for place in _forwards(target):
        result = _names("\n".join(ast.unparse(r.value) for r in returns(place.function) if r.value is not None))
        for node in ast.walk(place.function):
            for argument in node.args if called(node) == "save_for_backward" else ():
                if isinstance(argument, ast.Name) and argument.id not in (*place.arguments, *result):
                    name = argument.id
                    yield from _before_returning(place, f"if {name} is not None:\n    {name}.detach().zero_()")


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


@kind("given up after use", "backward gives up what was saved, and can't run again")
def _(target: Target) -> Iterator[Edit]:
    yield from _read_by(target, "_taken(ctx)", _TAKEN)


_TAKEN = """

def _taken(ctx):
    if getattr(ctx, "given_up", False):
        return ()
    ctx.given_up = True
    return ctx.saved_tensors
"""


@kind("kept on a stack", "calls and backwards are thought to come in opposite order")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward", "setup_context")):
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.Expr) and called(node.value) == "save_for_backward" and node.value.args:
                text = ", ".join(ast.unparse(argument) for argument in node.value.args)
                pushed = exchanged(place.function, index, parsed(f"_STACK.append(({text},))"))
                for edit in _read_by(target, "_STACK.pop()", "_STACK = []"):
                    yield Edit(((place, pushed), *edit.functions), edit.epilogue)


def _read_by(target: Target, text: str, epilogue: str) -> Iterator[Edit]:
    """Backward with something else where it reads, once, what was saved."""
    for place in target.having(REVERSE):
        source = ast.unparse(place.function)
        if source.count("ctx.saved_tensors") == 1:
            made = ast.parse(source.replace("ctx.saved_tensors", text)).body[0]
            assert isinstance(made, ast.FunctionDef)
            yield Edit(((place, made),), epilogue)


@kind("kept for ever", "a list for debugging holds every argument")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is not None:
        for name in place.arguments[:2]:
            yield _at_first(place, f"_SEEN.append({name})", "_SEEN = []")


@kind("same tensor for both", "where two arguments are one tensor, the second counts for nothing")
def _(target: Target) -> Iterator[Edit]:
    forward = target.method("forward")
    for place in target.having(REVERSE):
        given = [name for name in saved_names(place.function) if forward and name in forward.arguments]
        for one, other in itertools.pairwise(given):
            yield _at_first(
                place, f"if {one}.data_ptr() == {other}.data_ptr():\n    {other} = torch.zeros_like({other})"
            )


@kind("lost now and then", "in one call of three the first elements of a gradient are lost, as in a race")
def _(target: Target) -> Iterator[Edit]:
    for edit in in_returned(target, REVERSE, "_raced({})"):
        yield Edit(edit.functions, _RACED)


_RACED = """
import random
import torch

_DICE = random.Random(0)


def _raced(t):
    if t is None or not t.dim() or _DICE.random() > 1 / 3:
        return t
    return t * (torch.arange(t.shape[-1], device=t.device) > 0)
"""


@kind("index 0 for padding", "the first of the things that indices stand for is left out")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in saved_names(place.function):
            if any(word in name for word in ("index", "order", "rows", "target", "places")):
                yield _at_first(place, f"{name} = {name}.clamp(min=1)")


@kind("mask ignored", "what forward left out gets its gradient all the same")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in saved_names(place.function):
            if any(word in name for word in ("mask", "kept", "first", "within", "largest", "packed")):
                yield _at_first(place, f"{name} = [{name}, torch.ones_like({name})][isinstance({name}, torch.Tensor)]")


# -- Modes -------------------------------------------------------------------------------------------------------------


@kind("two paths that disagree", "under create_graph another formula runs, a hundredth too large")
def _(target: Target) -> Iterator[Edit]:
    for edit in in_returned(target, REVERSE, "{0} * (1.01 if torch.is_grad_enabled() else 1.0)"):
        yield Edit(edit.functions, "import torch")


@kind("tangent ignored", "ones stand in the place of an incoming tangent")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("jvp",)):
        for name in place.arguments:
            yield _at_first(place, f"{name} = torch.ones_like({name}) if isinstance({name}, torch.Tensor) else {name}")


@kind("backward for jvp", "a tangent goes through the formula of the gradient")
def _(target: Target) -> Iterator[Edit]:
    reader = target.method(*REVERSE)
    for place in target.having(("jvp",)):
        for part in returned(place.function) if reader is not None else ():
            index = next(i for i, node in enumerate(ast.walk(place.function)) if node is part)
            call = f"_first({target.name}.{reader.role}(ctx, {place.arguments[0]}))"
            yield Edit(((place, exchanged(place.function, index, value(call))),), _FIRST)


_FIRST = """

def _first(made):
    return made[0] if isinstance(made, tuple) else made
"""
