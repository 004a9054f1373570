"""Kinds of fault noted while each right Function was derived and written once more in a hurry: what goes wrong then.

Formulas and edge cases, what is saved and when, settings on ctx, dtypes and memory, and what higher orders, tangents
and batches make of a backward that is right by itself.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.mutation.kinds import (
    DERIVATIVE,
    FORMULA,
    Edit,
    Place,
    Replacement,
    Target,
    after_unpacking,
    called,
    exchanged,
    expression,
    is_method,
    kind,
    parsed,
    returned,
    returns,
    saved_names,
    value,
)

REVERSE = ("backward", "vjp")


# -- Ways to plant -----------------------------------------------------------------------------------------------------


def _replaced(place: Place, old: ast.AST, new: str, source: str = "") -> Edit:
    """One node of a function in other words."""
    index = next(index for index, node in enumerate(ast.walk(place.function)) if node is old)
    put: Replacement = parsed(new) if isinstance(old, ast.stmt) else value(new)
    return Edit(((place, exchanged(place.function, index, put)),), source)


def _at_head(place: Place, text: str, source: str = "") -> Edit:
    """Statements before all others."""
    made = copy.deepcopy(place.function)
    at = 1 if ast.get_docstring(made) else 0
    made.body[at:at] = parsed(text)
    return Edit(((place, ast.fix_missing_locations(made)),), source)


def _named(name: str, result: str) -> tuple[str, str]:
    """A function of one tensor by a kind's name, and its source; what is no ordinary tensor it hands back."""
    helper = "_" + name.replace(" ", "_")
    return helper, (
        f"def {helper}(t):\n"
        "    if not isinstance(t, torch.Tensor) or t.layout != torch.strided or not t.numel():\n"
        "        return t\n"
        f"    return {result}\n"
    )


def _on_returned(name: str, says: str, result: str) -> None:
    """Register a kind that makes something else of each returned gradient t."""
    helper, source = _named(name, result)

    def edits(target: Target) -> Iterator[Edit]:
        for place in target.having(REVERSE):
            for part in returned(place.function):
                yield _replaced(place, part, f"{helper}({ast.unparse(part)})", source)

    kind(name, says)(edits)


def _on_given(name: str, says: str, result: str, roles: Sequence[str] = REVERSE, *, saved: bool = False) -> None:
    """Register a kind that makes something else of each cotangent t; of all of them and what was saved with `saved`."""
    helper, source = _named(name, result)

    def edits(target: Target) -> Iterator[Edit]:
        for place in target.having(roles):
            names = [name for name in place.arguments if name != "_"]
            for some in [[*names, *saved_names(place.function)]] if saved else [[name] for name in names]:
                lines = parsed("\n".join(f"{name} = {helper}({name})" for name in some))
                yield Edit(((place, after_unpacking(place.function, lines)),), source)

    kind(name, says)(edits)


def _gradients(target: Target) -> int:
    """How many entries backward's tuple has, if the first and another are gradients; else 0."""
    place = target.method(*REVERSE)
    for statement in returns(place.function) if place is not None else ():
        if isinstance(statement.value, ast.Tuple):
            there = [not isinstance(part, (ast.Constant, ast.Starred)) for part in statement.value.elts]
            return len(there) if there[0] and sum(there) > 1 else 0
    return 0


def _tensors(function: ast.FunctionDef) -> list[str]:
    """The parameters that are one tensor each."""
    known = [argument for argument in function.args.args if argument.annotation is not None]
    return [argument.arg for argument in known if ast.unparse(argument.annotation) == "Tensor"]


def _saving(function: ast.FunctionDef) -> Iterator[ast.Expr]:
    """The statements that save tensors for backward."""
    for node in ast.walk(function):
        if isinstance(node, ast.Expr) and called(node.value) == "save_for_backward":
            yield node


def _settings(function: ast.FunctionDef) -> Iterator[ast.Attribute]:
    """Where a function reads the author's own attributes of ctx."""
    known = {"saved_tensors", "needs_input_grad", "grad_outputs"}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr not in known:
            if ast.unparse(node.value) == "ctx":
                yield node


# -- Formulas ----------------------------------------------------------------------------------------------------------


