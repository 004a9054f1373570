"""Kinds of fault in what is saved, noted on ctx, declared, written and refused.

`leftovers` has those in caches, pools, threads and modes.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

from benchmarks.mutation.habits import at_start, through
from benchmarks.mutation.kinds import (
    Edit,
    Place,
    Replacement,
    Target,
    after_unpacking,
    exchanged,
    expression,
    kind,
    parsed,
    saved_names,
    value,
)
from benchmarks.mutation.leftovers import at_end, forward_with_ctx, saving, tensors_given
from benchmarks.mutation.reckoning import attributes_of_ctx
from benchmarks.mutation.usage import REVERSE, first_lines

# -- What is kept and what is said -------------------------------------------------------------------------------------


@kind("saved for its own gradient", "a tensor is saved only where its own gradient is wanted")
def _(target: Target) -> Iterator[Edit]:
    for place, index, names in saving(target):
        for name in set(names) & set(place.arguments) if place.role == "forward" else ():
            only = f"{name} if ctx.needs_input_grad[{place.arguments.index(name)}] else None"
            text = ", ".join(f"({only})" if other == name else other for other in names)
            yield Edit(((place, exchanged(place.function, index, parsed(f"ctx.save_for_backward({text})"))),))


@kind("said to be constant", "what a gradient depends on is saved as a constant")
def _(target: Target) -> Iterator[Edit]:
    for place, index, names in saving(target):
        if ": Context" in ast.unparse(place.function.args):
            text = f"ctx.save_for_backward({''.join(f'{name}, ' for name in names[:-1])}constants=({names[-1]},))"
            yield Edit(((place, exchanged(place.function, index, parsed(text))),))


@kind("kept in eight bits", "of a saved tensor with eight elements and more, only eight bits each are kept")
def _(target: Target) -> Iterator[Edit]:
    step = "({0}.detach().abs().amax() / 127 + 1e-30)"
    text = f"{{0}} = {{0}} + (({{0}} / {step}).round() * {step} - {{0}}).detach() if {{0}}.numel() > 7 else {{0}}"
    yield from first_lines(target, text, saved=True)


@kind("number read out", "a saved tensor of one element is read as a number, and has no graph")
def _(target: Target) -> Iterator[Edit]:
    text = "{0} = torch.full_like({0}, {0}.item()) if {0}.numel() == 1 else {0}"
    yield from first_lines(target, text, saved=True)


@kind("number printed", "a number on ctx has gone through a kernel's source text, with one decimal")
def _(target: Target) -> Iterator[Edit]:
    yield from attributes_of_ctx(target, "_printed({0})", _PRINTED)


_PRINTED = """

def _printed(number):
    return float(f"{number:.1f}") if isinstance(number, float) else number
"""


@kind("number changed by backward", "backward halves a number on ctx for its own use, and the next one again")
def _(target: Target) -> Iterator[Edit]:
    yield from attributes_of_ctx(target, "_halved(ctx, '{1}')", _HALVED)


_HALVED = """

def _halved(ctx, name):
    number = getattr(ctx, name)
    if isinstance(number, float):
        setattr(ctx, name, number / 2)
    return number
"""


@kind("read off another argument", "a shape or dtype is another argument's")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward", *REVERSE)):
        names = saved_names(place.function) if place.role in REVERSE else tensors_given(place)
        for index, node in enumerate(ast.walk(place.function)):
            noted = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("ctx.")
            part = node.value if isinstance(node, ast.Assign) and noted and place.role == "forward" else node
            fit = part is not node or place.role in REVERSE
            if fit and isinstance(part, ast.Attribute) and part.attr in ("shape", "dtype"):
                for other in names if ast.unparse(part.value) in names else ():
                    read: ast.expr = value(f"{other}.{part.attr}")
                    new = [ast.Assign(node.targets, read)] if isinstance(node, ast.Assign) else read
                    yield Edit(((place, exchanged(place.function, index, new)),))


@kind("arguments in another order", "setup_context, jvp or vmap takes two arguments for each other")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("setup_context",)):
        for index, node in enumerate(ast.walk(place.function)):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Tuple)
                and "inputs" in ast.unparse(node)
            ):
                for turned in _turned(node.targets[0].elts, 0):
                    new = ast.Assign([ast.Tuple(turned, ast.Store())], node.value)
                    yield Edit(((place, exchanged(place.function, index, new)),))
    for place in target.having(("jvp", "vmap")):
        for turned in _turned(place.function.args.args, 1 if place.role == "jvp" else 2):
            made = copy.deepcopy(place.function)
            made.args.args = turned
            yield Edit(((place, made),))


def _turned(parts: list[Any], first: int) -> Iterator[list[Any]]:
    """Two neighbours at a time in each other's place."""
    for at in range(first, len(parts) - 1):
        yield [*parts[:at], parts[at + 1], parts[at], *parts[at + 2 :]]


