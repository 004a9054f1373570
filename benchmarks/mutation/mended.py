"""Kinds of fault that were reported of published Functions, or mended in them: each a report, told of any Function.

They come from the trackers of libraries of fused kernels, quantisation, sparse operations, checkpointing and
differentiation, in the order in which a search found them, and not for being easy or hard to find.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

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
    returns,
    saved_names,
    value,
)

_BACK = ("backward", "vjp")

# -- What a cotangent is taken for -------------------------------------------------------------------------------------


def _of_cotangents(target: Target, made: str, epilogue: str = "") -> Iterator[Edit]:
    """Put an expression of G in the place of one cotangent G after the other, where it is a tensor."""
    for place in target.having(_BACK):
        for name in [name for name in place.arguments if name.strip("_")]:
            line = f"{name} = {made.replace('G', name)} if isinstance({name}, torch.Tensor) else {name}"
            yield Edit(((place, after_unpacking(place.function, parsed(line))),), f"import torch\n{epilogue}")


@kind("strides unread", "a kernel reads the incoming gradient's memory in order, whatever its strides are")
def _(target: Target) -> Iterator[Edit]:
    return _of_cotangents(target, "_in_order(G)", _IN_ORDER)


_IN_ORDER = """
def _in_order(g):
    try:
        there = g.untyped_storage().nbytes() // g.element_size() - g.storage_offset()
        return g.as_strided((there,), (1,))[torch.arange(g.numel()) % there].view(g.shape)
    except (RuntimeError, NotImplementedError):
        return g
"""


@kind("rows by minus one", "the length of a row is left to reshape, which can't tell it where there are no rows")
def _(target: Target) -> Iterator[Edit]:
    return _of_cotangents(target, "(G.reshape(G.shape[0], -1).reshape(G.shape) if G.dim() else G)")


@kind("pointer stands still", "every row reads the first row's incoming gradient: its pointer isn't moved on")
def _(target: Target) -> Iterator[Edit]:
    return _of_cotangents(target, "(G[:1].expand_as(G) if G.dim() else G)")


@kind("loss taken for the last", "the incoming gradient is taken to be 1, as if nothing followed the Function")
def _(target: Target) -> Iterator[Edit]:
    return _of_cotangents(target, "torch.ones_like(G)")


@kind("unpacked from the graph", "the incoming gradient is computed with without its graph")
def _(target: Target) -> Iterator[Edit]:
    cut = "def _cut(g):\n    with torch.no_grad():\n        return g * 1"
    return _of_cotangents(target, "_cut(G)", cut)


@kind("none for an unused output", "cotangents of unused outputs come as None, for which backward isn't ready")
def _(target: Target) -> Iterator[Edit]:
    back, place = target.method(*_BACK), _with_ctx(target)
    if back is not None and place is not None and len(back.arguments) > 1:
        yield Edit(((place, after_unpacking(place.function, parsed("ctx.set_materialize_grads(False)"))),))


@kind("gradient over gradient", "the first gradient is written over the incoming one, which is read again")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(_BACK):
        first = next((part.id for part in returned(place.function) if isinstance(part, ast.Name)), "")
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == first and place.arguments:
                if isinstance(node.value, ast.Constant):
                    continue
                over = parsed(f"_write({place.arguments[0]}, {first})")
                yield Edit(((place, exchanged(place.function, index, [node, *over])),), _WRITE)


_WRITE = """
import torch


def _write(place, made):
    both = isinstance(place, torch.Tensor) and isinstance(made, torch.Tensor) and place.is_contiguous()
    if not both or place.shape != made.shape or place.dtype != made.dtype:
        return
    if not any(torch._C._functorch.is_functorch_wrapped_tensor(one) for one in (place, made)):
        with torch.autograd._unsafe_preserve_version_counter(place):  # as a kernel, which no version counts
            place.detach().copy_(made.detach())
