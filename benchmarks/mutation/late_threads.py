"""Kinds of fault that users of custom Functions bring to forums and issue trackers, asking why training goes wrong.

Misuse of ctx, quick fixes for an error message, state that outlives a call, and shortcuts that hold for one gradient.
"""

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
    expression,
    kind,
    parsed,
    saved_names,
    value,
)
from benchmarks.mutation.kinds import returns as own_returns


def _entering(name: str, says: str, text: str) -> None:
    """Register a kind that puts each cotangent through a function of one's own, at the top of backward."""
    helper = text.split("(")[0].removeprefix("def ")

    @kind(name, says, late=True)
    def _(target: Target) -> Iterator[Edit]:
        for place in target.having(("backward", "vjp")):
            for argument in place.arguments:
                made = after_unpacking(place.function, parsed(f"{argument} = {helper}({argument})"))
                yield Edit(((place, made),), f"import torch\n\n{text}")


def _leaving(name: str, says: str, text: str) -> None:
    """Register a kind that puts each gradient that backward returns through a function of one's own."""
    helper = text.split("(")[0].removeprefix("def ")

    @kind(name, says, late=True)
    def _(target: Target) -> Iterator[Edit]:
        for place in target.having(("backward", "vjp")):
            yield Edit(((place, _wrapped(place.function, f"{helper}(GRAD)")),), f"import torch\n\n{text}")


def _wrapped(function: ast.FunctionDef, template: str) -> ast.FunctionDef:
    """A copy where each gradient that is returned stands in place of GRAD, and its place among them of PLACE."""
    made = copy.deepcopy(function)
    for statement in own_returns(made):
        several = isinstance(statement.value, ast.Tuple)
        parts = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
        new = []
        for index, part in enumerate(parts):
            if (
                part is None
                or isinstance(part, (ast.Constant, ast.Starred))
                or (not several and "," in ast.unparse(part))
            ):
                new.append(part)
            else:
                new.append(value(template.replace("GRAD", f"{ast.unparse(part)}").replace("PLACE", str(index))))
        if several:
            statement.value = ast.Tuple([part for part in new if part is not None], ast.Load())
        else:
            statement.value = new[0]
    return ast.fix_missing_locations(made)


def _saving(target: Target) -> Iterator[tuple[Place, ast.Call, int, Place, int]]:
    """Where tensors are saved, the call and its number in the walk; where they are read, and the number there."""
    reader = target.method("backward", "vjp")
    for place in target.having(("forward", "setup_context")):
        for index, node in enumerate(ast.walk(place.function)):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "ctx.save_for_backward" or node.keywords:
                continue
            if reader is None or not node.args or any(isinstance(part, ast.Starred) for part in node.args):
                continue
            for at, inner in enumerate(ast.walk(reader.function)):
                if isinstance(inner, ast.Attribute) and inner.attr == "saved_tensors":
                    yield place, node, index, reader, at
                    break


