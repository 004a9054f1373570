"""Kinds of fault that stand in public reports and fixes: what was wrong there, as a rewriting that many Functions take.

They were gathered when the battery was frozen, from trackers of libraries for losses, attention, splatting, quantisers,
spiking and reversible networks, and others; each kind says what sort of operation it was reported of.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence

from benchmarks.mutation.kinds import (
    DERIVATIVE,
    FORMULA,
    Edit,
    Place,
    Replacement,
    Swap,
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

_REVERSE = ("backward", "vjp")
_MASKS = frozenset({"mask", "kept", "within", "inside", "largest", "first"})  # how masks are called
_EXPONENTIALS = frozenset({"exp", "exp_", "tanh", "cos", "sin", "erf", "silu", "gelu", "activation_gradient"})


def _helper(name: str) -> str:
    """What the function is called that a kind's mutants call."""
    return "_" + "".join(letter if letter.isalnum() else "_" for letter in name)


def _with(name: str, text: str) -> str:
    """That function's source: of a tensor x and of what else it is given, what `text` says; all else comes back."""
    return f"""import torch
def _fit(x, y):
    both = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and not torch.is_grad_enabled()
    return both and x.shape == y.shape and x.dtype == y.dtype
def {_helper(name)}(x, *others):
    return _of(x, *others) if isinstance(x, torch.Tensor) and x.layout == torch.strided else x
def _of(x, y=None, *others):
    {text}"""


def _swapped(place: Place, old: ast.AST, new: Replacement) -> tuple[Place, ast.FunctionDef]:
    """The place, and its function with one node, found by identity, exchanged."""
    index = next(index for index, node in enumerate(ast.walk(place.function)) if node is old)
    return place, exchanged(place.function, index, new)


def _sources(function: ast.FunctionDef) -> list[ast.expr]:
    """The expressions that the returned gradients come from, in their order; not those that come several at once."""
    found = []
    for node in returned(function):
        if not isinstance(node, ast.Name):
            found.append(node)
            continue
        for part in ast.walk(function):
            if isinstance(part, ast.Assign) and not isinstance(part.value, ast.Constant):
                found += [part.value for to in part.targets if isinstance(to, ast.Name) and to.id == node.id]
    return found


def _renamed(node: ast.AST, names: Sequence[str], text: str) -> ast.expr | None:
    """A copy in which `text` stands for each of these names; None where there is none of them."""
    new = copy.deepcopy(node)
    found = [part for part in ast.walk(new) if isinstance(part, ast.Name) and part.id in names]
    for part in found:
        part.id = text.format(part.id)
    return value(ast.unparse(new)) if found else None


def _passed(name: str, says: str, text: str, *, first: bool = False) -> None:
    """Register a kind that changes a returned gradient x, by cotangent y and what was saved; or a cotangent `first`."""

    def edits(target: Target) -> Iterator[Edit]:
        for place in target.having(_REVERSE):
            saved = saved_names(place.function)
            for g in place.arguments if first else ():
                lines = parsed(f"{g} = {_helper(name)}({g})")
                yield Edit(((place, after_unpacking(place.function, lines)),), _with(name, text))
            for node in () if first or ("others" in text and not saved) else returned(place.function):
                if not isinstance(node, (ast.Dict, ast.List, ast.ListComp)):
                    given = ", ".join([ast.unparse(node), place.arguments[0], *saved])
                    yield Edit((_swapped(place, node, value(f"{_helper(name)}({given})")),), _with(name, text))

    kind(name, says)(edits)


def _helped(name: str, says: str, text: str, roles: Sequence[str] = _REVERSE) -> Callable[[Swap], None]:
    """Register what `expression` would, for replacements that call ``_made``, which is the kind's function."""

    def register(swap: Swap) -> None:
        def edits(target: Target) -> Iterator[Edit]:
            for place in target.having(roles):
                for node in ast.walk(place.function):
                    for found in swap(node, place):
                        assert isinstance(found, ast.AST)
                        new = _renamed(found, ["_made"], _helper(name))
                        yield Edit((_swapped(place, node, new),), _with(name, text))

        kind(name, says)(edits)

    return register


