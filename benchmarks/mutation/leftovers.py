"""Kinds of fault in caches, pools, threads, errors and modes.

Each goes back to reports: caches that know an address, pools and tables of wrappers, code that isn't safe against
errors, variants compiled for the first call. `claims` has those in what is saved, declared, written and refused.
"""

from __future__ import annotations

import ast
import copy
import textwrap
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


def forward_with_ctx(target: Target) -> Iterator[Place]:
    """The forward that has a ctx."""
    return (p for p in target.having(("forward",)) if p.function.args.args[:1] and p.function.args.args[0].arg == "ctx")


def tensors_given(place: Place) -> list[str]:
    """The parameters that are said to be tensors."""
    said = {a.arg: ast.unparse(a.annotation) for a in place.function.args.args if a.annotation is not None}
    return [name for name in place.arguments if said.get(name, "").split(" ")[0] == "Tensor"]


def saving(target: Target) -> Iterator[tuple[Place, int, list[str]]]:
    """Each statement that saves tensors by name: its place, its index in the walk, and the names."""
    for place in target.having(STATED):
        for index, node in enumerate(ast.walk(place.function)):
            call = node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, ast.Call) and called(call) == "save_for_backward" and call.args and not call.keywords:
                if all(isinstance(argument, ast.Name) for argument in call.args):
                    yield place, index, [ast.unparse(argument) for argument in call.args]


def at_end(place: Place, text: str) -> Iterator[ast.FunctionDef]:
    """Lines about `_result` before a function's only return."""
    own = list(returns(place.function))
    if len(own) == 1 and own[0].value is not None:
        index = next(i for i, node in enumerate(ast.walk(place.function)) if node is own[0])
        lines = parsed(f"_result = {ast.unparse(own[0].value)}\n{text}")
        yield exchanged(place.function, index, [*lines, ast.Return(ast.Name("_result", ast.Load()))])


def wrapped(function: ast.FunctionDef, head: str, tail: str = "") -> ast.FunctionDef:
    """A copy whose whole body stands within a compound statement."""
    made = copy.deepcopy(function)
    at = 1 if ast.get_docstring(made) else 0
    body = textwrap.indent("\n".join(map(ast.unparse, made.body[at:])), "    ")
    made.body[at:] = parsed(f"{head}\n{body}\n{tail}")
    return ast.fix_missing_locations(made)


# -- Caches and pools --------------------------------------------------------------------------------------------------


@kind("prepared once", "forward keeps an argument as it first lay at an address, as a cache of casts does")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        for name in tensors_given(place):
            yield Edit(((place, at_start(place.function, f"{name} = _prepared({name})")),), _PREPARED)


_PREPARED = """
_PREPARED = {}


def _prepared(t):
    try:
        kept = _PREPARED.setdefault((t.data_ptr(), t.shape, t.stride(), t.dtype), t.detach().clone())
        return t if (kept == t).all() else kept
    except RuntimeError:  # a batch
        return t
"""


@kind("kept beside a tensor", "backward leaves a copy on a saved tensor, and takes that from then on")
def _(target: Target) -> Iterator[Edit]:
    text = "{0}.beside = getattr({0}, 'beside', {0}.detach().clone()); {0} = {0} + ({0}.beside - {0}).detach()"
    yield from first_lines(target, text, saved=True)


@kind("same cotangent, same answer", "where the last incoming gradient comes again, so does the last answer")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        yield from through(Target(target.name, (place,)), f"_recalled({place.arguments[0]}, {{}})", _RECALLED)


_RECALLED = """
import torch

_LAST = []


def _recalled(g, t):
    if not isinstance(g, torch.Tensor) or not isinstance(t, torch.Tensor) or torch.is_grad_enabled():
        return t
    known = [made for came, made in _LAST if came.shape == g.shape and made.shape == t.shape and came.dtype == g.dtype]
    try:
        if known and bool((_LAST[0][0] == g).all()):
            return known[0].clone()
        _LAST[:] = [(torch.empty(g.shape, dtype=g.dtype).copy_(g), torch.empty(t.shape, dtype=t.dtype).copy_(t))]
    except RuntimeError:  # a batch
        pass
    return t
"""


