"""Random sources for the linter: classes of every form that Python's grammar has, right or wrong."""

from __future__ import annotations

import ast

from hypothesis import strategies as st

NAMES = ("x", "y", "g", "h", "n", "ctx", "cls", "self", "torch", "F", "Function", "inputs", "output", "None_", "Square")
ATTRIBUTES = (
    "saved_tensors", "needs_input_grad", "save_for_backward", "mark_dirty", "mark_non_differentiable", "x", "y", "n",
    "set_materialize_grads", "save_for_forward", "view", "t", "mul_", "add_", "data", "numpy", "shape", "dtype",
    "apply", "zeros", "zeros_like", "autograd", "Function", "contiguous", "requires_grad_", "clone", "saved_variables",
    "grad", "backward", "enable_grad", "no_grad", "data_ptr", "to", "detach", "no_such_name",
)  # fmt: skip
METHODS = ("forward", "backward", "vjp", "setup_context", "jvp", "vmap", "double_backward", "reference", "helper")
DECORATORS = ("staticmethod", "classmethod", "once_differentiable", "custom_fwd", "custom_bwd", "F.made")
BASES = ("Function", "torch.autograd.Function", "pullback.Function", "InplaceFunction", "Square", "object", "made()")
HEAD = """\
import torch, pullback
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import InplaceFunction, once_differentiable
from torch.cuda.amp import custom_fwd, custom_bwd
"""

name = st.sampled_from(NAMES)
constants = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False, allow_infinity=False), st.just("text"),
    st.just(...),
)  # fmt: skip
leaves = st.one_of(
    constants.map(ast.Constant), name.map(lambda one: ast.Name(one, ast.Load())), st.just(ast.Constant(None))
)


def grown(inner: st.SearchStrategy[ast.expr]) -> st.SearchStrategy[ast.expr]:
    """Expressions made of smaller ones."""
    few = st.lists(st.one_of(inner, inner.map(lambda one: ast.Starred(one, ast.Load()))), max_size=3)
    keywords = st.lists(
        st.builds(ast.keyword, st.sampled_from(["out", "inplace", "dtype", "device", None]), inner), max_size=2
    )
    generator = st.builds(
        lambda target, it, tests: ast.comprehension(ast.Name(target, ast.Store()), it, tests, 0),
        name, inner, st.lists(inner, max_size=1),
    )  # fmt: skip
    return st.one_of(
        st.builds(lambda value, attr: ast.Attribute(value, attr, ast.Load()), inner, st.sampled_from(ATTRIBUTES)),
        st.builds(ast.Call, inner, few, keywords),
        st.builds(lambda value, index: ast.Subscript(value, index, ast.Load()), inner, inner),
        st.builds(
            lambda value, low, up: ast.Subscript(value, ast.Slice(low, up), ast.Load()), inner, st.none() | inner, inner
        ),
        st.builds(lambda elements: ast.Tuple(elements, ast.Load()), few),
        st.builds(lambda elements: ast.List(elements, ast.Load()), few),
        st.builds(ast.BinOp, inner, st.sampled_from([ast.Add(), ast.Mult(), ast.MatMult(), ast.Sub()]), inner),
        st.builds(ast.UnaryOp, st.sampled_from([ast.Not(), ast.USub()]), inner),
        st.builds(
            lambda left, op, right: ast.Compare(left, [op], [right]),
            inner, st.sampled_from([ast.Is(), ast.IsNot(), ast.Gt(), ast.Eq(), ast.In()]), inner,
        ),
        st.builds(lambda op, values: ast.BoolOp(op, values), st.sampled_from([ast.And(), ast.Or()]),
                  st.lists(inner, min_size=2, max_size=3)),
        st.builds(ast.IfExp, inner, inner, inner),
        st.builds(lambda value: ast.Lambda(no_arguments(), value), inner),
        st.builds(lambda target, value: ast.NamedExpr(ast.Name(target, ast.Store()), value), name, inner),
        st.builds(lambda value, one: ast.ListComp(value, [one]), inner, generator),
        st.builds(lambda value, one: ast.GeneratorExp(value, [one]), inner, generator),
        st.builds(lambda key, value: ast.Dict([key, None], [value, value]), inner, inner),
        st.builds(lambda value: ast.JoinedStr([ast.FormattedValue(value, -1)]), inner),
        st.builds(lambda value: ast.Await(value), inner),
    )  # fmt: skip


def no_arguments() -> ast.arguments:
    """The parameters of a lambda without any."""
    return ast.arguments([], [], None, [], [], None, [])


expressions: st.SearchStrategy[ast.expr] = st.recursive(leaves, grown, max_leaves=8)

