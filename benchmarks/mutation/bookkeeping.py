"""Kinds of fault in what is kept, written, refused, declared and called.

Each goes back to reports: buffers and workspaces that calls share, caches of weights, what is freed too early, checks
of kernels that refuse what autograd sends, autocast regions, and declarations to ctx. Most of these faults are right
in one call of forward and one of backward, on contiguous tensors of one dtype.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from benchmarks.mutation.habits import at_start, through
from benchmarks.mutation.kinds import (
    STATED,
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
    returns,
    saved_names,
    value,
)
from benchmarks.mutation.reckoning import attributes_of_ctx
from benchmarks.mutation.usage import REVERSE, first_lines


def _plain_saving(target: Target) -> Iterator[tuple[Place, int, ast.Call]]:
    """Each statement that saves tensors by their names: its place, its index in the walk, and the call."""
    for place in target.having(STATED):
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.Expr) and called(node.value) == "save_for_backward":
                assert isinstance(node.value, ast.Call)
                if node.value.args and all(isinstance(argument, ast.Name) for argument in node.value.args):
                    yield place, index, node.value


def _within(function: ast.FunctionDef, manager: str) -> ast.FunctionDef:
    """A copy whose whole body runs within a context manager."""
    made = copy.deepcopy(function)
    at = 1 if ast.get_docstring(made) else 0
    made.body[at:] = [ast.With([ast.withitem(value(manager))], made.body[at:])]
    return ast.fix_missing_locations(made)


# -- What is written ---------------------------------------------------------------------------------------------------


@kind("scratch in the argument", "forward doubles its argument in place, and halves it again before it returns")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    for name in place.arguments[:2] if place is not None else ():
        text = f"if isinstance({name}, torch.Tensor) and {name}.is_floating_point():\n    {name}.mul_(2).div_(2)"
        yield Edit(((place, at_start(place.function, text)),), "import torch")


@kind("gradient over a saved tensor", "a gradient lies in a saved tensor's memory, and no version counter tells of it")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in saved_names(place.function)[:2]:
            yield from through(Target(target.name, (place,)), f"_over({name}, {{}})", _OVER)


_OVER = """
import torch


def _over(saved, t):
    if t is None or torch.is_grad_enabled() or saved is None:
        return t
    if saved.shape != t.shape or saved.dtype != t.dtype:
        return t
    return saved.data.copy_(t)
"""


@kind("result in a shared buffer", "results of one shape and dtype lie in one buffer of the module")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is not None:
        yield from through(Target(target.name, (place,)), "_in_workspace({})", _WORKSPACE, ("forward",))


_WORKSPACE = """
import torch

_SPACE = {}


def _in_workspace(t):
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
        return t
    try:
        buffer = _SPACE.setdefault((t.shape, t.dtype), torch.empty(t.shape, dtype=t.dtype))
        return buffer.data.copy_(t)
    except RuntimeError:  # a batch
        return t
"""


# -- What is kept ------------------------------------------------------------------------------------------------------


@kind("freed after use", "backward takes an attribute off ctx, which a second backward then misses")
def _(target: Target) -> Iterator[Edit]:
    for edit in attributes_of_ctx(target, "_taken(ctx, '{1}')", _TAKEN):
        place, made = edit.functions[0]
        if place.role in REVERSE and made is not None:
            attribute = next(n.args[1].value for n in ast.walk(made) if called(n) == "_taken")
            if f"ctx.{attribute}" not in ast.unparse(made):
                yield edit


_TAKEN = """

def _taken(ctx, name):
    found = getattr(ctx, name)
    delattr(ctx, name)
    return found
"""


@kind("only a weak reference", "ctx keeps no argument alive, and counts on the caller to do so")
def _(target: Target) -> Iterator[Edit]:
    reader = target.method(*REVERSE)
    for place, index, call in _plain_saving(target):
        names = [ast.unparse(argument) for argument in call.args]
        if reader is None or place.role != "forward" or not set(names) <= set(place.arguments):
            continue
        kept = parsed(f"ctx.weak = [(lambda: None) if t is None else weakref.ref(t) for t in ({', '.join(names)},)]")
        text = ast.unparse(reader.function).replace("ctx.saved_tensors", "tuple(kept() for kept in ctx.weak)")
        swapped = ast.parse(text).body[0]
        assert isinstance(swapped, ast.FunctionDef)
        yield Edit(((place, exchanged(place.function, index, kept)), (reader, swapped)), "import weakref")


@kind("two slots in turn", "what forward saves lies in two slots used in turn: a third call takes the first's")
def _(target: Target) -> Iterator[Edit]:
    reader = target.method(*REVERSE)
    for place, index, call in _plain_saving(target):
        names = saved_names(reader.function) if reader is not None else []
        if reader is None or not names or place.function.args.args[0].arg != "ctx":
            continue
        kept = parsed(f"{ast.unparse(call)}\nctx.slot = _keep({ast.unparse(call.args[0])})")
        restored = parsed(f"{names[0]} = _slot({names[0]}, ctx.slot)")
        forward = exchanged(place.function, index, kept)
        yield Edit(((place, forward), (reader, after_unpacking(reader.function, restored))), _TURNS)


_TURNS = """
import torch

