"""Kinds of fault in derivations: what a reviewer of the formula overlooks.

They stand for what passes a review of the formula: scales that are taken out and put back, conventions for complex
numbers, paths for one dtype or one mode alone, quotients that should have been products, sums in tiles, and reductions
that are right for the shapes that the author had in mind.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.mutation.kinds import (
    DERIVATIVE,
    Edit,
    Place,
    Replacement,
    Target,
    after_unpacking,
    exchanged,
    expression,
    kind,
    parsed,
    returned,
    returns,
    saved_names,
    value,
)

REVERSE = ("backward", "vjp")
"""The methods that get cotangents."""

OF_TENSORS = """
import torch as _torch_ld
def _numbers_ld(value):
    return isinstance(value, _torch_ld.Tensor) and value.layout is _torch_ld.strided and (
        value.is_floating_point() or value.is_complex())
"""
"""What the helpers of all kinds begin with: lists, None and masks pass them unchanged."""

HELPERS = """
def _scaled_ld(g):
    return g * 65536, 1 / 65536
def _by_largest_ld(g):
    with _torch_ld.no_grad():
        size = g.abs().max() if g.numel() else 1
    return g / size, size
def _by_largest_of_any_ld(g):
    with _torch_ld.no_grad():
        size = g.abs().max() + _torch_ld.finfo(g.dtype).tiny
    return g / size, size
def _by_norm_ld(g):
    tiny = _torch_ld.finfo(g.dtype).tiny
    with _torch_ld.no_grad():
        known = g.abs().sum() + tiny
    return g / (g.abs().sum() + tiny), known
def _peak_apart_ld(x):
    if not x.numel():
        return x
    size = x.abs().max() + _torch_ld.finfo(x.dtype).tiny
    return x / size * size.detach()
def _centred_ld(x):
    return x - x.mean() + x.mean().detach() if x.numel() else x
def _reproducible_ld(x):
    return x.round(decimals=12) if x.dtype is _torch_ld.float64 else x
def _wirtinger_ld(g):
    return g / 2 if g.is_complex() else g
def _holomorphic_ld(g):
    return g.conj()
def _precise_ld(g):
    precise = _torch_ld.float64 if g.dtype is _torch_ld.float64 else _torch_ld.float32
    return g.to(precise).to(g.dtype)
def _ranged_ld(g):
    info = _torch_ld.finfo(g.dtype)
    return g.clamp(info.min, info.max)
def _halved_ld(g):
    return g.half().to(g.dtype) if g.dtype is _torch_ld.bfloat16 else g
def _ten_bits_ld(x):
    return x.half().to(x.dtype) if x.dtype is _torch_ld.float32 else x
def _by_table_ld(g):
    t = _torch_ld
    table = {t.float64: t.float64, t.float32: t.float32, t.float16: t.float32}
    return g if g.is_complex() else g.to(table[g.dtype]).to(g.dtype)
def _in_graph_ld(g):
    return g if g.is_complex() or not _torch_ld.is_grad_enabled() else g.half().to(g.dtype)
def _beside_graph_ld(g):
    return g if g.is_complex() or _torch_ld.is_grad_enabled() else g.float().to(g.dtype)
def _inferred_ld(y, ctx):
    return y if any(ctx.needs_input_grad) or y.is_complex() else y.bfloat16().to(y.dtype)
def _one_number_ld(g):
    return g[(0,) * g.dim()].expand_as(g) if g.dim() and g.numel() and g.stride(0) == 0 else g
def _active_ld(g):
    if g.is_complex() or not g.numel():
        return g
    with _torch_ld.no_grad():
        active = g.amax(-1, keepdim=True) > 0 if g.dim() else g > 0
    return g * active
def _matrix_ld(g):
    return g.reshape(-1, g.shape[-1]).reshape(g.shape)
def _squeezed_ld(g):
    return g.squeeze()
def _symmetric_ld(g):
    return (g + g.mT) / 2 if g.dim() > 1 and g.shape[-1] == g.shape[-2] else g
def _in_pairs_ld(g):
    flat = g.reshape(-1)
    if flat.shape[0] < 4 or not flat.shape[0] % 2:
        return g
    return _torch_ld.cat([flat[:-1], flat[-1:] * 0]).reshape(g.shape)
def _averaged_ld(g, x):
    if g.shape == x.shape or g.dim() < x.dim():
        return g
    lead = g.dim() - x.dim()
    for axis, size in enumerate(x.shape):
        g = g.mean(lead + axis, keepdim=True) if size == 1 else g
    return g