@expression("exponent kept", "a power is differentiated without lowering its exponent")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if not isinstance(node, ast.BinOp):
        return
    left, right = ast.unparse(node.left), ast.unparse(node.right)
    if isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant) and isinstance(node.right.value, int):
        yield value(f"({left}) ** {node.right.value + 1}")
    elif isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Name):
        product = isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult)
        constant = right in saved_names(place.function) and (product or isinstance(node.left, ast.Constant))
        if constant or left == right or left.endswith(f"* {right}"):
            yield value(f"{left} * {right} ** 2")


ANOTHER = {"sin": "cos", "cos": "sin", "tanh": "sigmoid", "erf": "erfc", "silu": "sigmoid", "exp": "expm1"}


@expression("derivative misread in a table", "an elementary function stands for its neighbour in the table")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Call) and called(node) in ANOTHER and isinstance(node.func, ast.Attribute):
        argument = node.func.value if is_method(node) else node.args[0]
        yield value(f"torch.{ANOTHER[called(node)]}({ast.unparse(argument)})")
    elif isinstance(node, ast.Attribute) and node.attr == "silu_backward":
        yield value(f"{ast.unparse(node.value)}.sigmoid_backward")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and ast.unparse(node.left) == "1":
        if isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Pow):
            y = ast.unparse(node.right.left)
            yield value(f"({y}) * (1 - {y})")  # sigmoid's by its output, for tanh's


@expression("undone on the way back", "backward divides by what forward multiplied with", DERIVATIVE)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Name) and one.id in place.arguments:
                yield value(f"{one.id} / ({ast.unparse(other)})")


@kind("averaged where it was broadcast", "a gradient is averaged over the axes of a broadcast, not summed")
def _(target: Target) -> Iterator[Edit]:
    result = "t.sum_to_size(shape) / max(1, t.numel() // max(1, torch.Size(shape).numel()))"
    source = f"def _averaged(t, shape):\n    return {result}"
    nodes: Iterator[tuple[Place, Any]] = ((p, node) for p in target.having(FORMULA) for node in ast.walk(p.function))
    for place, node in nodes:
        if called(node) == "sum_to_size" and is_method(node):
            new = f"_averaged({ast.unparse(node.func.value)}, {ast.unparse(node.args[0])})"
            yield _replaced(place, node, new, source)
        elif called(node) == "sum" and is_method(node) and node.args:
            yield _replaced(place, node, ast.unparse(node).replace(".sum(", ".mean("))


# -- Masks and edges ---------------------------------------------------------------------------------------------------


@kind("mask of what is dropped", "a mask says what to drop, and is read as what to keep")
def _(target: Target) -> Iterator[Edit]:
    helper, source = _named("turned round", "~t if t.dtype == torch.bool else t")
    for place in target.having(REVERSE):
        for name in _masks(target, place):
            yield Edit(((place, after_unpacking(place.function, parsed(f"{name} = {helper}({name})"))),), source)
        for node in ast.walk(place.function):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Gt, ast.Lt)):
                sign = "<=" if isinstance(node.ops[0], ast.Gt) else ">="
                yield _replaced(place, node, f"({ast.unparse(node.left)} {sign} {ast.unparse(node.comparators[0])})")


def _masks(target: Target, place: Place) -> list[str]:
    """What backward unpacks under a name to which forward assigns a comparison."""
    forward = target.method("setup_context", "forward")
    lines = [] if forward is None else ast.unparse(forward.function).splitlines()
    made = "".join(f" {line.split('=')[0]} " for line in lines if "<" in line or ">" in line)
    return [name for name in saved_names(place.function) if f" {name} " in made]


@kind("masked by the cotangent's sign", "the mask is made of the cotangent, not of the argument")
def _(target: Target) -> Iterator[Edit]:
    source = "def _sign_of(g, mask):\n    return g > 0 if mask.dtype == torch.bool and mask.shape == g.shape else mask"
    for place in target.having(REVERSE):
        g = place.arguments[0]
        for name in _masks(target, place):
            yield Edit(((place, after_unpacking(place.function, parsed(f"{name} = _sign_of({g}, {name})"))),), source)
        for node in ast.walk(place.function):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE)):
                if (of := ast.unparse(node.left)) in saved_names(place.function) or "saved_tensors" in of:
                    yield _replaced(place, node.left, g)


_on_returned(
    "tail of a vectorised loop",
    "a loop over groups of four elements leaves out those at the end",
    "torch.where(torch.arange(t.numel()) < t.numel() // 4 * 4, t.reshape(-1), 0).view(t.shape)",
)
_on_returned("squeezed once too often", "squeeze() takes away more axes than the one that is meant", "t.squeeze()")
_on_given("cotangent taken for uniform", "one number is all", "t.reshape(-1)[:1].expand(t.numel()).reshape(t.shape)")