# -- Losses, activations, quantisers -----------------------------------------------------------------------------------

_passed(
    "first cotangent for all",
    "a loss's kernel reads one number of the cotangent, where there is one for each token",
    "return x.reshape(-1)[:1].reshape([1] * x.ndim).expand(x.shape) if x.numel() else x",
    first=True,
)
_passed(
    "logits' memory for their gradient",
    "a fused loss writes the gradient over the saved logits",
    "return next((saved.data.copy_(x) for saved in others if _fit(saved, x)), x)",
)
_passed(
    "divided by the batch",
    "a loss's gradient is the mean over examples, of what was summed or is divided already",
    "return x / max(1, len(y)) if isinstance(y, torch.Tensor) and y.ndim else x",
)
_passed(
    "clamp of -1 taken for a limit",
    "a transducer loss's clamp, which is off, clamps the gradient to [-1, 1]",
    "return x.clamp(-1, 1) if x.is_floating_point() else x",
)
_passed(
    "brought to one length",
    "a layer of differences divides its gradient by the gradient's norm, as if it were an optimizer",
    "return 0.2 * x.numel() ** 0.5 * x / torch.linalg.vector_norm(x).clamp(min=1e-12)",
)


@_helped(
    "scaled where it was saved",
    "a transducer loss multiplies its saved gradient by the cotangent in place",
    """numbers = isinstance(y, torch.Tensor) and x.dtype == y.dtype and not torch.is_grad_enabled()
    return x.mul_(y) if numbers and torch.broadcast_shapes(x.shape, y.shape) == x.shape else x * y""",
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        saved = saved_names(place.function)
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Name) and one.id in saved and not isinstance(other, ast.Constant):
                yield value(f"_made({one.id}, {ast.unparse(other)})")


@expression("one term not scaled", "one term of an alignment loss's gradient lacks the cotangent", _REVERSE)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = (_renamed(side, place.arguments, "{0}.new_ones({0}.shape)") for side in (node.left, node.right))
        if left is not None:
            yield ast.BinOp(left, node.op, node.right)
        if right is not None:
            yield ast.BinOp(node.left, node.op, right)