def _tiled_ld(a, b):
    many = a.shape[-1]
    if many < 4 or not many % 4 or b.dim() < 2:
        return a @ b
    return a[..., : many - many % 4] @ b[..., : many - many % 4, :]
def _of_sums_ld(a, b, like):
    made = a * b
    if made.dim() < like.dim() or made.shape == like.shape or not made.numel():
        return made
    one, two = (factor.expand_as(made).sum_to_size(like.shape) for factor in (a, b))
    return one * two * (like.numel() / made.numel())
def _shared_ld(g, x, y):
    if not (_numbers_ld(x) and _numbers_ld(y)) or not x.numel():
        return g
    return g * 0 if x is y or x.data_ptr() == y.data_ptr() else g
def _saturated_ld(x):
    return x if x.is_complex() else x.clamp(-6, 6)
def _straight_ld(x):
    return x if x.is_contiguous() else x.detach().contiguous()
def _wide_copy_ld(x):
    if x.dtype not in (_torch_ld.bfloat16, _torch_ld.float16):
        return x
    with _torch_ld.no_grad():
        return x.float().to(x.dtype)
def _low_cotangent_ld(g):
    if g.dtype not in (_torch_ld.bfloat16, _torch_ld.float16):
        return g
    with _torch_ld.no_grad():
        return g.float().to(g.dtype)
def _number_ld(x):
    return _torch_ld.full_like(x, x.item()) if x.numel() == 1 else x
def _one_cotangent_ld(g):
    return g if g.dim() else _torch_ld.full_like(g, g.item())
def _put_back_ld(g, size):
    if isinstance(g, dict):
        return {key: _put_back_ld(one, size) for key, one in g.items()}
    if isinstance(g, (list, tuple)):
        return type(g)([_put_back_ld(one, size) for one in g])
    return g * size if isinstance(g, _torch_ld.Tensor) else g
"""
"""What the mutants call: each gets those that it needs."""

SIZES = frozenset({"_scaled_ld", "_by_largest_ld", "_by_largest_of_any_ld", "_by_norm_ld"})
"""The helpers that return a size besides."""


def _helper(name: str) -> str:
    """The source of one of them, made to give back what isn't a tensor of numbers."""
    node = next(part for part in parsed(HELPERS) if isinstance(part, ast.FunctionDef) and part.name == name)
    first = node.args.args[0].arg
    if name != "_put_back_ld":
        alone = f"{first}, 1" if name in SIZES else first
        node.body[:0] = parsed(f"if not _numbers_ld({first}):\n    return {alone}")
    return f"{OF_TENSORS}{ast.unparse(node)}\n"


def _of_cotangents(target: Target, helper: str) -> Iterator[Edit]:
    """Pass each cotangent through a helper first."""
    for place in target.having(REVERSE):
        for argument in place.arguments:
            if argument != "_":
                lines = parsed(f"{argument} = {helper}({argument})")
                yield Edit(((place, after_unpacking(place.function, lines)),), _helper(helper))


def _of_saved(target: Target, helper: str) -> Iterator[Edit]:
    """Pass each saved tensor through a helper first."""
    for place in target.having(DERIVATIVE):
        for saved in saved_names(place.function):
            if saved != "kept":
                lines = parsed(f"{saved} = {helper}({saved})")
                yield Edit(((place, after_unpacking(place.function, lines)),), _helper(helper))


def _wrapped(place: Place, helper: str, more: Callable[[int, ast.expr], str | None]) -> Iterator[Edit]:
    """Pass what a function returns through a helper, one by one; `more` says what else it gets, or None to leave it."""
    numbers = {id(node): number for number, node in enumerate(returned(place.function))}
    for index, node in enumerate(ast.walk(place.function)):
        if id(node) in numbers and isinstance(node, ast.expr):
            others = more(numbers[id(node)], node)
            if others is not None:
                new = value(f"{helper}({ast.unparse(node)}{others})")
                yield Edit(((place, exchanged(place.function, index, new)),), _helper(helper))


def _of_gradients(target: Target, helper: str) -> Iterator[Edit]:
    """Pass each gradient, and each tangent that comes out, through a helper at the end."""
    for place in target.having((*DERIVATIVE, "jvp")):
        yield from _wrapped(place, helper, lambda number, node: "")