def _put(function: ast.FunctionDef, index: int, text: str) -> ast.FunctionDef:
    """A copy with an expression in place of the node of this number."""
    made = copy.deepcopy(function)
    old = list(ast.walk(made))[index]
    new = value(text)

    class Exchange(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if node is old:
                return new
            self.generic_visit(node)
            return node

    Exchange().visit(made)
    return ast.fix_missing_locations(made)


def _stashed(name: str, says: str, write: str, read: str, epilogue: str) -> None:
    """Register a kind that keeps what is saved somewhere else: SAVED stands for the tuple."""

    @kind(name, says, late=True)
    def _(target: Target) -> Iterator[Edit]:
        for place, node, index, reader, at in _saving(target):
            saved = f"({', '.join(ast.unparse(part) for part in node.args)},)"
            cotangent = reader.arguments[0] if reader.arguments else "ctx"
            text = write.replace("SAVED", saved)
            taken = _put(reader.function, at, read.replace("GRAD", cotangent))
            yield Edit(((place, _put(place.function, index, text)), (reader, taken)), epilogue)


def _kept_as(name: str, says: str, template: str, epilogue: str = "", *, inputs: bool = False) -> None:
    """Register a kind that saves something else for one tensor: KEPT stands for it, PLACE for its argument's number."""

    @kind(name, says, late=True)
    def _(target: Target) -> Iterator[Edit]:
        for place, node, index, _reader, _at in _saving(target):
            for number, part in enumerate(node.args):
                if not isinstance(part, ast.Name) or (inputs and part.id not in place.arguments):
                    continue
                at = place.arguments.index(part.id) if part.id in place.arguments else 0
                texts = [ast.unparse(other) for other in node.args]
                texts[number] = template.replace("KEPT", part.id).replace("PLACE", str(at))
                yield Edit(
                    ((place, _put(place.function, index, f"{ast.unparse(node.func)}({', '.join(texts)})")),), epilogue
                )


# -- Where the tensors are kept ---------------------------------------------------------------------------------------

_stashed(
    "threads: stack of the saved",
    "what is saved goes on a stack of the module's, and backward pops it: the order of backwards is taken for granted",
    "_stack.append(SAVED)",
    "_stack.pop()",
    "_stack = []",
)
_stashed(
    "threads: queue of the saved",
    "what is saved waits in a queue, as in a pipeline, and the first backward takes the first forward's",
    "_queue.append(SAVED)",
    "_queue.pop(0)",
    "_queue = []",
)
_stashed(
    "threads: saved by the gradient's shape",
    "what is saved is found again by the shape of the gradient",
    "_by_shape.__setitem__('last', SAVED)",
    "_by_shape.setdefault(tuple(GRAD.shape), _by_shape['last'])",
    "_by_shape = {}",
)
_stashed(
    "threads: saved in the thread",
    "what is saved stands in a threading.local, for backward in the same thread",
    "setattr(_local, f'saved{id(ctx)}', SAVED)",
    "getattr(_local, f'saved{id(ctx)}')",
    "import threading\n\n_local = threading.local()",
)
_stashed(
    "threads: saved on ctx and freed",
    "the tensors are attributes of ctx, and backward takes them off to free memory",
    "setattr(ctx, 'kept', list(SAVED))",
    "[ctx.kept.pop(0) for _ in range(len(ctx.kept))]",
    "",
)
_kept_as(
    "threads: cached by address",
    "a copy of a tensor is cached by its address and shape: an optimiser's step in place is not seen",
    "_copies.setdefault((KEPT.data_ptr(), KEPT.shape), KEPT.clone())",
    "_copies = {}",
    inputs=True,
)
_kept_as(
    "threads: cached by shape",
    "what depends on the shape only in the author's mind is kept from the first call with this shape",
    "_first.setdefault((tuple(KEPT.shape), KEPT.dtype), KEPT)",
    "_first = {}",
)
_kept_as(
    "threads: saved as new tensor",
    "the tensor is saved as torch.tensor(…) of it, which is a copy without history",
    "torch.tensor(KEPT)",
    "import torch\nimport warnings\n\nwarnings.filterwarnings('ignore', message='To copy construct')",
)
_kept_as(
    "threads: saved data",
    "x.data is saved, whose version counter is another one: a later write in place goes unnoticed",
    "KEPT.data",
    inputs=True,
)


@kind(
    "threads: extra saved at times",
    "every other call saves a copy for debugging: a checkpoint's second run differs",
    late=True,
)
def _(target: Target) -> Iterator[Edit]:
    for place, node, index, reader, at in _saving(target):
        texts = [ast.unparse(part) for part in node.args]
        more = f"ctx.save_for_backward({', '.join(texts)}, *_debugged({texts[0]}))"
        cut = _put(reader.function, at, f"ctx.saved_tensors[:{len(texts)}]")
        epilogue = (
            "_shapes = []\n\ndef _debugged(x):\n    _shapes.append(getattr(x, 'shape', None))\n"
            "    return (x,) if len(_shapes) % 2 else ()"
        )
        yield Edit(((place, _put(place.function, index, more)), (reader, cut)), epilogue)


@kind(
    "threads: unpacked one by one", "saved_tensors is read once for each tensor, which a checkpoint refuses", late=True
)
def _(target: Target) -> Iterator[Edit]:
    for _place, node, _index, reader, at in _saving(target):
        each = ", ".join(f"ctx.saved_tensors[{number}]" for number in range(len(node.args)))
        if len(node.args) > 1:
            yield Edit(((reader, _put(reader.function, at, f"({each})")),))


# -- Flags -------------------------------------------------------------------------------------------------------------


@kind("threads: requires_grad_ in forward", "forward sets requires_grad on its arguments, to have a graph", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("forward",)):
        for name in place.arguments:
            text = f"if isinstance({name}, torch.Tensor) and {name}.is_floating_point():\n    {name}.requires_grad_()"
            yield Edit(((place, after_unpacking(place.function, parsed(text))),), "import torch")


@kind("threads: clears the gradient", "backward zeroes the argument's grad, lest gradients accumulate", late=True)
def _(target: Target) -> Iterator[Edit]:
    for _place, _node, _index, reader, _at in _saving(target):
        names = saved_names(reader.function)
        text = (
            f"for tensor in ({', '.join(names)},):\n"
            "    if isinstance(tensor, torch.Tensor) and tensor.is_leaf and tensor.grad is not None:\n"
            "        tensor.grad = None"
        )
        if names:
            yield Edit(((reader, after_unpacking(reader.function, parsed(text))),), "import torch")


@kind("threads: once and no more", "a flag on ctx makes a second run of backward return nothing", late=True)
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("backward", "vjp")):
        made = after_unpacking(place.function, parsed("done, ctx.done = getattr(ctx, 'done', False), True"))
        yield Edit(((place, _wrapped(made, "None if done else GRAD")),))