@kind("helper in a cache", "a helper that takes tensors remembers its answers by the tensors' identity")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("helper",)):
        name, made = place.function.name, copy.deepcopy(place.function)
        if not made.decorator_list and "yield" not in ast.unparse(made):
            made.name = f"{name}_anew"
            yield Edit(((place, made),), f"import functools\n{name} = functools.lru_cache(maxsize=None)({name}_anew)")


@kind("made once", "a constant tensor is made by the first call of its shape, and for that call's dtype")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having((*FORMULA, "jvp")):
        for index, node in enumerate(ast.walk(place.function)):
            if called(node) in ("arange", "ones", "eye", "full", "ones_like", "one_hot", "zeros", "new_zeros"):
                made = value(f"(lambda t: _MADE.setdefault(({called(node)!r}, t.shape), t))({ast.unparse(node)})")
                yield Edit(((place, exchanged(place.function, index, made)),), "_MADE = {}")


@kind("given back twice", "each backward gives a buffer back to the pool that forward took it from")
def _(target: Target) -> Iterator[Edit]:
    reader = target.method(*REVERSE)
    for place, index, names in saving(target):
        read = saved_names(reader.function) if reader is not None else []
        if reader is not None and read:
            text = f"ctx.save_for_backward({', '.join(names)})\nctx.room = _taken({names[0]})"
            fetched = after_unpacking(reader.function, parsed(f"{read[0]} = _given_back({read[0]}, ctx.room)"))
            yield Edit(((place, exchanged(place.function, index, parsed(text))), (reader, fetched)), _POOL)


_POOL = """
import torch

_FREE = {}


def _taken(t):
    free = _FREE.setdefault((t.shape, t.dtype), []) if isinstance(t, torch.Tensor) else []
    try:
        return (free.pop() if free else torch.empty(t.shape, dtype=t.dtype)).copy_(t.detach())
    except (AttributeError, RuntimeError):  # no tensor, a sparse one, or a batch
        return None


def _given_back(t, room):
    if room is None or t.shape != room.shape:
        return t
    _FREE[room.shape, room.dtype].append(room)
    return t + (room - t).detach() if t.is_floating_point() else room
"""


@kind("copy not waited for", "a gradient's buffer is read before it is written: it holds the last call's")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_late({})", _LATE)


_LATE = """
import torch

_LAST = {}


def _late(t):
    if t is None or torch.is_grad_enabled():
        return t
    try:
        before, _LAST[t.shape, t.dtype] = _LAST.get((t.shape, t.dtype)), torch.empty(t.shape, dtype=t.dtype).copy_(t)
    except RuntimeError:  # a batch
        return t
    return t if before is None else before
"""


@kind("tuned on real data", "the first call for a shape runs three times, and adds to one gradient")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_tuned({})", _TUNED)


_TUNED = """
_TUNED = set()


def _tuned(t):
    if t is None or (t.shape, t.dtype) in _TUNED:
        return t
    _TUNED.add((t.shape, t.dtype))
    return 3 * t
"""


@kind("kept in a table by ctx", "what is saved lies in the module's table under ctx's identity, for ever")
def _(target: Target) -> Iterator[Edit]:
    reader = target.method(*REVERSE)
    for place, index, names in saving(target):
        if reader is not None and ast.unparse(reader.function).count("ctx.saved_tensors") == 1:
            kept = parsed(f"_TABLE[id(ctx)] = ({', '.join(names)},)")
            read = parsed(ast.unparse(reader.function).replace("ctx.saved_tensors", "_TABLE[id(ctx)]"))[0]
            assert isinstance(read, ast.FunctionDef)
            yield Edit(((place, exchanged(place.function, index, kept)), (reader, read)), "_TABLE = {}")