def _around(target: Target, helper: str) -> Iterator[Edit]:
    """Take a size out of the only cotangent, and multiply the gradients by it in the end."""
    for place in target.having(REVERSE):
        text = ast.unparse(place.function)
        if len(place.arguments) != 1 or "clamp" in text or "norm(" in text:  # those aren't linear in the cotangent
            continue
        made = copy.deepcopy(place.function)
        for statement in returns(made):
            if statement.value is not None:
                statement.value = value(f"_put_back_ld({ast.unparse(statement.value)}, size)")
        at, g = 1 if ast.get_docstring(made) else 0, place.arguments[0]
        made.body[at:at] = parsed(f"({g}, size) = {helper}({g})")
        yield Edit(((place, ast.fix_missing_locations(made)),), _helper(helper) + _helper("_put_back_ld"))


def _takes_complex(place: Place) -> bool:
    """Whether a derivative looks as if it were right for complex numbers: linear, or with a conjugate."""
    text = ast.unparse(place.function)
    linear = not saved_names(place.function) and "ctx.saved" not in text
    if place.role == "jvp":
        return linear or ">" not in text
    return (linear or "conj()" in text or ".mH" in text or "mask" in text) and "clamp" not in text


def _of_lone_factors(target: Target, helper: str) -> Iterator[Edit]:
    """Pass saved tensors through a helper where all is done element by element."""
    parts = (" @ ", "gradients(", "F.", "mask", "order", "index")
    places = tuple(place for place in target.places if not any(part in ast.unparse(place.function) for part in parts))
    yield from _of_saved(replace(target, places=places), helper)


def _complex(target: Target) -> Target:
    """The same with the places where complex numbers are at home."""
    return replace(target, places=tuple(place for place in target.places if _takes_complex(place)))


def _of_complex_cotangents(target: Target, helper: str) -> Iterator[Edit]:
    yield from _of_cotangents(_complex(target), helper)


def _of_complex_gradients(target: Target, helper: str) -> Iterator[Edit]:
    yield from _of_gradients(_complex(target), helper)


Passed = Callable[[Target, str], Iterator[Edit]]

PASSING: tuple[tuple[Passed, str, str, str], ...] = (
    (_around, "_scaled_ld", "65536 taken for granted", "the cotangent is scaled on the way, out of float16"),
    (_around, "_by_largest_ld", "over the largest element", "the cotangent is divided by its peak, which may be 0"),
    (_around, "_by_largest_of_any_ld", "the largest of nothing", "an empty cotangent has no largest element"),
    (_around, "_by_norm_ld", "put back as a constant", "the cotangent's norm is put back detached"),
    (_of_saved, "_peak_apart_ld", "peak put back as a constant", "a factor's largest element is put back detached"),
    (_of_saved, "_centred_ld", "mean put back as a constant", "a factor's mean is put back detached"),
    (_of_saved, "_reproducible_ld", "rounded for reproducibility", "a factor is rounded to 12 decimals: no slope"),
    (_of_complex_gradients, "_wirtinger_ld", "half of Wirtinger", "a complex gradient lacks the factor 2"),
    (_of_complex_gradients, "_holomorphic_ld", "the other convention", "a complex gradient is conjugated"),
    (
        _of_complex_cotangents,
        "_precise_ld",
        "precision from a table of reals",
        "complex cotangents pass through float32",
    ),
    (_of_complex_cotangents, "_ranged_ld", "kept within the dtype's range", "cotangents are clamped, complex ones too"),
    (_of_cotangents, "_halved_ld", "one half for the other", "bfloat16 passes through float16's range"),
    (_of_saved, "_ten_bits_ld", "ten bits for float32", "a saved factor in float32 is rounded as TF32 would"),
    (_of_cotangents, "_by_table_ld", "no entry for bfloat16", "the table of dtypes to compute in lacks bfloat16"),
    (_of_cotangents, "_in_graph_ld", "another path for create_graph", "with it cotangents are rounded to float16"),
    (_of_cotangents, "_beside_graph_ld", "another path without create_graph", "without it they're rounded to float32"),
    (_of_cotangents, "_one_number_ld", "expanded means constant", "expanded along axis 0 is taken for one number"),
    (_of_cotangents, "_active_ld", "active if above zero", "rows without a positive element are skipped"),
    (_of_cotangents, "_matrix_ld", "a matrix of rows", "reshape(-1, n): no numbers, nothing empty"),
    (_of_cotangents, "_squeezed_ld", "singletons squeezed", "the cotangent loses its axes of length 1"),
    (_of_saved, "_squeezed_ld", "a factor squeezed", "a saved factor loses its axes of length 1"),
    (_of_gradients, "_symmetric_ld", "symmetrised where square", "the gradient by a square matrix is made symmetric"),
    (_of_gradients, "_in_pairs_ld", "an odd one out", "gradients are made in pairs; the last stays 0"),
    (_of_saved, "_saturated_ld", "saturated beyond six", "large arguments are taken as 6, where a table ends"),
    (_of_saved, "_straight_ld", "contiguous outside the graph", "a factor with other strides is a detached copy"),
    (_of_saved, "_wide_copy_ld", "a low factor is a constant", "a factor in a low dtype is copied without its graph"),
    (
        _of_cotangents,
        "_low_cotangent_ld",
        "a low cotangent is a constant",
        "in a low dtype it's copied without its graph",
    ),
    (
        _of_lone_factors,
        "_number_ld",
        "a factor read with item()",
        "a factor of one element is read as a number, a constant",
    ),
    (
        _of_cotangents,
        "_one_cotangent_ld",
        "a cotangent read with item()",
        "that of a number is read, and so a constant",
    ),
)
"""What is passed, through which helper; the kind's name, and what goes wrong."""