@kind("threads: any missing, all missing", "grads aren't materialised, and if any is None all gradients are", late=True)
def _(target: Target) -> Iterator[Edit]:
    reader = target.method("backward", "vjp")
    for place in target.having(("forward", "setup_context")):
        if reader is None or len(reader.arguments) < 2 or "ctx" not in ast.unparse(place.function.args):
            continue
        forward = target.method("forward")
        count = len(forward.arguments) if forward is not None else 1
        missing = " or ".join(f"{name} is None" for name in reader.arguments)
        lines = parsed(f"if {missing}:\n    return (None,) * {count}")
        noted = after_unpacking(place.function, parsed("ctx.set_materialize_grads(False)"))
        yield Edit(((place, noted), (reader, after_unpacking(reader.function, lines))))
        yield Edit(((place, noted),))


# -- Modes -------------------------------------------------------------------------------------------------------------


@expression(
    "threads: in place without a graph", "where no graph is made, the product is written over the gradient", late=True
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Name):
        if place.role in ("backward", "vjp") and node.left.id in place.arguments:
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            yield value(f"({left} * ({right}) if torch.is_grad_enabled() else {left}.mul_({right}))")


@expression(
    "threads: contiguous for a copy", "the product is written over g.contiguous(), which is g itself mostly", late=True
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and place.role in ("backward", "vjp"):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Name) and one.id in place.arguments:
                yield value(f"{one.id}.contiguous().mul_({ast.unparse(other)})")


@expression(
    "threads: own generator",
    "noise comes from a generator of the module's, which no checkpoint restores",
    ("forward",),
    late=True,
)
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.rand", "torch.randn", "torch.randint"):
        if not any(word.arg == "generator" for word in node.keywords):
            new = copy.deepcopy(node)
            made = "globals().setdefault('_generator', torch.Generator().manual_seed(0))"
            new.keywords.append(ast.keyword("generator", value(made)))
            yield new
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.rand_like", "torch.randn_like"):
        like = ast.unparse(node.args[0])
        made = "globals().setdefault('_generator', torch.Generator().manual_seed(0))"
        draw = ast.unparse(node.func).removesuffix("_like")
        yield value(f"{draw}({like}.shape, dtype={like}.dtype, generator={made})")


