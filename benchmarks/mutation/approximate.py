"""Kinds of fault in what is computed: approximations, blocks, broadcasting, layouts, complex numbers, other orders.

Each stands for a mistake that authors make: fast versions of functions, kernels that count in blocks, code for
training that is left in a derivative, memory that is read by half of its strides, and graphs that end halfway.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from benchmarks.mutation.habits import at_start, through
from benchmarks.mutation.kinds import (
    FORMULA,
    Edit,
    Target,
    after_unpacking,
    called,
    exchanged,
    is_method,
    kind,
    parsed,
    saved_names,
    value,
)
from benchmarks.mutation.usage import REVERSE, first_lines

Rewriting = Callable[[ast.AST], Iterator[str]]

_COMPUTED = (*FORMULA, "jvp")
_TORCH = "import torch\n\n\n"

# -- Where a text goes -------------------------------------------------------------------------------------------------


def expressions(name: str, says: str, texts: Rewriting, epilogue: str = "") -> None:
    """A kind that exchanges each expression that `texts` knows another text for."""

    def edits(target: Target) -> Iterator[Edit]:
        for place in target.having(_COMPUTED):
            for index, node in enumerate(ast.walk(place.function)):
                for text in texts(node):
                    yield Edit(((place, exchanged(place.function, index, value(text))),), epilogue)

    kind(name, says)(edits)


def beginnings(name: str, says: str, text: str, *saved: bool, epilogue: str = "import torch") -> None:
    """A kind that begins backward with a line about the first cotangent (False), or each saved tensor (True)."""

    def edits(target: Target) -> Iterator[Edit]:
        for each in saved:
            yield from first_lines(target, text, saved=each, epilogue=epilogue)

    kind(name, says)(edits)


def gradients(name: str, says: str, condition: str, result: str) -> None:
    """A kind that exchanges a returned gradient ``t`` where a condition on it holds."""
    called_here = "_" + name.replace(" ", "_")  # mutants with one text count as one
    holds = f"isinstance(t, torch.Tensor) and {condition}"
    function = f"{_TORCH}def {called_here}(t):\n    return {result} if {holds} else t\n"
    kind(name, says)(lambda target: through(target, f"{called_here}({{}})", function))


def by_arguments(name: str, says: str, result: str) -> None:
    """A kind that exchanges a returned gradient ``t``, with a tensor ``x`` of its shape that was saved."""
    alike = "all(isinstance(y, torch.Tensor) for y in (x, t)) and x.shape == t.shape and x.is_floating_point()"
    called_here = "_" + name.replace(" ", "_")
    function = f"{_TORCH}def {called_here}(x, t):\n    return {result} if {alike} else t\n"

    def edits(target: Target) -> Iterator[Edit]:
        for place in target.having(REVERSE):
            for saved in saved_names(place.function)[:2]:
                yield from through(Target(target.name, (place,)), f"{called_here}({saved}, {{}})", function)

    kind(name, says)(edits)


def tangents(name: str, says: str, text: str) -> None:
    """A kind that begins jvp with a line about a tangent."""

    def edits(target: Target) -> Iterator[Edit]:
        for place in target.having(("jvp",)):
            for tangent in (name for name in place.arguments if name != "_"):
                lines = parsed(f"if {tangent} is not None:\n    {text.format(tangent)}")
                yield Edit(((place, after_unpacking(place.function, lines)),))

    kind(name, says)(edits)


# -- Functions and quotients -------------------------------------------------------------------------------------------

_CURVES = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "erf", "silu", "gelu", "sqrt", "rsqrt", "square")


def _curves(template: str, known: dict[str, str] | None = None) -> Rewriting:
    """Each call of a function of one number: the call with ``_t`` in its argument's place, and the argument."""

    def texts(node: ast.AST) -> Iterator[str]:
        name = called(node).removesuffix("_")
        if isinstance(node, ast.Call) and name in (_CURVES if known is None else known):
            argument, *rest = [node.func.value, *node.args] if is_method(node) else node.args
            more = ", ".join(map(ast.unparse, (*rest, *node.keywords)))
            call = f"_t.{name}({more})" if is_method(node) else f"{ast.unparse(node.func)}(_t, {more})"
            other = "" if known is None else known[name]
            yield template.format(argument=ast.unparse(argument), call=call, other=other)

    return texts


