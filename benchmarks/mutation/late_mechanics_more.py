"""Kinds of fault in what Functions keep between calls, draw and compute again: late_mechanics, continued."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

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
    saved_names,
    value,
)
from benchmarks.mutation.late_mechanics import (
    REVERSE,
    _arguments,
    _around,
    _index,
    _inserted,
    _names,
    _nothing,
    _saving,
    _with,
    _wrapped,
)

DRAWS = frozenset({"rand", "rand_like", "randn", "randn_like", "bernoulli", "bernoulli_", "dropout", "randint"})

# -- What stays between calls ------------------------------------------------------------------------------------------


@kind("gradient kept on ctx", "the first gradient serves when the graph is run again", late=True)
def _(target: Target) -> Iterator[Edit]:
    epilogue = (
        "def _kept(ctx, name, made):\n    if getattr(ctx, name, None) is None:\n        setattr(ctx, name, made)\n"
        "    return getattr(ctx, name)"
    )
    for place in target.having(("backward",)):
        for made in _wrapped(place, "_kept(ctx, 'kept_{index}', {part})"):
            yield Edit(((place, made),), epilogue)


@kind("sums on ctx", "gradients are added into a buffer that stays on ctx", late=True)
def _(target: Target) -> Iterator[Edit]:
    epilogue = (
        "def _summed(ctx, name, made):\n    known = getattr(ctx, name, None)\n"
        "    total = made if known is None or made is None else known + made\n"
        "    setattr(ctx, name, total)\n    return total"
    )
    for place in target.having(("backward",)):
        for made in _wrapped(place, "_summed(ctx, 'total_{index}', {part})"):
            yield Edit(((place, made),), epilogue)


@kind("constants by shape", "zeros and the like come from a cache that knows no dtype", late=True)
def _(target: Target) -> Iterator[Edit]:
    epilogue = (
        "_constants = {}\ndef _constant(name, made):\n    return _constants.setdefault((name, tuple(made.shape)), made)"
    )
    makers = {"zeros", "ones", "zeros_like", "ones_like", "new_zeros", "new_ones", "arange", "full", "full_like", "eye"}
    for place in target.having((*REVERSE, "helper", "forward")):
        for node in ast.walk(place.function):
            if called(node) in makers:
                new = value(f"_constant('{called(node)}', {ast.unparse(node)})")
                yield Edit(((place, _with(place, node, new)),), epilogue)


@kind("taken off ctx", "an attribute is taken off ctx as backward reads it", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("backward",)):
        read = [
            node
            for node in ast.walk(place.function)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ctx"
        ]
        names = [node.attr for node in read]
        for node in read:
            if node.attr not in ("saved_tensors", "needs_input_grad") and names.count(node.attr) == 1:
                new = value(f"ctx.__dict__.pop('{node.attr}', None)")
                yield Edit(((place, _with(place, node, new)),))


def _stored(target: Target, put: str, got: str, epilogue: str) -> Iterator[Edit]:
    """What is saved goes to a place of the module besides, and backward reads it there."""
    place, back = target.method("setup_context", "forward"), target.method("backward")
    if place is None or back is None or target.method("double_backward", "jvp") is not None:
        return
    calls = [node for node in ast.walk(place.function) if called(node) == "save_for_backward"]
    reads = [n for n in ast.walk(back.function) if isinstance(n, ast.Attribute) and n.attr == "saved_tensors"]
    if len(calls) != 1 or len(reads) != 1 or not isinstance(calls[0], ast.Call) or calls[0].keywords:
        return
    args = ", ".join(ast.unparse(part) for part in calls[0].args)
    parent = next(n for n in ast.walk(place.function) if isinstance(n, ast.Expr) and n.value is calls[0])
    lines = parsed(f"{ast.unparse(parent)}\n{put.format(args=f'({args},)')}")
    before = exchanged(place.function, _index(place.function, parent), lines)
    after = exchanged(back.function, _index(back.function, reads[0]), value(got))
    yield Edit(((place, before), (back, after)), epilogue)


@kind("a stack of calls", "what is saved lies on a stack, whatever the order", late=True)
def _(target: Target) -> Iterator[Edit]:
    yield from _stored(target, "_pending.append({args})", "_pending.pop()", "_pending = []")


@kind("a queue of calls", "what is saved goes through a queue, first in, first out", late=True)
def _(target: Target) -> Iterator[Edit]:
    yield from _stored(target, "_waiting.append({args})", "_waiting.pop(0)", "_waiting = []")


@kind("kept by thread", "what is saved is found in forward's thread only", late=True)
def _(target: Target) -> Iterator[Edit]:
    epilogue = (
        "import threading\n_local = threading.local()\n"
        "def _put(ctx, kept):\n    table = _local.__dict__.setdefault('table', [])\n"
        "    ctx.place = len(table)\n    table.append(kept)"
    )
    yield from _stored(target, "_put(ctx, {args})", "_local.table[ctx.place]", epilogue)


def _of_saved(place: Place) -> Iterator[tuple[ast.expr, list[str]]]:
    """Expressions of backward that depend on what was saved and on no cotangent, with the tensors' names."""
    names = saved_names(place.function)
    wrong = {"ctx"} | set(place.arguments)
    for node in ast.walk(place.function):
        if isinstance(node, ast.Assign):
            wrong |= {part for at in node.targets for part in _names(at)} - set(names)
    for node in ast.walk(place.function):
        if isinstance(node, (ast.BinOp, ast.Call)) and not _names(node) & wrong:
            used = sorted(_names(node) & set(names))
            if used and not any(isinstance(part, ast.Lambda) for part in ast.walk(node)):
                yield node, used


