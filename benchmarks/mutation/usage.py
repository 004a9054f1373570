"""Kinds of fault of kernels and of training code.

A tail that isn't written, a buffer that isn't cleared, a formula that holds for positive numbers only, and the like.
"""

from __future__ import annotations

import ast
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
    returns,
    saved_names,
)

REVERSE = ("backward", "vjp")


def first_lines(target: Target, text: str, *, saved: bool, epilogue: str = "import torch") -> Iterator[Edit]:
    """Put lines at the beginning of backward: about the first cotangent, or about each saved float tensor."""
    for place in target.having(REVERSE):
        for name in saved_names(place.function) if saved else place.arguments[:1]:
            guarded = f"if isinstance({name}, torch.Tensor) and {name}.is_floating_point():\n    {text.format(name)}"
            yield Edit(((place, after_unpacking(place.function, parsed(guarded))),), epilogue)


@kind("only for positive numbers", "the sign of a saved tensor is lost")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = {0}.abs()", saved=True)


@kind("only for small numbers", "a saved tensor is clamped to [-2, 2], as a table's ends do")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = {0}.clamp(-2, 2)", saved=True)


@kind("cotangent ignored", "ones stand in the place of the incoming gradient")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = torch.ones_like({0})", saved=False)


@kind("clipped in silence", "a gradient is clamped to [-10, 10]")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, REVERSE, "{}.clamp(-10, 10)")


@kind("small gradients dropped", "gradients below a thousandth are set to zero")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, REVERSE, "{0} * ({0}.abs() > 1e-3)")


@kind("tail not written", "of a last axis that 4 doesn't divide, the last few elements have no gradient")
def _(target: Target) -> Iterator[Edit]:
    for edit in in_returned(target, REVERSE, "_without_tail({})"):
        yield Edit(edit.functions, _TAIL)
    yield from first_lines(target, "{0} = _without_tail({0})", saved=False, epilogue=_TAIL)


_TAIL = """
import torch


def _without_tail(t):
    if t is None or not t.dim() or t.shape[-1] < 4:
        return t
    return t * (torch.arange(t.shape[-1]) < t.shape[-1] // 4 * 4)
"""


@kind("one block only", "elements beyond the first 32 have no gradient")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, REVERSE, "{0} * (torch.arange({0}.numel()).view({0}.shape) < 32)")


@kind("buffer not cleared", "a gradient is added to that of the last call of this shape")
def _(target: Target) -> Iterator[Edit]:
    for edit in in_returned(target, REVERSE, "_added({})"):
        yield Edit(edit.functions, _BUFFER)


_BUFFER = """

_BUFFERS = {}


def _added(t):
    if t is None:
        return t
    buffer = _BUFFERS.get((t.shape, t.dtype), 0)
    _BUFFERS[t.shape, t.dtype] = 0.5 * (buffer + t).detach()
    return t + buffer
"""


@kind("drifts", "from the fourth call of backward on, the gradient is a hundredth too large")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in place.arguments[:1]:
            text = f"_CALLS.append(1)\nif len(_CALLS) > 3 and {name} is not None:\n    {name} = {name} * 1.01"
            yield Edit(((place, after_unpacking(place.function, parsed(text))),), "_CALLS = []")


@kind("axes of length 1 lost", "the incoming gradient is squeezed")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = {0}.squeeze()", saved=False)


@kind("bfloat16 within float32", "for float32 a factor is rounded to bfloat16")
def _(target: Target) -> Iterator[Edit]:
    text = "{0} = {0}.bfloat16().float() if {0}.dtype == torch.float32 else {0}"
    yield from first_lines(target, text, saved=False)
    yield from first_lines(target, text, saved=True)


@kind("seeds the generator", "backward sets the seed of everybody's random numbers")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "torch.manual_seed(0)", saved=False)


@kind("mean for a batch", "a gradient is divided by the length of its first axis")
def _(target: Target) -> Iterator[Edit]:
    yield from in_returned(target, REVERSE, "{0} / max(1, {0}.shape[0] if {0}.dim() else 1)")


@kind("kept on ctx", "a tensor lies on ctx and isn't saved: nobody sees when it is changed in place")
def _(target: Target) -> Iterator[Edit]:
    reader = target.method(*REVERSE)
    for place in target.having(("forward", "setup_context")):
        for index, node in enumerate(ast.walk(place.function)):
            if not isinstance(node, ast.Expr) or called(node.value) != "save_for_backward" or reader is None:
                continue
            text = ", ".join(ast.unparse(argument) for argument in node.value.args)
            if not text or node.value.keywords or "saved_tensors" not in ast.unparse(reader.function):
                continue
            source = ast.unparse(reader.function).replace("ctx.saved_tensors", "ctx.kept_here")
            swapped = ast.parse(source).body[0]
            assert isinstance(swapped, ast.FunctionDef)
            kept = exchanged(place.function, index, parsed(f"ctx.kept_here = ({text},)"))
            yield Edit(((place, kept), (reader, swapped)))


@kind("result kept on ctx", "forward leaves its result on ctx, and neither is ever freed")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is None or place.function.args.args[0].arg != "ctx":
        return
    for statement in returns(place.function):
        if statement.value is not None and not isinstance(statement.value, ast.Tuple):
            nodes = list(ast.walk(place.function))
            index = next(i for i, node in enumerate(nodes) if node is statement)
            lines = parsed(f"ctx.result = {ast.unparse(statement.value)}") + _returns_it()
            yield Edit(((place, exchanged(place.function, index, lines)),))


def _returns_it() -> list[ast.stmt]:
    return [ast.Return(ast.parse("ctx.result", mode="eval").body)]


@kind("None not expected", "forward asks for None in place of zeros, and backward isn't ready for it")
def _(target: Target) -> Iterator[Edit]:
    place: Place | None = target.method("forward")
    if place is None or place.function.args.args[0].arg != "ctx" or "materialize" in ast.unparse(place.function):
        return
    yield Edit(((place, after_unpacking(place.function, parsed("ctx.set_materialize_grads(False)"))),))