_SLOTS = {}
_COUNT = []


def _keep(t):
    _COUNT.append(1)
    slot = len(_COUNT) % 2
    _SLOTS[slot] = t.detach() if isinstance(t, torch.Tensor) else None
    return slot


def _slot(t, slot):
    kept = _SLOTS[slot]
    if t is None or kept is None or kept.shape != t.shape or not t.is_floating_point():
        return t
    return t + (kept - t).detach()
"""


@kind("setting of the first call", "a number on ctx is what it was in the first call, as a compiled kernel has it")
def _(target: Target) -> Iterator[Edit]:
    yield from attributes_of_ctx(target, "_of_first('{1}', {0})", _FIRST)


_FIRST = """
_FIRST = {}


def _of_first(name, setting):
    return _FIRST.setdefault((name, type(setting)), setting) if isinstance(setting, (int, float, str)) else setting
"""


@kind("added to what lies there", "a gradient is added to .grad of the argument, which autograd then adds again")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in saved_names(place.function)[:2]:
            yield from through(Target(target.name, (place,)), f"_on_top({name}, {{}})", _ON_TOP)


_ON_TOP = """

def _on_top(saved, t):
    lies = saved.grad if saved is not None and saved.is_leaf else None
    return t if t is None or lies is None or lies.shape != t.shape else t + lies.detach()
"""


# -- What is refused ---------------------------------------------------------------------------------------------------


@kind("insists on contiguous", "backward refuses a tensor that isn't contiguous, as a kernel's check does")
def _(target: Target) -> Iterator[Edit]:
    text = "if not {0}.is_contiguous(): raise RuntimeError('must be contiguous')"
    for saved in (False, True):
        yield from first_lines(target, text, saved=saved)


@kind("dtype not dispatched", "backward has no kernel for a dtype that forward takes")
def _(target: Target) -> Iterator[Edit]:
    for dtype in ("bfloat16", "float16", "float32"):
        text = f"if {{0}}.dtype == torch.{dtype}: raise RuntimeError('not implemented for {dtype}')"
        yield from first_lines(target, text, saved=False)


@kind("axes counted on", "backward asks for at least one axis, or for at most three")
def _(target: Target) -> Iterator[Edit]:
    for condition in ("{0}.dim() < 1", "{0}.dim() > 3"):
        text = f"if {condition}: raise RuntimeError('expected one to three axes')"
        for saved in (False, True):
            yield from first_lines(target, text, saved=saved)


@kind("nothing to launch", "backward refuses a tensor without elements")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "if not {0}.numel(): raise RuntimeError('invalid configuration')", saved=False)


@kind("nothing comes in", "an incoming gradient of zeros is a reason to leave early, and the graph ends there")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0} = _or_nothing({0})", saved=False, epilogue=_NOTHING)


_NOTHING = """
import torch


def _or_nothing(t):
    try:
        return t if t.any() else torch.zeros_like(t)
    except RuntimeError:  # a batch
        return t
"""


# -- What is declared and asked ----------------------------------------------------------------------------------------


@expression("requires_grad asked", "a saved tensor is asked whether it requires a gradient, in place of ctx", REVERSE)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "ctx.needs_input_grad":
        number = node.slice.value if isinstance(node.slice, ast.Constant) else None
        names = saved_names(place.function)
        if isinstance(number, int) and number < len(names):
            yield value(f"({names[number]} is not None and {names[number]}.requires_grad)")


@kind("declared once differentiable", "backward refuses to be differentiated, though it could be")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("backward",)):
        made = copy.deepcopy(place.function)
        if any(ast.unparse(decorator) == "staticmethod" for decorator in made.decorator_list):
            made.decorator_list.append(value("torch.autograd.function.once_differentiable"))
            yield Edit(((place, ast.fix_missing_locations(made)),))


@kind("declared not differentiable", "forward tells ctx that a result has no gradient, which it has")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is None or place.function.args.args[0].arg != "ctx":
        return
    for statement in returns(place.function):
        parts = list(returned(place.function))
        if len(parts) > 1 and isinstance(statement.value, ast.Tuple):
            index = next(i for i, node in enumerate(ast.walk(place.function)) if node is statement)
            for number in range(len(parts)):
                told = f"_r = {ast.unparse(statement.value)}\nctx.mark_non_differentiable(_r[{number}])\nreturn _r"
                yield Edit(((place, exchanged(place.function, index, parsed(told))),))


_PRODUCTS = ("@", "mm(", "mv(", "matmul(", "linear(", "einsum(")
"""What shows that a method multiplies matrices, which is what autocast lowers."""


@kind("autocast of its own", "a method enters autocast, or leaves it, whatever its caller said")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having((*REVERSE, "forward")):
        for said in ("dtype=torch.bfloat16", "enabled=False"):
            products = any(word in ast.unparse(place.function) for word in _PRODUCTS)
            if products and (place.role != "forward" or place.owned):
                yield Edit(((place, _within(place.function, f"torch.autocast('cpu', {said})")),))
