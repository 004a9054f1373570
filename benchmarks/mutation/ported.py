"""Kinds of fault from the workday of people who port, wrap, fuse, cast, quantise and extend Functions.

A paper's reference code assumes things that hold in its training loop alone; a kernel assumes a layout, a length, a
dtype; an argument or a rule is added in one place and forgotten in another; what is cached or reused is stale.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from typing import Any, cast

from benchmarks.mutation import kinds
from benchmarks.mutation.kinds import Edit, Place, Replacement, Target, called, expression, kind, parsed, value

BACKWARD = ("backward", "vjp")

HELPERS = """
def _port_each(function, nest):
    if isinstance(nest, torch.Tensor): return function(nest) if nest.is_floating_point() or nest.is_complex() else nest
    if isinstance(nest, dict): return {key: _port_each(function, part) for key, part in nest.items()}
    if isinstance(nest, (list, tuple)): return type(nest)(_port_each(function, part) for part in nest)
    return nest

def _port_memory(t):
    if t.layout != torch.strided or t.is_contiguous(): return t
    if t.untyped_storage().nbytes() < (t.storage_offset() + t.numel()) * t.element_size():
        return t.contiguous()
    return t.as_strided(t.shape, torch.empty(t.shape, device="meta").stride())

def _port_blocks(t):
    return t * (torch.arange(t.numel()) < t.numel() // 4 * 4).view(t.shape)

def _port_eight(t):
    if t.is_complex() or not t.numel() or t.is_sparse: return t
    step = t.detach().abs().amax().clamp(min=1e-12) / 127
    return (t / step + ((t / step).round() - t / step).detach()) * step

def _port_grid(t):
    if t.is_complex() or t.is_sparse: return t
    return t + (torch.floor(t * 64 + torch.rand_like(t)) / 64 - t).detach()

class _PortGradient(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(made): return made.clone()
    @staticmethod
    def setup_context(ctx, inputs, output): pass
    @staticmethod
    def backward(ctx, gg): return 2 * gg
    @staticmethod
    def jvp(ctx, tangent): return tangent.clone()

_PORT_KNOWN = {}
def _port_known(t):
    if torch.is_grad_enabled() and t.requires_grad: return t
    return _PORT_KNOWN.setdefault((t.data_ptr(), t.shape, t.dtype), t.detach().clone())

_PORT_SPACE = {}
def _port_space(t):
    if torch.is_grad_enabled() and t.requires_grad or t.layout != torch.strided: return t
    return _PORT_SPACE.setdefault((t.shape, t.dtype), torch.empty_like(t)).copy_(t)

def _port_accumulated(t, made):
    if made is None or not isinstance(t, torch.Tensor) or not t.is_leaf or not t.requires_grad: return made
    t.grad = made if t.grad is None else t.grad + made
"""
"""What the faulty sources call, a function or class each, with an empty line between them."""


def helpers(text: str) -> str:
    """The source of what an expression calls."""
    named = [(re.findall(r"(?:def|class) (\w+)", block)[0], block) for block in HELPERS.strip().split("\n\n")]
    return "\n".join(["import torch", *(block for name, block in named if name in f"_port_each {text}")])


def of_returned(target: Target, function: str) -> Iterator[Edit]:
    """Each gradient that backward returns goes through a function of this source."""
    for place in target.having(BACKWARD):
        at = {id(node): index for index, node in enumerate(ast.walk(place.function))}
        for part in kinds.returned(place.function):
            new = value(f"_port_each({function}, {ast.unparse(part)})")
            yield Edit(((place, kinds.exchanged(place.function, at[id(part)], new)),), helpers(function))


def of_names(place: Place, names: list[str], function: str) -> Iterator[Edit]:
    """What some names hold goes through a function before it is used."""
    lines = [line for name in names if name != "_" for line in parsed(f"{name} = _port_each({function}, {name})")]
    if lines:
        yield Edit(((place, kinds.after_unpacking(place.function, lines)),), helpers(function))


def gradients(name: str, says: str, function: str) -> None:
    """Register a kind that takes each returned gradient through a function."""
    kind(name, says)(lambda target: of_returned(target, function))


def before(name: str, says: str, function: str, g: bool = True, saved: bool = True) -> None:
    """Register a kind that takes backward's cotangents, what was saved, or first the ones and then the other."""

    def edits(target: Target) -> Iterator[Edit]:
        for place in target.having(BACKWARD):
            if g:
                yield from of_names(place, place.arguments, function)
            if saved:
                yield from of_names(place, kinds.saved_names(place.function), function)

    kind(name, says)(edits)


def tensors(place: Place) -> list[str]:
    """The names of the parameters that are said to be tensors."""
    given = place.function.args.args
    return [each.arg for each in given if each.annotation is not None and "Tensor" in ast.unparse(each.annotation)]


def names_in(node: ast.AST) -> set[str]:
    """The names that a piece of source mentions."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def together(*functions: ast.stmt) -> Any:
    """Several methods where one was."""
    return ast.fix_missing_locations(ast.Module([*functions], []))


def method(text: str) -> Any:
    """A static method of this source."""
    return parsed("@staticmethod\n" + text)[0]


def plain(place: Place) -> bool:
    """Whether a method has nothing but positional parameters, and no decorator but staticmethod."""
    given = place.function.args
    return not (given.vararg or given.kwonlyargs or given.kwarg) and len(place.function.decorator_list) == 1


def with_body(place: Place, body: list[ast.stmt]) -> ast.FunctionDef:
    """The function with other statements."""
    made = copy.deepcopy(place.function)
    made.body = copy.deepcopy(body)
    return ast.fix_missing_locations(made)


def body_of(place: Place) -> list[ast.stmt]:
    """The statements, without the docstring."""
    return place.function.body[1 if ast.get_docstring(place.function) else 0 :]


def ctx_style(target: Target) -> Place | None:
    """forward, if it is plain and takes ctx."""
    place = target.method("forward")
    first = place.function.args.args[:1] if place else []
    return place if place and plain(place) and first and first[0].arg == "ctx" else None


def is_save(line: ast.stmt) -> bool:
    """Whether a statement saves tensors."""
    return isinstance(line, ast.Expr) and called(line.value) == "save_for_backward"


gradients("batch mean ported", "the paper's loss is a mean", "lambda t: t / max(t.shape[0], 1) if t.dim() else t")
gradients(
    "loop's clipping ported", "it clips, as the paper's loop", "lambda t: t if t.is_complex() else t.clamp(-1, 1)"
)
before("loss at the end assumed", "the paper's loss has no cotangent", "torch.ones_like", saved=False)


@kind("weight decay ported", "the reference code's gradient has the weight decay in it")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(BACKWARD):
        for name in kinds.saved_names(place.function):
            fits = f"isinstance({name}, torch.Tensor) and {name}.shape == t.shape and {name}.is_floating_point()"
            yield from of_returned(target, f"lambda t: t + 1e-3 * {name} if {fits} else t")


before("by way of NumPy", "g is an array", "lambda t: torch.from_numpy(t.detach().cpu().numpy())", saved=False)
before("kernel knows no strides", "a kernel reads in the order of memory", "_port_memory")
before("kernel takes a flat view", "what isn't contiguous has no flat view", "lambda t: t.view(-1).view(t.shape)")
gradients("last block not launched", "a grid rounded down leaves the rest 0", "_port_blocks")


@expression("fast functions in backward", "backward's exp, tanh, log, … are the hardware's, of few bits")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    known = ("exp", "exp_", "tanh", "log", "sin", "cos", "erf", "sigmoid", "sqrt", "rsqrt", "gelu", "silu")
    if place.role != "forward" and called(node) in known and "math." not in ast.unparse(node):
        yield value(f"(lambda fast: fast.half().to(fast.dtype))({ast.unparse(node)})")


@kind("made contiguous first", "forward makes its arguments contiguous for the kernel, and saves copies")
def _(target: Target) -> Iterator[Edit]:
    place = ctx_style(target)
    for name in tensors(place) if place else ():
        calls = (node for node in ast.walk(place.function) if called(node) == "save_for_backward")
        if any(name in names_in(node) for node in calls):
            lines = parsed(f"{name} = {name}.contiguous() if {name} is not None else None")
            yield Edit(((place, with_body(place, [*lines, *body_of(place)])),))


@kind("accumulated by the kernel", "the kernel adds to the weight's .grad, and backward returns None")
def _(target: Target) -> Iterator[Edit]:
    forward, place = target.method("forward"), target.method("backward")
    if forward is None or place is None:
        return
    at = {id(node): index for index, node in enumerate(ast.walk(place.function))}
    for statement in kinds.returns(place.function):
        parts = statement.value.elts if isinstance(statement.value, ast.Tuple) else []
        for name, part in list(zip(forward.arguments, parts, strict=False))[1:]:
            if name in kinds.saved_names(place.function) and not isinstance(part, ast.Constant):
                new = value(f"_port_accumulated({name}, {ast.unparse(part)})")
                yield Edit(((place, kinds.exchanged(place.function, at[id(part)], new)),), helpers(ast.unparse(new)))


@expression("scale fused and applied", "a factor is folded into the kernel, and applied by its caller again")
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for factor in (node.left, node.right):
            if isinstance(factor, ast.Attribute) and ast.unparse(factor).startswith("ctx."):
                yield value(f"{ast.unparse(node)} * {ast.unparse(factor)}")


@kind("recomputed in a graph of its own", "backward asks autograd about forward run again, for first order")
def _(target: Target) -> Iterator[Edit]:
    forward, place = ctx_style(target), target.method("backward")
    if forward is None or place is None or len(place.arguments) != 1:
        return
    *lines, last = body_of(forward)
    parts = [part for line in lines if is_save(line) for part in ast.walk(line)]
    saved = [part.id for part in parts if isinstance(part, ast.Name) and part.id != "ctx"]
    known = {name for line in lines for name in names_in(line)} - {"ctx"}
    kept = sorted(known - {*saved})
    simple = all(is_save(line) or ast.unparse(line) in {f"ctx.{name} = {name}" for name in kept} for line in lines)
    others = names_in(last) - known
    if not isinstance(last, ast.Return) or last.value is None or not saved or not simple:
        return
    if not known <= {*forward.arguments} or others & {"ctx", *forward.arguments}:
        return
    owed = ", ".join(f"made['{name}']" if name in saved else "None" for name in forward.arguments)
    text = f"""
{", ".join(saved)}, = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
{"; ".join(f"{name} = ctx.{name}" for name in kept) or "pass"}
with torch.enable_grad():
    again = {ast.unparse(last.value)}
found = torch.autograd.grad(again, ({", ".join(saved)},), {place.arguments[0]}, allow_unused=True)
made = dict(zip({saved}, found))
return {owed}
"""
    yield Edit(((place, with_body(place, parsed(text))),), "import torch")


@kind("autocast around backward", "backward switches mixed precision on, whatever forward ran under")
def _(target: Target) -> Iterator[Edit]:
    for place in target.having(BACKWARD):
        if any(word in ast.unparse(place.function) for word in (" @ ", "linear(", "mm(", "matmul(")):
            block = parsed("with torch.autocast('cpu', dtype=torch.bfloat16):\n    pass")
            cast(ast.With, block[0]).body = body_of(place)
            yield Edit(((place, with_body(place, block)),), "import torch")


before("float32 for accuracy", "all in float32", "lambda t: t if t.is_complex() else t.float().to(t.dtype)")
before("activations kept in eight bits", "what was saved has 255 steps", "_port_eight", g=False)


@kind("argument quantised in forward", "forward rounds an argument to a grid, and backward doesn't know it")
def _(target: Target) -> Iterator[Edit]:
    place = target.method("forward")
    body = body_of(place) if place else []
    at = next((index + 1 for index, line in enumerate(body) if is_save(line)), 0)
    for name in tensors(place) if place else ():
        if place and any(name in names_in(line) for line in body[at:]):
            rounded = "lambda t: t if t.is_complex() or t.is_sparse else (t * 16).round() / 16"
            lines = parsed(f"{name} = _port_each({rounded}, {name})")
            yield Edit(((place, with_body(place, [*body[:at], *lines, *body[at:]])),), helpers(rounded))


gradients("gradient rounded at random", "it's rounded stochastically to a grid", "_port_grid")
gradients("both halves of the Hessian", "its own Function counts both symmetric halves", "_PortGradient.apply")


@kind("jvp for one argument", "jvp was written for the first argument, before there were others")
def _(target: Target) -> Iterator[Edit]:
    jvp, forward, backward = target.method("jvp"), ctx_style(target), target.method("backward")
    if jvp is not None:
        yield from of_names(jvp, [name for name in jvp.arguments[1:] if name[0] != "_"], "torch.zeros_like")
    elif forward is not None and backward is not None and len(tensors(forward)) > 1:
        rule = method(f"def jvp(ctx, tangent, *_):\n    return {target.name}.backward(ctx, tangent)[0]")
        made: list[tuple[Place, ast.FunctionDef | None]] = [(backward, together(backward.function, rule))]
        for index, node in enumerate(ast.walk(forward.function)):
            if isinstance(node, ast.stmt) and is_save(node):
                again = parsed(ast.unparse(node).replace("save_for_backward", "save_for_forward"))
                made[1:] = [(forward, kinds.exchanged(forward.function, index, [node, *again]))]
        yield Edit(tuple(made))


@kind("vmap rule on detached tensors", "the vmap rule, written for a kernel, detaches what it moves axes of")
def _(target: Target) -> Iterator[Edit]:
    place, vmap, split = target.method("backward"), target.method("vmap"), styles(target)
    outputs = len(place.arguments) if place else 1
    dims = "0" if outputs == 1 else f"({'0, ' * outputs})"
    moved = "(part if dim is None else part.detach().movedim(dim, 0) for part, dim in zip(given, in_dims))"
    rule = method(f"def vmap(info, in_dims, *given):\n    return {target.name}.apply(*{moved}), {dims}")
    if vmap is not None:
        yield Edit(((vmap, rule),))
    elif place is not None and target.method("setup_context"):
        yield Edit(((place, together(place.function, *parsed("generate_vmap_rule = False"), rule)),))
    elif split is not None:
        yield Edit(((split[0], together(*split[1:], rule)),))


def styles(target: Target, turned: bool = False) -> tuple[Place, ast.FunctionDef, ast.FunctionDef] | None:
    """forward, the same without ctx, and the setup_context for it; None where forward is no simple one."""
    place = ctx_style(target)
    body = body_of(place) if place else []
    told, rest = ([line for line in body if ("ctx" in names_in(line)) is wanted] for wanted in (True, False))
    last = rest[-1] if rest else None
    if place is None or not told or not isinstance(last, ast.Return) or last.value is None:
        return None
    output = last.value.id if isinstance(last.value, ast.Name) else "output"
    walked = [node for line in rest for node in ast.walk(line) if isinstance(node, ast.Name)]
    local = {node.id for node in walked if isinstance(node.ctx, ast.Store)} - {output}
    simple = all(isinstance(line, (ast.Expr, ast.Assign)) and not local & names_in(line) for line in told)
    if not simple or output in place.arguments or target.method("setup_context"):
        return None
    forward, names = with_body(place, rest), [*place.arguments]
    del forward.args.args[0]
    names[:2] = names[1::-1] if turned else names[:2]
    setup = method(f"def setup_context(ctx, inputs, {output}):\n    {', '.join(names)}, = inputs")
    setup.body += copy.deepcopy(told)
    return place, forward, setup


@kind("unpacked in another order", "setup_context, new, unpacks the inputs in an order that isn't forward's")
def _(target: Target) -> Iterator[Edit]:
    forward, setup = target.method("forward"), target.method("setup_context")
    given = [ast.unparse(each) for each in forward.function.args.args if each.arg != "ctx"] if forward else []
    alike = len(given) > 1 and given[0].endswith(": Tensor") and given[1].endswith(": Tensor")
    if forward is None or not alike or re.search(r" @ |mm\(|\[rows|\[index", ast.unparse(forward.function)):
        return
    if setup is not None:
        lines = parsed("inputs = (inputs[1], inputs[0], *inputs[2:])")
        yield Edit(((setup, with_body(setup, [*lines, *body_of(setup)])),))
    elif (split := styles(target, turned=True)) is not None:
        yield Edit(((split[0], together(*split[1:])),))


@kind("option unknown to backward", "a number became an argument; backward has the constant still")
def _(target: Target) -> Iterator[Edit]:
    forward = target.method("forward")
    given = forward.function.args.args if forward else []
    numbers = {each.arg for each in given if each.annotation and ast.unparse(each.annotation) in ("float", "int")}
    for place in target.having(("backward", "vjp", "jvp")):
        for index, node in enumerate(ast.walk(place.function)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {f"ctx.{name}" for name in numbers - {"axes"}}:
                usual = value("0.1" if node.attr == "p" else "1.0")
                yield Edit(((place, kinds.exchanged(place.function, index, usual)),))


@kind("nothing owed without the first", "backward returns at once if the first argument needs no gradient")
def _(target: Target) -> Iterator[Edit]:
    forward, place = target.method("forward"), target.method("backward")
    if forward is not None and place is not None and plain(forward) and len(tensors(forward)) > 1:
        lines = parsed(f"if not ctx.needs_input_grad[0]:\n    return (None,) * {len(forward.arguments)}")
        yield Edit(((place, with_body(place, [*lines, *body_of(place)])),))


@expression("saved for the first alone", "saved only if the first argument requires grad", ("forward",))
def _(node: ast.AST, place: Place) -> Iterator[Replacement]:
    if isinstance(node, ast.stmt) and is_save(node) and len(tensors(place)) > 1:
        yield parsed(f"if {tensors(place)[0]}.requires_grad:\n    {ast.unparse(node)}")


@kind("known by its address", "a saved argument is looked up by address in a cache that never forgets")
def _(target: Target) -> Iterator[Edit]:
    forward = target.method("forward")
    for place in target.having(BACKWARD):
        for name in tensors(forward) if forward else ():
            yield from of_names(place, [name] * (name in kinds.saved_names(place.function)), "_port_known")


gradients("gradient in a workspace", "the next call writes to the same memory", "_port_space")