"""


@kind("argument as output buffer", "forward writes its result over a contiguous argument too, and doesn't say so")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is not None and place.arguments:
        yield from _at_return(place, ("_write", place.arguments[0]), _WRITE)


@expression("buffer not zeroed", "what is added to was allocated, and not set to zero", (*DERIVATIVE, "helper"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) in ("zeros", "zeros_like", "new_zeros"):
        yield value(ast.unparse(node).replace(called(node), called(node).replace("zeros", "empty"), 1))


# -- What is kept from forward to backward -----------------------------------------------------------------------------


def _with_ctx(target: Target) -> Place | None:
    """The method that fills ctx: setup_context, or forward where there is none."""
    return target.method("setup_context", "forward")


def _at_return(place: Place, call: tuple[str, str], epilogue: str = "") -> Iterator[Edit]:
    """Hand the result to a call at the only return."""
    ends = list(returns(place.function))
    if len(ends) == 1 and ends[0].value is not None:
        function, first = call
        text = f"made_ = {ast.unparse(ends[0].value)}\n{function}({first}, made_)\nreturn made_"
        yield Edit(((place, exchanged(place.function, _index(place, ends[0]), parsed(text))),), epilogue)


def _index(place: Place, wanted: ast.AST) -> int:
    return next(index for index, node in enumerate(ast.walk(place.function)) if node is wanted)


@kind("output on ctx", "the output is an attribute of ctx, a cycle that no one collects")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is not None and target.method("setup_context") is None:
        yield from _at_return(place, ("ctx.__setattr__", "'result'"))


@kind("cleared after use", "what ctx holds is cleared when backward is done, though it may run again")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(_BACK):
        end, nodes = place.function.body[-1], list(ast.walk(place.function))
        held = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ctx"}
        held = held - {"saved_tensors", "needs_input_grad"} if isinstance(end, ast.Return) and end.value else set()
        for name in sorted(held):
            text = f"result_ = {ast.unparse(end.value)}\nctx.{name} = None\nreturn result_"
            yield Edit(((place, exchanged(place.function, _index(place, end), parsed(text))),))


@kind("self as context", "what is saved lies on the Function, where the next call overwrites it")
def _(target: Target) -> Iterator[Edit]:
    place, back = _with_ctx(target), target.method(*_BACK)
    if place is not None and back is not None and saved_names(back.function):
        texts = [ast.unparse(of.function) for of in (place, back)]
        texts[0] = texts[0].replace("ctx.save_for_backward(", "_keep(ctx, ")
        texts[1] = texts[1].replace("ctx.saved_tensors", "_SELF['saved']")
        made = [node for text in texts for node in parsed(text) if isinstance(node, ast.FunctionDef)]
        yield Edit(((place, made[0]), (back, made[1])), _SELF)


_SELF = """
_SELF = {}


def _keep(ctx, *saved, constants=()):
    ctx.save_for_backward(*saved, **({"constants": constants} if constants else {}))
    _SELF["saved"] = (*saved, *constants)
"""


def _saves(function: ast.FunctionDef) -> Iterator[tuple[ast.Call, ast.Name]]:
    """The names that are handed to save_for_backward."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and called(node) == "save_for_backward":
            yield from ((node, part) for part in node.args if isinstance(part, ast.Name))


@kind("copy kept", "a copy of the argument is saved, which has no place in the graph")
def _(target: Target) -> Iterator[Edit]:
    place = _with_ctx(target)
    for _, part in _saves(place.function) if place is not None else ():
        if place.role == "forward" and part.id not in place.arguments:
            continue
        new = value(f"{part.id}.clone() if isinstance({part.id}, torch.Tensor) else {part.id}")
        yield Edit(((place, exchanged(place.function, _index(place, part), new)),), "import torch")


@kind("output taken for input", "what backward takes for its argument is the output, which has the same shape")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is None or target.method("setup_context") is not None:
        return
    ends = list(returns(place.function))
    for call, part in _saves(place.function):
        statement = next((node for node in place.function.body if getattr(node, "value", None) is call), None)
        if part.id in place.arguments and statement is not None and len(ends) == 1 and ends[0].value is not None:
            saved = [f"_alike(made_, {part.id})" if other is part else ast.unparse(other) for other in call.args]
            text = f"made_ = {ast.unparse(ends[0].value)}\nctx.save_for_backward({', '.join(saved)})\nreturn made_"
            made = exchanged(place.function, _index(place, ends[0]), parsed(text))
            made.body = [node for node in made.body if ast.unparse(node) != ast.unparse(statement)] or made.body
            yield Edit(((place, made),), _ALIKE)


_ALIKE = """
def _alike(made, given):
    return made if getattr(made, "shape", 0) == getattr(given, "shape", 1) else given
"""