@kind("made once for a graph", "a factor is kept on ctx, without a graph if none was needed", late=True)
def _(target: Target) -> Iterator[Edit]:
    epilogue = (
        "def _factor(ctx, name, made):\n    if not hasattr(ctx, name):\n        setattr(ctx, name, made())\n"
        "    return getattr(ctx, name)"
    )
    for place in target.having(("backward",)):
        for number, (node, _names_used) in enumerate(_of_saved(place)):
            new = value(f"_factor(ctx, 'factor_{number}', lambda: {ast.unparse(node)})")
            yield Edit(((place, _with(place, node, new)),), epilogue)


@kind("known by address and version", "a factor is cached by address and version", late=True)
def _(target: Target) -> Iterator[Edit]:
    epilogue = (
        "_known = {}\ndef _known_by(tensors, made):\n    try:\n"
        "        key = tuple((t.data_ptr(), t._version, tuple(t.shape), t.stride(), t.dtype) for t in tensors)\n"
        "    except (RuntimeError, AttributeError):\n        return made()\n"
        "    if key not in _known:\n        _known[key] = made()\n    return _known[key]"
    )
    for place in target.having(("backward",)):
        for node, used in _of_saved(place):
            new = value(f"_known_by([{', '.join(used)}], lambda: {ast.unparse(node)})")
            yield Edit(((place, _with(place, node, new)),), epilogue)


# -- Randomness --------------------------------------------------------------------------------------------------------


