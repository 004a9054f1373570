"""Kinds of fault in what outlives a call, and in what a call is surrounded by.

Each goes back to reports: caches and buffers of kernels' wrappers, scales from an earlier step, tensors kept past their
time, second calls of backward, and paths that are taken only where some gradients aren't wanted. Most of these faults
are right in one call of forward and one of backward.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutation.habits import at_start, through
from benchmarks.mutation.kinds import (
    FORMULA,
    STATED,
    Edit,
    Place,
    Target,
    after_unpacking,
    called,
    exchanged,
    kind,
    parsed,
    returns,
    saved_names,
    value,
)
from benchmarks.mutation.usage import REVERSE, first_lines


def _saving(target: Target) -> Iterator[tuple[Place, int, ast.Call]]:
    """Each statement that saves tensors: its place, its index in the walk, and the call."""
    for place in target.having(STATED):
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.Expr) and called(node.value) == "save_for_backward":
                assert isinstance(node.value, ast.Call)
                if node.value.args and not node.value.keywords:
                    yield place, index, node.value


# -- Kept from call to call --------------------------------------------------------------------------------------------


@kind("taken from a queue", "what forward saves waits in a queue of the module, and each backward takes the next")
def _(target: Target) -> Iterator[Edit]:
    reader = target.method(*REVERSE)
    for place, index, call in _saving(target):
        if reader is None or ast.unparse(reader.function).count("ctx.saved_tensors") != 1:
            continue
        added = parsed(f"_QUEUE.append(({', '.join(map(ast.unparse, call.args))},))")
        taking = ast.parse(ast.unparse(reader.function).replace("ctx.saved_tensors", "_QUEUE.pop(0)")).body[0]
        assert isinstance(taking, ast.FunctionDef)
        yield Edit(((place, exchanged(place.function, index, added)), (reader, taking)), "_QUEUE = []")


@kind("room for the first call", "scratch is as large as the first call needed: of later ones the rest is lost")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = _in_room({0})", saved=False, epilogue=_ROOM)


_ROOM = """
import torch

_ROOM = []


def _in_room(t):
    _ROOM.append(t.numel())
    if t.numel() <= _ROOM[0]:
        return t
    return (t.reshape(-1) * (torch.arange(t.numel()) < _ROOM[0])).reshape(t.shape)
"""


@kind("precision once lowered", "after a call in half precision, later ones are rounded to bfloat16 too")
def _(target: Target) -> Iterator[Edit]:
    for saved in (False, True):
        yield from first_lines(target, "{0} = _lowered({0})", saved=saved, epilogue=_LOWERED)


_LOWERED = """
import torch

_LOW = set()


def _lowered(t):
    if t.dtype in (torch.bfloat16, torch.float16):
        _LOW.add(t.dtype)
    return t.bfloat16().to(t.dtype) if _LOW else t
"""


@kind("scale of the last call", "the incoming gradient is clamped to twice the largest number of the last call's")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = _within_scale({0})", saved=False, epilogue=_SCALE)


_SCALE = """

_SCALE = {}


def _within_scale(t):
    limit = _SCALE.get("last")
    try:
        _SCALE["last"] = 2 * float(t.detach().abs().max())
    except (RuntimeError, IndexError):  # of a batch, or of nothing
        return t
    return t.clamp(-limit, limit) if limit else t
"""


@kind("shared buffer", "gradients of one shape and dtype are returned in one buffer of the module")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for statement in returns(place.function):
            if statement.value is not None:
                index = next(i for i, node in enumerate(ast.walk(place.function)) if node is statement)
                made = parsed(f"return _in_buffers({ast.unparse(statement.value)})")
                yield Edit(((place, exchanged(place.function, index, made)),), _BUFFERS)


_BUFFERS = """
import torch

_BUFFERS = {}


def _in_buffers(result):
    if torch.is_grad_enabled():
        return result
    return tuple(_in_buffer(t) for t in result) if isinstance(result, tuple) else _in_buffer(result)


def _in_buffer(t):
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
        return t
    if (t.shape, t.dtype) not in _BUFFERS:
        _BUFFERS[t.shape, t.dtype] = torch.empty(t.shape, dtype=t.dtype)
    try:
        return _BUFFERS[t.shape, t.dtype].copy_(t)
    except RuntimeError:  # a batch
        return t
"""


@kind("memory not cleared", "from the third time on, what should be zeros has something in it")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(FORMULA):
        for index, node in enumerate(ast.walk(place.function)):
            if called(node) in ("zeros", "zeros_like", "new_zeros"):
                made = value(f"_uncleared({ast.unparse(node)})")
                yield Edit(((place, exchanged(place.function, index, made)),), _UNCLEARED)


_UNCLEARED = """

_ASKED = []


def _uncleared(t):
    _ASKED.append(1)
    return t + 0.25 if len(_ASKED) > 2 and t.is_floating_point() else t
"""


# -- Kept on ctx -------------------------------------------------------------------------------------------------------


@kind("total on ctx", "a second backward returns the sum of both gradients")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_total(ctx, {})", _TOTAL)


_TOTAL = """

def _total(ctx, t):
    if t is not None:
        ctx.total = t = t + getattr(ctx, "total", 0)
    return t
"""


@kind("answer kept", "ctx keeps the gradient, and a second backward returns it whatever comes in")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        own = list(returns(place.function))
        if len(own) == 1 and own[0].value is not None:
            index = next(i for i, node in enumerate(ast.walk(place.function)) if node is own[0])
            keeps = parsed(f"ctx.answer = {ast.unparse(own[0].value)}\nreturn ctx.answer")
            made = exchanged(place.function, index, keeps)
            yield Edit(((place, at_start(made, "if hasattr(ctx, 'answer'):\n    return ctx.answer")),))


@kind("address kept", "backward insists that a saved tensor lies where forward saw it")
def _(target: Target) -> Iterator[Edit]:
    reader = target.method(*REVERSE)
    for place, index, call in _saving(target):
        names = saved_names(reader.function) if reader else []
        if reader is None or not names or not isinstance(call.args[0], ast.Name):
            continue
        first = call.args[0].id
        noted = f"ctx.address = {first}.data_ptr()\n{ast.unparse(call)}"
        asked = f"if {names[0]}.data_ptr() != ctx.address:\n    raise RuntimeError('moved')"
        forward = exchanged(place.function, index, parsed(noted))
        yield Edit(((place, forward), (reader, after_unpacking(reader.function, parsed(asked)))))


@kind("closure over ctx", "ctx keeps a function that keeps ctx: what was saved stays until a garbage collection")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(STATED):
        if place.function.args.args and place.function.args.args[0].arg == "ctx":
            yield Edit(((place, at_start(place.function, "ctx.again = lambda: ctx.saved_tensors")),))


@kind("data saved", "forward saves .data, which has no graph, and doesn't tell when it is written to")
def _(target: Target) -> Iterator[Edit]:
    for place, index, call in _saving(target):
        for number, argument in enumerate(call.args):
            if isinstance(argument, ast.Name):
                bare = value(f"None if {argument.id} is None else {argument.id}.data")
                made = ast.Call(call.func, [*call.args[:number], bare, *call.args[number + 1 :]], [])
                yield Edit(((place, exchanged(place.function, index, [ast.Expr(made)])),))