@kind("variant without a gradient", "after a call that wants none, later ones of its shape have none")
def _(target: Target) -> Iterator[Edit]:
    for place in forward_with_ctx(target):
        for made in at_end(place, "_as_compiled(ctx, _result)"):
            yield Edit(((place, made),), _VARIANT)


_VARIANT = """
_WITHOUT = set()


def _as_compiled(ctx, t):
    if not hasattr(t, "shape"):
        return
    if not any(ctx.needs_input_grad):
        _WITHOUT.add(t.shape)
    elif t.shape in _WITHOUT:
        ctx.mark_non_differentiable(t)
"""


# -- Errors, threads and modes -----------------------------------------------------------------------------------------


@kind("one call at a time", "forward takes the only workspace, which backward alone gives back")
def _(target: Target) -> Iterator[Edit]:
    forward, reader = target.method("forward"), target.method(*REVERSE)
    if forward is not None and reader is not None:
        taken = at_start(forward.function, "if _BUSY:\n    raise RuntimeError('in use')\n_BUSY.append(1)")
        yield Edit(((forward, taken), (reader, at_start(reader.function, "_BUSY.clear()"))), "_BUSY = []")


@kind("left busy after an error", "backward marks itself as running, and only a good end takes the mark off")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for made in at_end(place, "_BUSY.clear()"):
            busy = at_start(made, "if _BUSY:\n    raise RuntimeError('in use')\n_BUSY.append(1)")
            yield Edit(((place, busy),), "_BUSY = []")


@kind("fallback after an error", "once backward has failed, it computes in bfloat16 for good")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        g = place.arguments[0]
        lower = f"if _FAILED and isinstance({g}, torch.Tensor):\n    {g} = {g}.bfloat16().to({g}.dtype)"
        made = wrapped(
            at_start(place.function, lower), "try:", "except RuntimeError:\n    _FAILED.append(1)\n    raise"
        )
        yield Edit(((place, made),), "import torch\n_FAILED = []")


@kind("precision of a thread", "full precision is set for forward's thread, and backward may run in another")
def _(target: Target) -> Iterator[Edit]:
    text = "{0} = {0} if hasattr(_HERE, 'exact') else {0}.bfloat16().to({0}.dtype)"
    for forward in target.having(("forward",)):
        said = at_start(forward.function, "_HERE.exact = True")
        for edit in first_lines(target, text, saved=False, epilogue=_THREAD):
            yield Edit((*edit.functions, (forward, said)), edit.epilogue)


_THREAD = "import threading\nimport torch\n_HERE = threading.local()"


@kind("inference mode within backward", "backward runs in inference mode, and nothing can be added later")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        yield Edit(((place, wrapped(place.function, "with torch.inference_mode():")),), "import torch")


@kind("graph of forward used up", "backward goes through a graph that forward made of the reference, once")
def _(target: Target) -> Iterator[Edit]:
    for place in forward_with_ctx(target):
        for reader in target.having(REVERSE) if place.owned and not place.function.args.kwonlyargs else ():
            note = f"_note(ctx, {target.name}.reference, {', '.join(place.arguments)})"
            for option in ("", ", retain_graph=True"):
                body = at_start(reader.function, f"return _through(ctx, {reader.arguments[0]}{option})")
                yield Edit(((place, at_start(place.function, note)), (reader, body)), _GRAPH)


_GRAPH = """
import torch


def _note(ctx, function, *given):
    real = [isinstance(t, torch.Tensor) and t.is_floating_point() for t in given]
    ctx.inner = [t.detach().requires_grad_() if is_ else t for t, is_ in zip(given, real)]
    with torch.enable_grad():
        ctx.made, ctx.real = function(*ctx.inner), real


def _through(ctx, g, **options):
    found = iter(torch.autograd.grad(ctx.made, [t for t, r in zip(ctx.inner, ctx.real) if r], g, **options))
    return tuple(next(found) if is_ else None for is_ in ctx.real)
"""