@kind("draws in a fork", "the random state is forked, and the same afterwards", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        if any(called(node) in DRAWS for node in ast.walk(place.function)):
            forked = _around(place.function, "torch.random.fork_rng(devices=[])")
            yield Edit(((place, forked),), "import torch")


@kind("noise by shape", "noise is drawn once for a shape", late=True)
def _(target: Target) -> Iterator[Edit]:
    epilogue = "_noise = {}\ndef _noise_of(made):\n    return _noise.setdefault((tuple(made.shape), made.dtype), made)"
    for place in target.having(("forward", "helper")):
        for node in ast.walk(place.function):
            if called(node) in DRAWS - {"randint", "bernoulli_"}:
                new = value(f"_noise_of({ast.unparse(node)})")
                yield Edit(((place, _with(place, node, new)),), epilogue)


# -- Recomputing -------------------------------------------------------------------------------------------------------


def _recomputing(target: Target, name: str, inside: str) -> Iterator[Edit]:
    """Backward runs forward again on what was saved, where that is every argument."""
    place, back = target.method("forward"), target.method("backward")
    if place is None or back is None or place.function.args.kwonlyargs or place.function.args.vararg is not None:
        return
    if target.method("setup_context", "double_backward") is not None or len(back.arguments) != 1:
        return
    for call in _saving(place):
        if [ast.unparse(part) for part in call.args] == place.arguments and not call.keywords:
            made = copy.deepcopy(back.function)
            made.body = parsed(f"return {name}(ctx, ctx.saved_tensors, {back.arguments[0]})")
            epilogue = (
                f"import types\nimport torch\ndef {name}(ctx, xs, g):\n"
                "    idle = types.SimpleNamespace(save_for_backward=lambda *a: None, "
                "needs_input_grad=ctx.needs_input_grad)\n"
                "    with torch.enable_grad():\n" + inside.replace("FORWARD", f"{target.name}.forward")
            )
            yield Edit(((back, ast.fix_missing_locations(made)),), epilogue)


@kind("recomputed apart", "forward is run again on detached copies", late=True)
def _(target: Target) -> Iterator[Edit]:
    yield from _recomputing(
        target,
        "_again",
        "        xs = [x.detach().requires_grad_() for x in xs]\n        y = FORWARD(idle, *xs)\n"
        "        return torch.autograd.grad(y, xs, g, create_graph=torch.is_grad_enabled())",
    )


@kind("recomputed into .grad", "forward is run again, and .backward() called", late=True)
def _(target: Target) -> Iterator[Edit]:
    yield from _recomputing(
        target,
        "_into",
        "        for x in xs:\n            x.requires_grad_() if x.is_leaf else x.retain_grad()\n"
        "        FORWARD(idle, *xs).backward(g)\n        return tuple(x.grad for x in xs)",
    )


# -- Arguments and results ---------------------------------------------------------------------------------------------


@kind("zeros like its neighbour", "a missing cotangent becomes zeros like another", late=True)
def _(target: Target) -> Iterator[Edit]:
    first, back = target.method("setup_context", "forward"), target.method("backward")
    if first is None or back is None or len(back.arguments) < 2:
        return
    before = _inserted(first.function, "ctx.set_materialize_grads(False)")
    one, two = back.arguments[:2]
    for a, b in ((one, two), (two, one)):
        text = f"if {a} is None:\n    {a} = torch.zeros_like({b})\nif {b} is None:\n    {b} = torch.zeros_like({a})"
        yield Edit(((first, before), (back, _inserted(back.function, text))), "import torch")


@kind("one missing, none made", "one cotangent missing, no gradient is made", late=True)
def _(target: Target) -> Iterator[Edit]:
    first, back, nothing = target.method("setup_context", "forward"), target.method("backward"), _nothing(target)
    if first is None or back is None or len(back.arguments) < 2 or not nothing:
        return
    before = _inserted(first.function, "ctx.set_materialize_grads(False)")
    for name in back.arguments:
        text = f"if {name} is None:\n    return {nothing}"
        yield Edit(((first, before), (back, _inserted(back.function, text))))


@kind("strides of the argument", "a contiguous cotangent is read with another's strides", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("backward",)):
        for g in _arguments(place)[:1]:
            for x in saved_names(place.function):
                test = f"{x} is not None and {x}.shape == {g}.shape and {g}.is_contiguous() and {x}.numel() > 1"
                text = f"if {test} and sorted({x}.stride()) == sorted({g}.stride()):\n"
                lines = parsed(f"{text}    {g} = {g}.as_strided({g}.shape, {x}.stride())")
                yield Edit(((place, after_unpacking(place.function, lines)),))


@kind("constant beside a frozen one", "saved detached where its neighbour needs no gradient", late=True)
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is None or place.function.args.args[0].arg != "ctx":
        return
    for call in _saving(place):
        named = [part for part in call.args if isinstance(part, ast.Name) and part.id in place.arguments]
        for part in named:
            for other in named:
                if part is not other:
                    at, x = place.arguments.index(other.id), part.id
                    new = value(f"{x} if {x} is None or ctx.needs_input_grad[{at}] else {x}.detach()")
                    yield Edit(((place, _with(place, part, new)),))


@kind("wide for half", "half precision becomes float32, and stays so", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        for x in place.arguments[:1]:
            half = f"{x} = {x}.float() if {x}.dtype in (torch.float16, torch.bfloat16) else {x}"
            text = f"if isinstance({x}, torch.Tensor):\n    {half}"
            yield Edit(((place, _inserted(place.function, text)),), "import torch")


@expression("merged twice", "a line that changes what it reads runs twice", REVERSE, late=True)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.AugAssign):
        yield [node, copy.deepcopy(node)]
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        if isinstance(node.value, (ast.BinOp, ast.Call, ast.IfExp)) and node.targets[0].id in _names(node.value):
            yield [node, copy.deepcopy(node)]