@kind("mask of another state", "backward draws another mask, since the state of the generator wasn't kept")
def _(target: Target) -> Iterator[Edit]:
    place, back = target.method("forward"), target.method(*_BACK)
    if place is None or back is None or not any(called(node).startswith("rand") for node in ast.walk(place.function)):
        return
    again = "import torch\n\n\ndef _again(mask):\n    return (torch.rand(mask.shape) < 0.5).to(mask.dtype)"
    for name in saved_names(back.function):
        yield Edit(((back, after_unpacking(back.function, parsed(f"{name} = _again({name})"))),), again)


def _of_gradients(target: Target, made: str, places: Sequence[int], epilogue: str = "") -> Iterator[Edit]:
    """Put an expression of G in the place of one returned gradient G after the other."""
    for place in target.having(_BACK):
        parts = list(returned(place.function))
        for part in [parts[index] for index in places if index < len(parts)]:
            new = value(made.replace("G", f"({ast.unparse(part)})"))
            yield Edit(((place, exchanged(place.function, _index(place, part), new)),), epilogue)


@kind("by way of single", "a gradient is made in the default dtype, and the engine casts it back")
def _(target: Target) -> Iterator[Edit]:
    single = "import torch\n\n\ndef _single(g):\n    return g.float() if getattr(g, 'dtype', 0) is torch.float64 else g"
    return _of_gradients(target, "_single(G)", range(9), single)


@kind("none for turned arguments", "an argument that isn't contiguous is copied, and the copy asks for no gradient")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is None or target.method("setup_context") is not None or not place.arguments:
        return
    line = parsed(f"ctx.in_order = getattr({place.arguments[0]}, 'is_contiguous', bool)()")
    for edit in _of_gradients(target, "(G if ctx.in_order else None)", (0,)):
        yield Edit((*edit.functions, (place, after_unpacking(place.function, line))))


@kind("all wait for the first", "no gradient is computed where the first argument needs none")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(_BACK):
        ends = [end.value for end in returns(place.function) if isinstance(end.value, ast.Tuple)]
        if ends and len(list(returned(place.function))) > 1:
            lines = parsed(f"if not ctx.needs_input_grad[0]:\n    return (None,) * {len(ends[-1].elts)}")
            yield Edit(((place, after_unpacking(place.function, lines)),))


# -- What is computed --------------------------------------------------------------------------------------------------


@kind("backward casts for itself", "products in backward are cast to a dtype of its own choice, not to forward's")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(_BACK):
        nodes = list(ast.walk(place.function))
        if any(isinstance(node, ast.MatMult) or called(node) in ("mm", "matmul", "linear") for node in nodes):
            made = copy.deepcopy(place.function)
            (block,) = parsed("with torch.autocast('cpu', dtype=torch.bfloat16):\n    pass")
            assert isinstance(block, ast.With)
            block.body, made.body = made.body, [block]
            yield Edit(((place, ast.fix_missing_locations(made)),), "import torch")


@expression("let through whole", "the gradient isn't masked where forward clipped or dropped", (*_BACK, "helper"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) == "where" and isinstance(node, ast.Call) and len(node.args) == 3:
        yield node.args[1]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            told = isinstance(one, ast.Compare) or any(word in ast.unparse(one) for word in _MASKS)
            if told and not isinstance(one, ast.BinOp):
                yield other


_MASKS = ("mask", "kept", "within", "inside", "~", "largest")


@expression("repeats overwrite", "of gradients for the same place the last one stays, and they aren't added up")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    text = ast.unparse(node) if isinstance(node, ast.Call) else ""
    for adds, puts in (("index_add", "index_copy"), ("scatter_add", "scatter")):
        if called(node) == adds:
            yield value(text.replace(adds, puts))
    if called(node) == "sparse_coo_tensor":
        yield value(f"{text[:-1]}, is_coalesced=True)")


@expression("one of those that share", "of what was broadcast only the first use is counted", (*_BACK, "helper"))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        whole, to = ast.unparse(node.func.value), ast.unparse(node.args[0])
        if called(node) == "sum_to_size":
            yield value(f"({whole})[(slice(1),) * (({whole}).dim() - len({to}))].sum_to_size({to})")
        elif called(node) == "sum" and to == "0":
            yield value(f"({whole})[:1].sum(0)")


@kind("tangent lost", "jvp goes on before the tangent is there: it is zero")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("jvp",)):
        for part in returned(place.function):
            new = value(f"0 * ({ast.unparse(part)})")
            yield Edit(((place, exchanged(place.function, _index(place, part), new)),))