@kind("rows by reshape", "the cotangent becomes rows by reshape(-1, n), for which there must be elements")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for g in _tensors(place.function)[:1]:
            yield _at_head(place, f"if {g} is not None:\n    {g} = {g}.reshape(-1, {g}.shape[-1]).reshape({g}.shape)")


@expression("written for matrices", "transposes and axes are right for two axes, and no more")
def _(node: Any, place: Place) -> Iterator[Replacement]:
    if "..." in ast.unparse(place.function):
        return
    if isinstance(node, ast.Attribute) and node.attr in ("mT", "mH"):
        yield ast.Attribute(node.value, "T", ast.Load())
    elif called(node) == "sum_to_size" and isinstance(node.func.value, ast.Name):
        yield value(f"{node.func.value.id}.sum(0)")
    elif called(node) not in ("", "view", "reshape", "expand") and "-1" in map(ast.unparse, node.args):
        yield value(f"{ast.unparse(node.func)}({', '.join(map(ast.unparse, node.args)).replace('-1', '1')})")


# -- What is saved, and when -------------------------------------------------------------------------------------------


@kind("contiguous before saved", "an argument is made contiguous, so an intermediate, and then saved")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        saved = [ast.unparse(part) for node in _saving(place.function) for part in ast.walk(node)]
        for name in _tensors(place.function):
            if name in saved:
                yield _at_head(place, f"{name} = {name}.contiguous()")


@kind("expanded before saved", "arguments are broadcast against each other before they are saved")
def _(target: Target) -> Iterator[Edit]:
    there = "try:\n        return torch.broadcast_tensors(*t)\n    except RuntimeError:\n        return t"
    for place in target.having(("forward",)):
        names = ", ".join(_tensors(place.function)[:2])
        if "," in names and place.function.args.args[0].arg == "ctx" and " @ " not in ast.unparse(place.function):
            yield _at_head(place, f"{names} = _alike({names})", f"def _alike(*t):\n    {there}")


@kind("saved for the input's sake", "nothing is saved unless the first argument needs a gradient")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward", "setup_context")) if _gradients(target) else ():
        for node in _saving(place.function):
            yield _replaced(place, node, f"if ctx.needs_input_grad[0]:\n    {ast.unparse(node)}")


@kind("result saved for the argument", "forward saves what it returns where backward's formula wants x")
def _(target: Target) -> Iterator[Edit]:
    alike = "isinstance(y, torch.Tensor) and isinstance(x, torch.Tensor) and (y.shape, y.dtype) == (x.shape, x.dtype)"
    for place in target.having(("forward", "setup_context")):
        body = place.function.body
        y = place.function.args.args[2].arg if place.role == "setup_context" else "result"
        saving: Any = next((node for node in _saving(place.function) if node in body), None)
        for argument in () if saving is None else saving.value.args:
            edit = _replaced(place, argument, f"_result_of({y}, {ast.unparse(argument)})")
            made: Any = edit.functions[0][1]
            end: Any = made.body[-1]
            if isinstance(end, ast.Return):
                last = parsed(f"result = {ast.unparse(end.value or end)}")
                made.body[-1:] = [*last, made.body.pop(body.index(saving)), *parsed("return result")]
            yield Edit(((place, made),), f"def _result_of(y, x):\n    return y if {alike} else x")


# -- Flags and settings ------------------------------------------------------------------------------------------------


@kind("frozen input ends backward", "where the first argument needs no gradient, none is made at all")
def _(target: Target) -> Iterator[Edit]:
    nothing = ", ".join(["None"] * _gradients(target))
    for place in target.having(REVERSE) if nothing else ():
        yield _at_head(place, f"if not ctx.needs_input_grad[0]:\n    return {nothing}")


@kind("zero cotangent answered early", "a cotangent of zeros is looked for, and answered with None")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        entries = [len(r.value.elts) if isinstance(r.value, ast.Tuple) else 1 for r in returns(place.function)]
        for g in _tensors(place.function)[:1]:
            nothing = ", ".join(["None"] * max(entries))
            yield _at_head(place, f"if {g} is not None and not bool({g}.any()):\n    return {nothing}")