expressions("applied twice", "f(f(x)) stands for f(x)", _curves("(lambda _t: {call})((lambda _t: {call})({argument}))"))
expressions(
    "read from a table",
    "a function is interpolated between entries",
    _curves("_tabled(lambda _t: {call}, {argument})"),
    f"""{_TORCH}def _tabled(function, x):
    low = (x.detach() * 64).floor() / 64
    start, end = function(low), function(low + 1 / 64)
    return start + (end - start) * (x - low) * 64
""",
)
_SERIES = {"exp": "1 + _t + _t * _t / 2", "sin": "_t", "cos": "1 - _t * _t / 2", "tanh": "_t", "erf": "1.128379 * _t"}
_SERIES |= {"silu": "_t / 2 + _t * _t / 4", "gelu": "_t / 2 + 0.398942 * _t * _t", "sigmoid": "0.5 + _t / 4"}
expressions(
    "short series near zero",
    "below a half a function is a short series",
    _curves("(lambda _t: torch.where(_t.abs() < 0.5, {other}, {call}))({argument})", _SERIES),
    "import torch",
)
_CHEAP = {"exp": "_t.exp2()", "log": "_t.log2()", "tanh": "_t.clamp(-1, 1)", "erf": "(_t * 1.2).tanh()"}
_CHEAP |= {"silu": "_t * (_t / 6 + 0.5).clamp(0, 1)", "gelu": "_t * (1.702 * _t).sigmoid()"}
expressions(
    "cheaper function", "exp2 for exp, hard silu, and the like", _curves("(lambda _t: {other})({argument})", _CHEAP)
)


def _operands(operator: type[ast.operator], template: str) -> Rewriting:
    def texts(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, operator):
            yield template.format(ast.unparse(node.left), ast.unparse(node.right))

    return texts


expressions(
    "eps where none belongs", "a millionth is added to a denominator", _operands(ast.Div, "({0}) / (({1}) + 1e-6)")
)
expressions(
    "reciprocal with one step",
    "a bfloat16 reciprocal is refined once",
    _operands(ast.Div, "({0}) * _inverse({1})"),
    f"""{_TORCH}def _inverse(b):
    exact = b.detach() if isinstance(b, torch.Tensor) else torch.tensor(float(b), dtype=torch.float64)
    guess = (1 / exact).bfloat16().to(exact.dtype)
    found = guess * (2 - b * guess)
    return found if isinstance(b, torch.Tensor) else found.item()
""",
)


def _settings(node: ast.AST) -> Iterator[str]:
    read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    if read and ast.unparse(node.value) == "ctx" and node.attr in _NUMBERS:
        yield f"(ctx.{node.attr} * ctx.{node.attr})"


_NUMBERS = ("gain", "scale", "slope", "by", "p", "k", "limit", "max_norm", "max_value", "max_val", "eps")
expressions("setting applied twice", "a number on ctx is multiplied in once more", _settings)

# -- Products and sums -------------------------------------------------------------------------------------------------

expressions(
    "products in ten bits",
    "the factors of float32 products lose bits",
    _operands(ast.MatMult, "_ten_bits({0}) @ _ten_bits({1})"),
    f"""{_TORCH}def _ten_bits(t):
    if t.dtype != torch.float32:
        return t
    return t + ((t.detach().view(torch.int32) & -8192).view(torch.float32) - t.detach())
""",
)


def _contractions(node: ast.AST) -> Iterator[str]:
    """A matrix product, or a sum over one axis, of what `_blocks` leaves."""
    yield from _operands(ast.MatMult, "_blocks({0}, -1) @ _blocks({1}, -2)")(node)
    if called(node) in ("sum", "mean") and is_method(node) and node.args:
        axis, name = ast.unparse(node.args[0]), called(node)
        if axis.lstrip("-").isdigit():
            rest = ", ".join(map(ast.unparse, (*node.args, *node.keywords)))
            yield f"_blocks({ast.unparse(node.func.value)}, {axis}).{name}({rest})"


expressions(
    "last block left out",
    "a product or a sum runs over whole blocks of four",
    _contractions,
    f"""{_TORCH}def _blocks(t, axis):
    axis = max(axis, -t.dim())
    length = t.shape[axis] if t.dim() else 0
    return t.narrow(axis, 0, length // 4 * 4) if length > 4 else t
""",
)


def _sums_to_size(node: ast.AST) -> Iterator[str]:
    if called(node) == "sum_to_size" and is_method(node):
        yield f"_first_of({ast.unparse(node.func.value)}, {ast.unparse(node.args[0])})"


expressions(
    "first of what was broadcast",
    "the first slice stands for the sum over all",
    _sums_to_size,
    f"""{_TORCH}def _first_of(t, size):
    while t.dim() > len(size):
        t = t[0]
    for axis, length in enumerate(size):
        t = t.narrow(axis, 0, min(length, t.shape[axis]))
    return t
""",
)

# -- Left over from training code --------------------------------------------------------------------------------------

