"""Kinds of fault in what a call is surrounded by: which gradients are wanted, several outputs, transforms, settings.

Each goes back to reports: paths that are taken only where some gradients aren't wanted, weights that are parameters,
outputs beside the one that is used, threads, hooks and settings that everybody shares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutation.habits import at_start, through
from benchmarks.mutation.kinds import (
    Edit,
    Place,
    Replacement,
    Target,
    expression,
    kind,
    saved_names,
)
from benchmarks.mutation.usage import REVERSE, first_lines

# -- What is wanted, and of what ---------------------------------------------------------------------------------------


@kind("one tensor, one gradient", "where two arguments are one tensor, only the first has a gradient")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        names = saved_names(place.function)
        if len(names) > 1:
            call = f"_once({{}}, {names[0]}, {names[1]})"
            yield from through(Target(target.name, (place,)), call, _ONCE)


_ONCE = """

def _once(t, one, other):
    return t * 0 if t is not None and one is other else t
"""


@kind("path of one gradient", "where a single gradient is wanted, it is a hundredth too large")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        text = ast.unparse(place.function)
        if "needs_input_grad[0]" in text and "needs_input_grad[1]" in text:
            yield from through(Target(target.name, (place,)), "_alone(ctx, {})", _ALONE)


_ALONE = """

def _alone(ctx, t):
    return t * 1.01 if t is not None and sum(ctx.needs_input_grad) == 1 else t
"""


@kind("path with a graph", "where a graph of the gradient is wanted, the gradient is a hundredth too large")
def _(target: Target) -> Iterator[Edit]:
    yield from through(target, "_with_graph({})", _WITH_GRAPH)


_WITH_GRAPH = """
import torch


def _with_graph(t):
    return t * 1.01 if t is not None and torch.is_grad_enabled() else t
"""


@kind("handle of a thread", "backward uses what forward left to its own thread")
def _(target: Target) -> Iterator[Edit]:
    forward, backward = target.method("forward"), target.method(*REVERSE)
    if forward is not None and backward is not None:
        opened = at_start(forward.function, "_HERE.handle = 1")
        yield Edit(((forward, opened), (backward, at_start(backward.function, "_HERE.handle"))), _HANDLE)


_HANDLE = """
import threading

_HERE = threading.local()
"""


@kind("draws in backward", "backward takes a random number that everybody else misses")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "torch.rand(1)", saved=False)


@kind("all gradients expected", "backward refuses where one of the first two arguments wants no gradient")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        text = ast.unparse(place.function)
        if "needs_input_grad[0]" in text and "needs_input_grad[1]" in text:
            refused = "if not all(ctx.needs_input_grad[:2]):\n    raise RuntimeError('no room for a gradient')"
            yield Edit(((place, at_start(place.function, refused)),))


@kind("gradient left on a parameter", "the gradient of a parameter lies on it, and backward returns none")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in saved_names(place.function)[:2]:
            yield from through(Target(target.name, (place,)), f"_to_main({{}}, {name})", _MAIN_GRAD)


_MAIN_GRAD = """
import torch


def _to_main(t, weight):
    if t is None or not isinstance(weight, torch.nn.Parameter) or weight.shape != t.shape:
        return t
    weight.main_grad = t.detach()
    return None
"""


@kind("forward drifts", "from the fourth call on, forward's result is a hundredth too large")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is not None:
        yield from through(Target(target.name, (place,)), "_drifted({})", _DRIFTED, ("forward",))


_DRIFTED = """

_RUNS = []


def _drifted(t):
    _RUNS.append(1)
    return t * 1.01 if len(_RUNS) > 3 and t.is_floating_point() else t
"""


@kind("hook on an argument", "each call of forward puts a hook on its argument, and each hook clips the gradient")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    if place is None:
        return
    for name in place.arguments[:2]:
        hooked = f"{name}.register_hook(lambda g: g.clamp(-0.5, 0.5))"
        text = f"if isinstance({name}, torch.Tensor) and {name}.requires_grad:\n    {hooked}"
        yield Edit(((place, at_start(place.function, text)),), "import torch")


@kind("settings changed", "backward leaves a setting of the whole process as it needs it")
def _(target: Target) -> Iterator[Edit]:
    for text in (
        "torch.set_float32_matmul_precision('high')",
        "torch.use_deterministic_algorithms(True, warn_only=True)",
    ):
        yield from first_lines(target, text, saved=False)


# -- Batches -----------------------------------------------------------------------------------------------------------


@expression("axis 0 taken for none", "vmap asks whether a batch's axis is true, which 0 isn't", ("vmap",))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
        if node.comparators[0].value is None and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            yield ast.UnaryOp(ast.Not(), node.left) if isinstance(node.ops[0], ast.Is) else node.left