@kind("settings freed", "backward deletes from ctx what it has read, and runs once only")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        for name in sorted({node.attr for node in _settings(place.function)}):
            made: Any = ast.parse(ast.unparse(place.function).replace(f"ctx.{name}", f"kept_{name}")).body[0]
            made.body[:0] = parsed(f"kept_{name} = ctx.{name}\ndel ctx.{name}")
            yield Edit(((place, made),))


@kind("setting hard-coded", "backward has the default of a setting, or the author's first, written out")
def _(target: Target) -> Iterator[Edit]:
    forward = target.method("forward")
    samples = next((node for node in target.body if getattr(node, "name", "") == "samples"), None)
    if forward is None:
        return
    names = [argument.arg for argument in forward.function.args.args if argument.arg != "ctx"]
    first: Any = next((node.value for node in ast.walk(samples or ast.Pass()) if isinstance(node, ast.Yield)), None)
    known = dict(zip(names, getattr(first, "elts", []), strict=False))
    known |= dict(zip(names[::-1], forward.function.args.defaults[::-1], strict=False))
    texts = {name: ast.unparse(node) for name, node in known.items()}
    for place in target.having(REVERSE):
        for node in _settings(place.function):
            if texts.get(node.attr, "").lstrip("-")[:1] in tuple("'0123456789"):
                yield _replaced(place, node, texts[node.attr])


# -- Dtypes and memory -------------------------------------------------------------------------------------------------


_on_given("kernel in float32", "backward has it", "t.float().to(t.dtype) if t.is_floating_point() else t", saved=True)
_on_returned("filled into an empty tensor", "the gradient is copied", "torch.empty(t.shape, dtype=t.dtype).copy_(t)")


@kind("strides not looked at", "a tensor's memory is read in order, as if it were contiguous")
def _(target: Target) -> Iterator[Edit]:
    source = (
        "def _read_in_order(t):\n"
        "    if not isinstance(t, torch.Tensor) or t.layout != torch.strided or t.is_contiguous():\n        return t\n"
        "    try:\n        return t.as_strided(t.shape, torch.empty(t.shape, device='meta').stride())\n"
        "    except RuntimeError:\n        return t.contiguous()\n"  # beyond its memory
    )
    for place in target.having(REVERSE):
        for name in (*place.arguments, *saved_names(place.function)):
            yield Edit(((place, after_unpacking(place.function, parsed(f"{name} = _read_in_order({name})"))),), source)


@kind("seeded for the mask", "the program's generator is seeded, so that the draws can be repeated")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward", *REVERSE)):
        if any("rand" in ast.unparse(other.function) for other in target.places):
            yield _at_head(place, "torch.manual_seed(0)")


# -- Higher orders, tangents, accumulation -----------------------------------------------------------------------------


@kind("intermediates without grad", "what backward computes before its last line is under no_grad")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(REVERSE):
        made = copy.deepcopy(place.function)
        start = next((i + 1 for i, node in enumerate(made.body) if "saved_tensors" in ast.unparse(node)), 0)
        if isinstance(made.body[-1], ast.Return) and len(made.body) - 1 > start:
            made.body[start:-1] = [ast.With([ast.withitem(value("torch.no_grad()"))], made.body[start:-1])]
            yield Edit(((place, ast.fix_missing_locations(made)),))


_on_given("cotangent taken for a constant", "backward isn't differentiated by it", "t.detach()", DERIVATIVE)
_on_given("slope without its tangent", "jvp returns the derivative alone", "torch.ones_like(t)", ("jvp",))


@kind("accumulated by hand", "a parameter's gradient is added to its .grad, and None returned")
def _(target: Target) -> Iterator[Edit]:
    source = (
        "def _accumulated(by, gradient):\n"
        "    if gradient is None or by is None or not by.is_leaf:\n        return gradient\n"
        "    with torch.no_grad():\n        by.grad = gradient + (0 if by.grad is None else by.grad)\n"
    )
    forward = target.method("forward")
    names = [] if forward is None else [a.arg for a in forward.function.args.args if a.arg != "ctx"]
    for place in target.having(REVERSE):
        for statement in returns(place.function):
            for name, part in list(zip(names, getattr(statement.value, "elts", []), strict=False))[1:]:
                if name in saved_names(place.function) and not isinstance(part, ast.Constant):
                    yield _replaced(place, part, f"_accumulated({name}, {ast.unparse(part)})", source)