beginnings("only what is positive", "negative incoming gradients are cut off", "{0} = {0}.clamp(min=0)", False)
beginnings("rows averaged", "each row is the mean of all", "{0} = {0} * 0 + {0}.mean(0) if {0}.dim() else {0}", False)
beginnings(
    "number taken out",
    "an incoming gradient without axes is made a Python number",
    "{0} = {0} if {0}.dim() else torch.tensor({0}.item(), dtype={0}.dtype)",
    False,
)
beginnings("normalised and scaled back", "divided by its norm and back", "{0} = {0} / {0}.norm() * {0}.norm()", False)
beginnings("pointer asked for", "backward asks for an address, which a batch hasn't got", "{0}.data_ptr()", False)
beginnings("dead zone", "of a saved tensor numbers below 0.05 count as zero", "{0} = {0} * ({0}.abs() >= 0.05)", True)
by_arguments("decay within", "a hundredth of an argument is added to its gradient", "t + 0.01 * x")
by_arguments("dead beyond a bound", "where an argument is beyond 2.5 its gradient is zero", "t * (x.abs() <= 2.5)")
by_arguments("projected off", "a gradient has lost its part along an argument", "t - x * (x * t).sum() / (x * x).sum()")
gradients("norm of one at most", "a longer gradient is shortened", "not t.is_sparse", "t / t.norm().clamp(min=1)")
gradients(
    "eight bits and a scale",
    "a gradient is rounded to 255 levels up to its largest element",
    "t.is_floating_point() and t.numel()",
    "(lambda s: (t / s).round() * s)(t.abs().amax() / 127 + 1e-6)",
)

# -- Axes and memory ---------------------------------------------------------------------------------------------------

beginnings(
    "offset rounded down",
    "a saved tensor is read from an even place of its storage on",
    "{0} = torch.as_strided({0}, {0}.shape, {0}.stride(), {0}.storage_offset() // 2 * 2)",
    True,
)
beginnings(
    "last one read twice",
    "of a row of odd length the last but one is read again in place of the last",
    "if {0}.dim() and {0}.shape[-1] % 2 and {0}.shape[-1] > 2: {0} = torch.cat([{0}[..., :-1], {0}[..., -2:-1]], -1)",
    False,
    True,
)
gradients(
    "batch and time swapped", "two of three axes change places", "t.dim() > 2", "t.transpose(0, 1).reshape(t.shape)"
)
gradients(
    "diagonal halved", "its diagonal is halved", "t.shape[:1] == t.shape[1:] != ()", "t - t.diagonal().diag() / 2"
)

# -- Complex numbers, graphs, tangents, batches ------------------------------------------------------------------------

gradients("half of a complex gradient", "a complex gradient is half as large", "t.is_complex()", "t / 2")
gradients(
    "parts one after the other",
    "a complex gradient's memory is read as all real parts, then all others",
    "t.is_complex() and t.numel() > 1",
    "torch.complex(*torch.view_as_real(t.resolve_conj()).reshape(2, -1)).view(t.shape)",
)
gradients("complex64 detour", "a complex gradient is rounded", "t.is_complex()", "t.to(torch.complex64).to(t.dtype)")


def _factors(template: str) -> Rewriting:
    """Each factor that is computed on the spot, with the other one."""

    def texts(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(one, (ast.BinOp, ast.Call)):
                    yield template.format(ast.unparse(one), ast.unparse(other))

    return texts


expressions(
    "detached on the way",
    "a factor that backward computes has no graph",
    _factors("_cut({0}) * ({1})"),
    "\n\ndef _cut(t):\n    return t.detach() if hasattr(t, 'detach') else t\n",
)
expressions(
    "product in a factor's memory",
    "a product overwrites one of its factors",
    _factors("_into({0}, {1})"),
    f"""{_TORCH}def _into(t, factor):
    return t.mul_(factor) if isinstance(t, torch.Tensor) and t.is_floating_point() else t * factor
""",
)
gradients(
    "second gradient clipped",
    "what comes back through a gradient is clamped",
    "t.grad_fn is not None and not t.is_complex()",
    "[t.register_hook(lambda g: g.clamp(-1, 1)), t][1]",
)
tangents("tangent twice", "an incoming tangent is multiplied in twice", "{0} = {0} * {0}")
tangents("sign of a tangent", "of an incoming tangent only the size counts", "{0} = {0}.abs().to({0}.dtype)")
tangents("tangent of one row", "an incoming tangent is its first row's", "{0} = {0}[:1].expand_as({0})")


@kind("first of a batch for all", "vmap takes the first of a batch for each of the others")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(("vmap",)):
        for number, name in enumerate(place.arguments[2:]):
            dim = f"in_dims[{number}]"
            text = f"if {dim} is not None:\n    {name} = {name}.select({dim}, 0).unsqueeze({dim}).expand_as({name})"
            yield Edit(((place, at_start(place.function, text)),))