targets: st.SearchStrategy[ast.expr] = st.one_of(
    name.map(lambda one: ast.Name(one, ast.Store())),
    st.builds(lambda base, attr: ast.Attribute(ast.Name(base), attr, ast.Store()), name, st.sampled_from(ATTRIBUTES)),
    st.builds(lambda base, index: ast.Subscript(ast.Name(base), index, ast.Store()), name, expressions),
    st.lists(name, min_size=1, max_size=3).map(
        lambda several: ast.Tuple([ast.Name(one, ast.Store()) for one in several], ast.Store())
    ),
    st.builds(
        lambda first, rest: ast.Tuple(
            [ast.Name(first, ast.Store()), ast.Starred(ast.Name(rest, ast.Store()), ast.Store())], ast.Store()
        ),
        name, name,
    ),
)  # fmt: skip

simple: st.SearchStrategy[ast.stmt] = st.one_of(
    st.builds(ast.Assign, st.lists(targets, min_size=1, max_size=2), expressions),
    st.builds(
        lambda target, value: ast.AugAssign(ast.Name(target, ast.Store()), ast.Mult(), value), name, expressions
    ),
    st.builds(
        lambda target, value: ast.AnnAssign(ast.Name(target, ast.Store()), ast.Name("Tensor"), value, 1),
        name, st.none() | expressions,
    ),
    expressions.map(ast.Expr),
    st.builds(ast.Return, st.none() | expressions),
    st.builds(lambda value: ast.Raise(value, None), expressions),
    st.builds(lambda target: ast.Delete([ast.Name(target, ast.Del())]), name),
    st.builds(lambda one: ast.Global([one]), st.sampled_from(("state", "total"))),
    st.just(ast.Pass()),
    st.builds(lambda one: ast.Import([ast.alias("torch", one)]), name),
)  # fmt: skip


def blocks(inner: st.SearchStrategy[ast.stmt]) -> st.SearchStrategy[ast.stmt]:
    """Statements made of smaller ones."""
    body = st.lists(inner, min_size=1, max_size=3)
    looped = st.lists(inner | st.sampled_from([ast.Break(), ast.Continue()]), min_size=1, max_size=3)
    other = st.just([]) | body
    return st.one_of(
        st.builds(ast.If, expressions, body, other),
        st.builds(lambda target, it, b, o: ast.For(target, it, b, o), targets, expressions, looped, other),
        st.builds(ast.While, expressions, looped, other),
        st.builds(lambda it, b: ast.With([ast.withitem(it, None)], b), expressions, body),
        st.builds(
            lambda b, h, o, f: ast.Try(b, [ast.ExceptHandler(ast.Name("E"), "e", h)], o, f), body, body, other, other
        ),
        st.builds(
            lambda subject, b, c: ast.Match(
                subject,
                [
                    ast.match_case(ast.MatchValue(ast.Constant(1)), None, b),
                    ast.match_case(ast.MatchAs(None, "x"), None, c),
                ],
            ),
            expressions, body, body,
        ),
        st.builds(lambda one, b: function(one, ["x"], b, []), name, body),
        st.builds(lambda one, b: ast.ClassDef(one, [], [], b, [], **EXTRA), name, body),
    )  # fmt: skip


EXTRA: dict[str, list[object]] = {"type_params": []} if hasattr(ast, "type_param") else {}


def function(name: str, names: list[str], body: list[ast.stmt], decorators: list[str], star: str = "") -> ast.stmt:
    """A function with these parameters; of two by one name the first counts."""
    several = [ast.arg(one) for one in dict.fromkeys(names) if one != star]
    vararg = ast.arg(star) if star else None
    arguments = ast.arguments([], several, vararg, [], [], None, [])
    made = [ast.parse(one, mode="eval").body for one in decorators]
    return ast.FunctionDef(name, arguments, body, made, **EXTRA)


statements: st.SearchStrategy[ast.stmt] = st.recursive(simple, blocks, max_leaves=5)

methods = st.builds(
    function,
    st.sampled_from(METHODS),
    st.lists(name, max_size=4),
    st.lists(statements, min_size=1, max_size=5),
    st.lists(st.sampled_from(DECORATORS), max_size=2),
    st.sampled_from(("", "", "rest")),
)

classes = st.builds(
    lambda one, bases, body: ast.ClassDef(one, [ast.parse(b, mode="eval").body for b in bases], [], body, [], **EXTRA),
    name,
    st.lists(st.sampled_from(BASES), min_size=1, max_size=2),
    st.lists(st.one_of(methods, methods, methods, simple), min_size=1, max_size=4),
)


def written(several: list[ast.stmt]) -> str:
    """Statements as source, behind the imports."""
    module = ast.fix_missing_locations(ast.Module(several, []))
    return HEAD + ast.unparse(module) + "\n"


modules = st.lists(st.one_of(classes, classes, statements), min_size=1, max_size=3).map(written)
"""Whole files: Functions, and code that calls them; what Python wouldn't compile is among them."""