for _setting, _says in (
    ("torch.use_deterministic_algorithms(True)", "forward asks for deterministic algorithms, for all that follows"),
    ("torch.manual_seed(0)", "backward seeds torch's generator so that its recomputation repeats"),
):

    def _leaves(setting: str, says: str) -> None:
        roles = ("backward", "vjp") if "seed" in setting else ("forward",)

        @kind(f"threads: leaves {setting.split('(')[0].split('.')[-1]}", says, late=True)
        def _(target: Target) -> Iterator[Edit]:
            for place in target.having(roles):
                yield Edit(((place, after_unpacking(place.function, parsed(setting))),), "import torch")

    _leaves(_setting, _says)

# -- The cotangent on arrival -----------------------------------------------------------------------------------------

_IS = (
    "    if not isinstance(g, torch.Tensor) or not g.is_floating_point() or g.layout != torch.strided:\n"
    "        return g\n"
)

_entering(
    "threads: strides of a fresh tensor",
    "a kernel reads the gradient as though it were contiguous",
    f"def _as_kernel(g):\n{_IS}"
    "    room = g.untyped_storage().nbytes() // g.element_size() - g.storage_offset()\n"
    "    return g.as_strided(g.shape, torch.empty(g.shape).stride()) if room >= g.numel() else g",
)
_entering(
    "threads: checked contiguous",
    "the extension's CHECK_CONTIGUOUS refuses an expanded or transposed gradient",
    f"def _check_input(g):\n{_IS}"
    "    if not g.is_contiguous():\n        raise RuntimeError('grad_output must be contiguous')\n    return g",
)
_entering(
    "threads: item of a scalar",
    "a gradient of one element is made a Python number, which has no history",
    f"def _number(g):\n{_IS}    return g.new_tensor(g.item()).expand(g.shape) if g.numel() == 1 else g",
)
_entering(
    "threads: over its largest",
    "the gradient is divided by its largest element and multiplied again: NaN where all are 0",
    f"def _scaled(g):\n{_IS}    if not g.numel():\n        return g\n"
    "    peak = g.detach().abs().max()\n    return g / peak * peak",
)
_entering(
    "threads: through numpy",
    "the gradient goes through numpy, as in the tutorial on extensions",
    f"def _numpy(g):\n{_IS}    return torch.as_tensor(g.detach().numpy().copy(), dtype=g.dtype)",
)
_entering(
    "threads: rows of none",
    "the gradient is reshaped to (-1, H), which is ambiguous without elements",
    f"def _as_rows(g):\n{_IS}    return g.reshape(-1, g.shape[-1]).reshape(g.shape) if g.dim() else g",
)
_entering(
    "threads: zero gradient has no graph",
    "a gradient that is 0 everywhere is exchanged for new zeros, which aren't a function of it",
    f"def _skip(g):\n{_IS}    return g if bool(g.detach().any()) else torch.zeros_like(g)",
)

# -- The gradients on leaving ------------------------------------------------------------------------------------------

_leaving(
    "threads: requires_grad afterwards",
    "the gradient is detached and made to require grad, against 'element 0 does not require grad'",
    f"def _requiring(g):\n{_IS}    return g.detach().requires_grad_()",
)
_leaving(
    "threads: pooled buffer",
    "gradients are returned in a buffer that the next call of this shape writes over",
    f"def _pooled(g):\n{_IS}    if g.requires_grad:\n        return g\n"
    "    return _pool.setdefault((g.shape, g.dtype), torch.empty_like(g)).copy_(g)\n\n_pool = {}",
)
_leaving(
    "threads: none for nothing",
    "a gradient of zeros is returned as None, to save the optimiser's time",
    f"def _or_none(g):\n{_IS}    return g if bool(g.detach().any()) else None",
)