@expression("nest mixed up", "in a list or a dict of gradients one is another's, or is forgotten", REVERSE)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.ListComp):
        yield value(f"({ast.unparse(node)})[::-1]")
        yield value(f"[*({ast.unparse(node)})[:-1], None]")
        yield value(f"(lambda made: [made[-1]] * len(made))({ast.unparse(node)})")
    elif isinstance(node, ast.Dict) and len(node.values) > 1:
        yield ast.Dict(node.keys, [*node.values[1:], node.values[0]])
        for at, part in enumerate(node.values):
            inner = ast.Tuple(part.elts[::-1], ast.Load()) if isinstance(part, ast.Tuple) else ast.Constant(None)
            yield ast.Dict(node.keys, [*node.values[:at], inner, *node.values[at + 1 :]])


@kind("nothing without the other", "where one result isn't used, there is no gradient at all")
def _(target: Target) -> Iterator[Edit]:
    for place in forward_with_ctx(target):
        for reader in target.having(REVERSE):
            if len(reader.arguments) > 1:
                said = at_start(place.function, "ctx.set_materialize_grads(False)")
                nothing = f"(None,) * {len(place.arguments)}" if len(place.arguments) > 1 else "None"
                early = f"if any(g is None for g in ({', '.join(reader.arguments)})):\n    return {nothing}"
                yield Edit(((place, said), (reader, at_start(reader.function, early))))


# -- What is written and refused ---------------------------------------------------------------------------------------


@kind("grad cleared", "backward sets .grad of an argument to None before it computes")
def _(target: Target) -> Iterator[Edit]:
    yield from first_lines(target, "{0}.grad = None if {0}.is_leaf else {0}.grad", saved=True)


@kind("gradient of a recomputation", "backward's own backward reaches the argument, and leaves .grad there")
def _(target: Target) -> Iterator[Edit]:
    text = "if {0}.is_leaf and {0}.requires_grad:\n        torch.autograd.backward({0}, {0}.detach())"
    yield from first_lines(target, text, saved=True)


@kind("requires_grad switched off", "backward sets requires_grad to False on an argument, and not back")
def _(target: Target) -> Iterator[Edit]:
    text = "if {0}.is_leaf and not torch.is_grad_enabled():\n        {0}.requires_grad_(False)"
    yield from first_lines(target, text, saved=True)


@kind("axis added in place", "backward gives a tensor another axis in place, and takes it off a view only")
def _(target: Target) -> Iterator[Edit]:
    for saved in (False, True):
        yield from first_lines(target, "{0} = {0}.unsqueeze_(0)[0]", saved=saved)


@kind("overwritten where nobody asks", "the result lies in an argument that wants no gradient")
def _(target: Target) -> Iterator[Edit]:
    for place in forward_with_ctx(target):
        for name in tensors_given(place):
            fit = f"isinstance({name}, torch.Tensor) and {name}.shape == getattr(_result, 'shape', ())"
            wanted = f"ctx.needs_input_grad[{place.arguments.index(name)}]"
            text = f"if not {wanted} and {fit}:\n    {name}.data.copy_(_result.detach())"
            yield from (Edit(((place, made),), "import torch") for made in at_end(place, text))


@kind("generator put back", "forward leaves the generator as it was, and the next call draws the same")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        if any(word in ast.unparse(place.function) for word in ("rand", "draw", "bernoulli", "dropout", "seed")):
            for made in at_end(place, "torch.set_rng_state(_state)"):
                yield Edit(((place, at_start(made, "_state = torch.get_rng_state()")),), "import torch")


@kind("rounded by chance", "a gradient is rounded up or down by a generator of the module's own")
def _(target: Target) -> Iterator[Edit]:
    made = "\nimport random\n_OWN = random.Random(0)\n"
    yield from through(target, "{0} * (1 + _OWN.choice((-1, 1)) / 1024)", made)


@kind("equal shapes expected", "backward refuses a saved tensor whose shape isn't the incoming gradient's")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for what in ("shape", "dtype"):
            for name in saved_names(place.function):
                unlike = f"getattr({name}, '{what}', None) != getattr({place.arguments[0]}, '{what}', None)"
                refused = parsed(f"if {unlike}:\n    raise RuntimeError('expected alike')")
                yield Edit(((place, after_unpacking(place.function, refused)),))


@kind("parameters refused", "forward asks whether an argument's type is Tensor, which a parameter's isn't")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        for name in tensors_given(place):
            text = f"if {name} is not None and type({name}) is not torch.Tensor:\n    raise TypeError('no tensor')"
            yield Edit(((place, at_start(place.function, text)),), "import torch")