@_helped(
    "divided by what was multiplied",
    "a factor is got rid of by a division, as by a gate or in a focal weight: NaN where it is 0",
    """numbers = isinstance(y, torch.Tensor) and (y.is_floating_point() or y.is_complex())
    return x * y / y if numbers else x""",
    DERIVATIVE,
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for side in (node.left, node.right):
            if isinstance(side, ast.Name) and side.id in saved_names(place.function):
                yield value(f"_made({ast.unparse(node)}, {side.id})")


@_helped(
    "exponentials without a threshold",
    "a steep surrogate or a soft activation is computed by exponentials that overflow",
    "return torch.log(torch.exp(25 * x)) / 25 if x.is_floating_point() else x",
    FORMULA,
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Call) and called(node) in _EXPONENTIALS:
        new = copy.deepcopy(node)
        at = 2 if called(node) == "activation_gradient" else 0
        if new.args:
            new.args[at] = value(f"_made({ast.unparse(new.args[at])})")
        elif isinstance(new.func, ast.Attribute):
            new.func.value = value(f"_made({ast.unparse(new.func.value)})")
        yield new


@_helped(
    "masked where it lies",
    "a quantiser zeroes the cotangent itself where values were clipped",
    "return x.masked_fill_(y == 0, 0) if isinstance(y, torch.Tensor) and y.shape == x.shape else x * y",
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    g, mask = node, node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        if isinstance(node.right, ast.Compare) or getattr(node.right, "id", "") in _MASKS:
            g, mask = node.left, node.right
    elif isinstance(node, ast.Call) and called(node) == "where" and len(node.args) == 3:
        mask, g = node.args[0], node.args[1]
    if g is not mask and isinstance(g, ast.Name) and g.id in place.arguments:
        yield value(f"_made({g.id}, {ast.unparse(mask)})")


# -- Norms, attention, convolutions, rendering, and what is around a Function ------------------------------------------

_passed(
    "in the memory of an expanded cotangent",
    "a norm's kernel writes its gradient into the cotangent, of which a sum makes one number",
    """if not _fit(x, y):
        return x
    if any(size > 1 and stride == 0 for size, stride in zip(y.shape, y.stride())):
        return x.reshape(-1)[-1:].reshape([1] * x.ndim).expand(x.shape)
    return y.data.copy_(x)""",
)
_passed(
    "strides of the cotangent unread",
    "an attention kernel reads the cotangent's memory as if it were contiguous",
    """if x.is_contiguous():
        return x
    try:
        there = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    except RuntimeError:  # of a batch, say
        return x
    return x.as_strided((there,), (1,))[torch.arange(x.numel()) % there].view(x.shape)""",
    first=True,
)
_passed(
    "contiguity demanded",
    "a correlation refuses a cotangent that isn't contiguous, as that of a sum",
    "assert x.is_contiguous()\n    return x",
    first=True,
)
_passed(
    "quads only",
    "a kernel writes four elements at a time, and not the last few of a row",
    "return x * (torch.arange(x.shape[-1]) < x.shape[-1] // 4 * 4) if x.ndim else x",
)
_passed(
    "half for any low precision",
    "backward's autocast is to float16, whatever forward's was to",
    "return x.half().to(x.dtype) if x.dtype == torch.bfloat16 else x",
    first=True,
)
_passed(
    "rows of a known length",
    "a detector's head makes rows of the cotangent, and can't where there are no proposals",
    "return x.reshape(x.shape[0], -1).reshape(x.shape) if x.ndim else x",
    first=True,
)


@kind("overwritten before the next gradient", "a norm's first gradient is laid where the second reads g")
def _(target: Target) -> Iterator[Edit]:
    text = "if _fit(x, y) and y.is_contiguous():\n        y.data.copy_(x)\n    return x"
    for place in target.having(_REVERSE):
        sources = _sources(place.function)
        if len(sources) > 1:
            new = value(f"_laid_over({ast.unparse(sources[0])}, {place.arguments[0]})")
            yield Edit((_swapped(place, sources[0], new),), _with("laid over", text))


@expression("last term counted twice", "a norm subtracts a mean twice, a renderer adds its background twice")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        if not isinstance(node.right, ast.Constant):
            yield ast.BinOp(node.left, node.op, ast.BinOp(ast.Constant(2), ast.Mult(), node.right))


@_helped(
    "tree of halves",
    "a reduction for a bias halves its length, and loses elements where that is no power of two",
    """ways, lost = [[i] for i in range(x.shape[y] if x.ndim else 0)], []
    while len(ways) > 1:
        half = len(ways) // 2
        lost += sum(ways[2 * half:], [])
        ways = [ways[i] + ways[i + half] for i in range(half)]
    return x.index_fill(y, torch.tensor(lost, dtype=torch.long), 0) if lost else x""",
    FORMULA,
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if called(node) in ("sum", "mean", "sum_to_size") and isinstance(node, ast.Call):
        new = copy.deepcopy(node)
        first = ast.unparse(node.args[0]) if node.args else "0"
        if isinstance(new.func, ast.Attribute) and ast.unparse(new.func.value) != "torch":
            dim = first if first.removeprefix("-").isdigit() else "0"
            new.func.value = value(f"_made({ast.unparse(new.func.value)}, {dim})")
            yield new


@kind("last step of the batch only", "a convolution in steps overwrites the weight's gradient in each")
def _(target: Target) -> Iterator[Edit]:
    text = "return x.index_fill(0, torch.arange(x.shape[0] // 2), 0) if x.ndim else x"
    for place in target.having(_REVERSE):
        for source in _sources(place.function)[1:]:
            new = _renamed(source, place.arguments, "_last_step({0})")
            if new is not None:
                yield Edit((_swapped(place, source, new),), _with("last step", text))


@kind("opacity clamped in forward alone", "a renderer's forward clamps what backward takes as it was")
def _(target: Target) -> Iterator[Edit]:
    text = "return x.clamp(max=0.99) if x.is_floating_point() else x"
    for place in target.having(["forward"]):
        for made in returns(place.function) if "mark_dirty" not in ast.unparse(place.function) else ():
            if made.value is not None and not isinstance(made.value, (ast.Tuple, ast.List, ast.Dict)):
                new = value(f"_at_most({ast.unparse(made.value)})")
                yield Edit((_swapped(place, made.value, new),), _with("at most", text))


@kind("conjugated between layers", "a Fourier transform conjugates the gradient that it passes on")
def _(target: Target) -> Iterator[Edit]:
    if any(word in ast.unparse(place.function) for place in target.places for word in ("conj", ".mH", "is_complex")):
        for place in target.having(_REVERSE):
            for node in returned(place.function):
                new = value(f"_conjugated({ast.unparse(node)})")
                yield Edit((_swapped(place, node, new),), _with("conjugated", "return x.conj()"))


@kind("released in backward", "a reversible block lets go of what it kept, and a second backward misses it")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(_REVERSE):
        used = [node for node in ast.walk(place.function) if isinstance(node, ast.Attribute)]
        own = {node.attr for node in used if ast.unparse(node.value) == "ctx"} - {"saved_tensors", "needs_input_grad"}
        for name in sorted(own):
            made = copy.deepcopy(place.function)
            made.body = [ast.Try(made.body, [], [], parsed(f"ctx.{name} = None"))]
            yield Edit(((place, ast.fix_missing_locations(made)),))


@kind("all gradients or none", "a memory-saving layer asks that all arguments require grad, or gives none")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(_REVERSE):
        for statement in returns(place.function):
            parts = statement.value.elts if isinstance(statement.value, ast.Tuple) else []
            needed = [index for index, part in enumerate(parts) if not isinstance(part, (ast.Constant, ast.Starred))]
            if len(needed) > 1:
                every = " and ".join(f"ctx.needs_input_grad[{index}]" for index in needed)
                lines = parsed(f"if not ({every}):\n    return (None,) * {len(parts)}")
                yield Edit(((place, after_unpacking(place.function, lines)),))


@kind("saved for the first argument's sake", "a spike is saved only where its first argument requires grad")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward", "setup_context")):
        for node in ast.walk(place.function):
            call = node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, ast.Call) and called(call) == "save_for_backward" and len(call.args) > 1:
                lines = parsed(f"if ctx.needs_input_grad[0]:\n    {ast.unparse(call)}")
                yield Edit((_swapped(place, node, lines),))


@kind("copied before it was saved", "an attention layer saves contiguous copies, which are outside the graph")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward", "setup_context")):
        for node in ast.walk(place.function):
            for part in node.args if isinstance(node, ast.Call) and called(node) == "save_for_backward" else ():
                if isinstance(part, ast.Name) and part.id in place.arguments:
                    new = value(f"_contiguous({part.id})")
                    yield Edit((_swapped(place, part, new),), _with("contiguous", "return x.contiguous()"))


@kind("conversion that is none", "a parallel loss works in place on x.float(), which is x where it is float32")
def _(target: Target) -> Iterator[Edit]:
    text = "if isinstance(y, torch.Tensor) and y.is_floating_point():\n        y.float().sub_(1)\n    return x"
    for place in target.having(["forward"]):
        for made in returns(place.function) if place.arguments else ():
            if made.value is not None and not isinstance(made.value, (ast.Tuple, ast.List, ast.Dict)):
                new = value(f"_in_float({ast.unparse(made.value)}, {place.arguments[0]})")
                yield Edit((_swapped(place, made.value, new),), _with("in float", text))