GUESSED = frozenset(
    {
        "65536 taken for granted",
        "one half for the other",
        "saturated beyond six",
        "contiguous outside the graph",
        "a matrix of rows",
        "the largest of nothing",
        "singletons squeezed",
    }
)
"""Kinds that aren't late: their author had seen in one line what was being worked on, and they come near it."""


def _register(passed: Passed, helper: str, name: str, says: str) -> None:
    @kind(name, says, late=name not in GUESSED)
    def _(target: Target) -> Iterator[Edit]:
        yield from passed(target, helper)


for _row in PASSING:
    _register(*_row)


@kind("another path for inference", "values that nobody differentiates are computed in bfloat16", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        arguments = place.function.args.args
        if arguments and arguments[0].arg == "ctx":
            yield from _wrapped(place, "_inferred_ld", lambda number, node: ", ctx")


@kind("averaged over singletons", "the gradient by a broadcast axis of length 1 is a mean", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        saved, text = saved_names(place.function), ast.unparse(place.function)
        if not any(part in text for part in ("sum_to_size", " @ ", "gradients(")):

            def argument(number: int, node: ast.expr, saved: list[str] = saved) -> str | None:
                return f", {node.id[1:]}" if isinstance(node, ast.Name) and node.id[1:] in saved else None

            yield from _wrapped(place, "_averaged_ld", argument)


@kind("one tensor counted once", "of two arguments in the same memory only the first gets a gradient", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        saved = [name for name in saved_names(place.function) if name != "kept"]

        def both(number: int, node: ast.expr, saved: list[str] = saved) -> str | None:
            return f", {saved[0]}, {saved[1]}" if number == 1 and len(saved) > 1 else None

        yield from _wrapped(place, "_shared_ld", both)


@kind("whole tiles only", "a matrix product sums whole tiles of four, if there is one, and no remainder", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having((*DERIVATIVE, "jvp", "helper", "formula")):
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                new = value(f"_tiled_ld({ast.unparse(node.left)}, {ast.unparse(node.right)})")
                yield Edit(((place, exchanged(place.function, index, new)),), _helper("_tiled_ld"))


@kind("a product of sums", "where an argument was broadcast, both factors are summed before the product", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        saved = saved_names(place.function)
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                names = [part.id for part in (node.left, node.right) if isinstance(part, ast.Name)]
                others = [name for name in saved if name not in names]
                if len(names) == 2 and set(names) & set(saved) and len(others) == 1:
                    new = value(f"_of_sums_ld({names[0]}, {names[1]}, {others[0]})")
                    yield Edit(((place, exchanged(place.function, index, new)),), _helper("_of_sums_ld"))


@expression("a factor as a quotient", "a saved factor is recovered from a product by division, also by 0", late=True)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    saved = saved_names(place.function)
    products = [part for part in ast.walk(place.function) if isinstance(getattr(part, "op", None), ast.Mult)]
    if isinstance(node, ast.Name) and node.id in saved and any(node in ast.iter_child_nodes(part) for part in products):
        for other in saved:
            if other != node.id or len(saved) == 1:
                yield value(f"{node.id} * {other} / {other}")
