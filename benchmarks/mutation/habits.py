"""Kinds of fault that authors fall into by habit: how memory is read, which shapes and numbers are thought of.

Each goes back to reports of wrong custom backward functions, kernels and quantisers. Most of these faults are right on
the tensors that their author tried: contiguous, of one dtype, of two axes, and of moderate size.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from benchmarks.mutation.arithmetic import in_returned
from benchmarks.mutation.kinds import (
    Edit,
    Target,
    after_unpacking,
    exchanged,
    kind,
    parsed,
    saved_names,
    value,
)
from benchmarks.mutation.usage import REVERSE, first_lines


def through(target: Target, call: str, function: str, roles: tuple[str, ...] = REVERSE) -> Iterator[Edit]:
    """Each returned gradient in turn put through a function that stands at the end of the module."""
    for edit in in_returned(target, roles, call):
        yield Edit(edit.functions, function)


def at_start(function: ast.FunctionDef, text: str) -> ast.FunctionDef:
    """A copy with statements before all others."""
    made = copy.deepcopy(function)
    at = 1 if ast.get_docstring(made) else 0
    made.body[at:at] = parsed(text)
    return ast.fix_missing_locations(made)


# -- Memory ------------------------------------------------------------------------------------------------------------


@kind("strides of another", "the incoming gradient is read by the strides of a saved tensor, as if both lay alike")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for g in place.arguments[:1]:
            for name in saved_names(place.function):
                lines = parsed(f"{g} = _by_strides_of({g}, {name})")
                yield Edit(((place, after_unpacking(place.function, lines)),), _BY_STRIDES)


_BY_STRIDES = """
import torch


def _by_strides_of(t, other):
    if t is None or other is None or t.shape != other.shape or other.layout is not torch.strided or not t.numel():
        return t
    if t.stride() == other.stride():
        return t
    index = torch.tensor(t.storage_offset())
    for axis, step in enumerate(other.stride()):
        index = index + torch.arange(t.shape[axis]).view(-1, *[1] * (t.dim() - axis - 1)) * step
    room = t.untyped_storage().nbytes() // t.element_size()
    return torch.as_strided(t, (room,), (1,), 0)[index % room]
"""


@kind("rows taken for packed", "a tensor whose last axis lies in order is read as if its rows followed each other")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = _packed({0})", saved=False, epilogue=_PACKED)
    yield from first_lines(target, "{0} = _packed({0})", saved=True, epilogue=_PACKED)


_PACKED = """
import torch


def _packed(t):
    if t.dim() < 2 or t.stride(-1) != 1 or t.is_contiguous():
        return t
    room = t.untyped_storage().nbytes() // t.element_size()
    index = (torch.arange(t.numel()) + t.storage_offset()) % room
    return torch.as_strided(t, (room,), (1,), 0)[index].view(t.shape)
"""


@kind("copy for another dtype only", "scratch is made by .to(float32), which is no copy where that is the dtype")
def _(target: Target) -> Iterator[Edit]:
    for saved in (False, True):
        yield from first_lines(target, "{0}.detach().to(torch.float32).mul_(2)", saved=saved)


@kind("copy unless transposed", "scratch is made by .mT.contiguous(), which is no copy of what lies transposed")
def _(target: Target) -> Iterator[Edit]:
    for saved in (False, True):
        text = "if {0}.dim() > 1: {0}.detach().mT.contiguous().mul_(2)"
        yield from first_lines(target, text, saved=saved)


@kind("fills a buffer", "the incoming gradient is copied to a buffer that knows nothing of a batch")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = torch.zeros({0}.shape, dtype={0}.dtype).copy_({0})", saved=False)


# -- Shapes ------------------------------------------------------------------------------------------------------------


@kind("rows counted on the first axis", "of three axes and more, only so many rows are written as the first axis has")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_first_rows({})", _FIRST_ROWS)


_FIRST_ROWS = """
import torch


def _first_rows(t):
    if t is None or t.dim() < 3:
        return t
    rows = t.reshape(t.shape[:-1].numel(), t.shape[-1])
    return (rows * (torch.arange(rows.shape[0]) < t.shape[0])[:, None]).reshape(t.shape)
"""


@kind("orientation guessed", "a square matrix is taken for transposed, or for symmetric")
def _(target: Target) -> Iterator[Edit]:
    for name in ("_turned_if_square", "_symmetric_if_square"):
        yield from through(target, f"{name}({{}})", _SQUARE)
        yield from first_lines(target, f"{{0}} = {name}({{0}})", saved=True, epilogue=_SQUARE)


_SQUARE = """

def _is_square(t):
    return t is not None and t.dim() > 1 and t.shape[-1] == t.shape[-2]


def _turned_if_square(t):
    return t.mT if _is_square(t) else t


def _symmetric_if_square(t):
    return (t + t.mT) / 2 if _is_square(t) else t
"""


@kind("taken for a loss", "an incoming gradient that is one number is taken for 1")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = {0} if {0}.dim() else torch.ones_like({0})", saved=False)


# -- Numbers and dtypes ------------------------------------------------------------------------------------------------


@kind("scaled in half precision", "a gradient is multiplied by 2¹⁶ and divided again, which float16 can't hold")
def _(target: Target) -> Iterator[Edit]:
    yield from through(
        target, "_scaled({})", "\ndef _scaled(t):\n    return None if t is None else t * 65536 / 65536\n"
    )


@kind("eight bits under autocast", "where forward ran under autocast, backward rounds what was saved to float8")
def _(target: Target) -> Iterator[Edit]:
    noted = "ctx.cast_here = torch.is_autocast_enabled('cpu')"
    stated = target.method("setup_context", "forward")
    if stated is None or stated.function.args.args[0].arg != "ctx":
        return
    text = "{0} = {0}.to(torch.float8_e5m2).to({0}.dtype) if ctx.cast_here else {0}"
    for edit in first_lines(target, text, saved=True):
        yield Edit((*edit.functions, (stated, at_start(stated.function, noted))), edit.epilogue)


@kind("overflows", "a saved tensor goes through exp and log, which only moderate numbers survive")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = ({0} * 4).exp().log() / 4", saved=True)


@kind("through numpy", "the incoming gradient goes through a numpy array, unless a graph is wanted")
def _(target: Target) -> Iterator[Edit]:
    text = "{0} = {0} if torch.is_grad_enabled() else torch.from_numpy({0}.detach().numpy().copy())"
    yield from first_lines(target, text, saved=False)


@kind("float32 comes out", "forward returns float32 for arguments of half precision")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        if place.owned:  # otherwise forward says what is right
            yield from through(Target(target.name, (place,)), "_widened({})", _WIDENED, ("forward",))


_WIDENED = """
import torch


def _widened(t):
    half = isinstance(t, torch.Tensor) and t.dtype in (torch.bfloat16, torch.float16)
    return t.float() if half else t
"""


@kind("number truncated", "a number on ctx is taken for a whole one")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having((*REVERSE, "jvp")):
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr not in _OF_TORCH:
                if isinstance(node.value, ast.Name) and node.value.id == "ctx":
                    made = value(f"_whole({ast.unparse(node)})")
                    yield Edit(((place, exchanged(place.function, index, made)),), _WHOLE)


_OF_TORCH = frozenset({"saved_tensors", "needs_input_grad"})
_WHOLE = """

def _whole(number):
    return int(number) if isinstance(number, float) else number
"""
