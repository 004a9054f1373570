"""The flow of values through a method: what each is made of, and what it stands under."""

from __future__ import annotations

import ast
import textwrap

import pytest

from pullback.lint.analysis import Analysis
from pullback.lint.flow import Flow
from pullback.lint.run import read
from pullback.lint.values import Value

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor\nfrom torch.autograd import Function\n"


def analysed(body: str) -> Analysis:
    """The analysis of a class with this body."""
    text = f"{HEAD}class A(Function):\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    notes: list[object] = []
    (function,) = read({"a.py": text.encode()}, notes).functions.values()  # type-free: notes stay empty
    assert notes == []
    return Analysis(function)


def forward(*lines: str, signature: str = "ctx, x: Tensor, y: Tensor, n: int, z") -> Flow:
    """The flow of a forward with these lines."""
    code = "\n".join(["@staticmethod", f"def forward({signature}):", *(f"    {line}" for line in lines)])
    flow = analysed(code).forward
    assert flow is not None
    return flow


def backward(*lines: str, signature: str = "ctx, g, h", head: str = "") -> Flow:
    """The flow of a backward with these lines, behind a forward that saves x and y."""
    code = ["@staticmethod", "def forward(ctx, x, y, n: int):", "    ctx.save_for_backward(x, y)", "    ctx.n = n"]
    code += [
        "    return x, y",
        "@staticmethod",
        head,
        f"def backward({signature}):",
        *(f"    {line}" for line in lines),
    ]
    flow = analysed("\n".join(code)).backward
    assert flow is not None
    return flow


def shown(value: Value) -> str:
    """A value as a short text: kinds, then origins."""
    origins = []
    for one in value.origins:
        what = one.name or (str(one.index) if one.index >= 0 else "")
        if one.kind == "input" and not one.name:
            what = f"#{one.index}"
        mark = "" if one.how == "same" else f" {one.how}"
        origins.append(f"{one.kind}{' ' + what if what else ''}{mark}")
    return " ".join(["|".join(sorted(value.kinds)), *(f"<{origin}>" for origin in sorted(origins))])


def result(flow: Flow) -> str:
    """What the only return gives back."""
    (one,) = flow.returns
    return shown(one.value)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x", "tensor <input x>"),
        ("n", "number"),
        ("z", "unknown <input z>"),
        ("x.t()", "tensor <input x view>"),
        ("x.view(-1)", "tensor <input x view>"),
        ("x.view(-1).t().contiguous()", "tensor <input x apart>"),
        ("x.reshape(-1)", "tensor <input x maybe>"),
        ("x.to(y.dtype)", "tensor <input x maybe>"),
        ("x.to(y.dtype, copy=True)", "tensor <fresh>"),
        ("x.detach()", "tensor <input x view>"),
        ("x.data", "tensor <input x view>"),
        ("x.T", "tensor <input x view>"),
        ("x[0]", "tensor <input x view>"),
        ("x[:, None, ..., 1:2]", "tensor <input x view>"),
        ("x[y]", "tensor <fresh>"),
        ("x[[0, 1]]", "tensor <fresh>"),
        ("x[z]", "tensor <input x unsure>"),
        ("x.numpy()", "array <input x view>"),
        ("x.mul_(2)", "tensor <input x>"),
        ("x.add_(1).clamp_(0)", "tensor <input x>"),
        ("x + 1", "tensor <fresh>"),
        ("1 - x", "tensor <fresh>"),
        ("-x", "tensor <fresh>"),
        ("x > y", "tensor <fresh>"),
        ("not x", "bool"),
        ("x is None", "bool"),
        ("n + 1", "number"),
        ("n > 1", "bool"),
        ("x.clone()", "tensor <fresh>"),
        ("x.sum()", "tensor <fresh>"),
        ("x.shape", "shape"),
        ("x.shape[0]", "number"),
        ("x.shape[1:]", "shape"),
        ("x.size()", "number|shape"),
        ("x.dim()", "number"),
        ("x.item()", "number"),
        ("x.dtype", "dtype"),
        ("x.is_cuda", "bool"),
        ("torch.float32", "dtype"),
        ("torch.zeros(3)", "tensor <fresh>"),
        ("torch.zeros_like(x)", "tensor <fresh>"),
        ("torch.transpose(x, 0, 1)", "tensor <input x view>"),
        ("torch.mul(x, y, out=y)", "tensor <input y>"),
        ("F.relu(x)", "tensor <fresh>"),
        ("F.relu(x, inplace=True)", "tensor <input x>"),
        ("torch.where(x > 0, x, y)", "tensor <fresh>"),
        ("kernel(x)", "unknown"),
        ("x if n else y", "tensor <input x> <input y>"),
        ("x if n else None", "none|tensor <input x>"),
        ("(x, y)[1]", "tensor <input y>"),
        ("[x, y][-2]", "tensor <input x>"),
        ("None", "none"),
        ("'text'", "text"),
        ("f'{x}'", "text"),
        ("len(z)", "number"),
        ("lambda: x", "function"),
        ("{'x': x}", "dict"),
        ("(w := x)", "tensor <input x>"),
        ("x and y", "tensor <input x> <input y>"),
        ("[x for x in (x, y)][0]", "tensor <input x> <input y>"),
    ],
)
def test_expressions(expression: str, expected: str) -> None:
    """What an expression is: its kinds, and what it may be or share memory with."""
    assert result(forward(f"return {expression}")) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a = x", "return a"], "tensor <input x>"),
        (["a = b = x", "return b"], "tensor <input x>"),
        (["a: Tensor = x", "return a"], "tensor <input x>"),
        (["a, b = x, y", "return b"], "tensor <input y>"),
        (["a, *b = x, y, n", "return b[1]"], "number"),
        (["*a, b = x, y, n", "return a[0]"], "tensor <input x>"),
        (["(a, (b, c)) = x, (y, n)", "return b"], "tensor <input y>"),
        (["x = x.clone()", "return x"], "tensor <fresh>"),
        (["x += y", "return x"], "tensor <input x>"),
        (["n += 1", "return n"], "number"),
        (["a = [x]", "a.append(y)", "return a[1]"], "tensor <input y>"),
        (["a = (x,)", "a = a + (y,)", "return a[1]"], "tensor <input y>"),
        (["a = (x,) * 3", "return a[2]"], "tensor <input x>"),
        (["if n:", "    a = x", "else:", "    a = y", "return a"], "tensor <input x> <input y>"),
        (["if n:", "    a = x", "return a"], "tensor|unbound <input x>"),
        (["if n:", "    a = x", "else:", "    raise E", "return a"], "tensor <input x>"),
        (["for a in (x, y):", "    pass", "return a"], "tensor <input x> <input y>"),
        (["for a in z:", "    pass", "return a"], "unbound|unknown"),
        (["for i, a in enumerate((x, y)):", "    b = a", "return b"], "tensor <input x> <input y>"),
        (["for a, b in zip((x,), (y,)):", "    c = b", "return c"], "tensor <input y>"),
        (["a = x", "for i in range(n):", "    a = y", "return a"], "tensor <input x> <input y>"),
        (["a = x", "while n:", "    a = a.t()", "return a"], "tensor <input x> <input x view>"),
        (["while True:", "    a = x", "    if n:", "        break", "return a"], "tensor <input x>"),
        (["try:", "    a = x", "except E:", "    a = y", "return a"], "tensor <input x> <input y>"),
        (["try:", "    a = x", "except E:", "    raise", "return a"], "tensor <input x>"),
        (["try:", "    a = x", "finally:", "    b = y", "return b"], "tensor <input y>"),
        (["with torch.no_grad():", "    a = x", "return a"], "tensor <input x>"),
        (["with z as a:", "    pass", "return a"], "unknown"),
        (["match n:", "    case 1:", "        a = x", "    case _:", "        a = y", "return a"],
         "tensor <input x> <input y>"),
        (["a = x", "del a", "return a"], "unbound"),
        (["def inner(x):", "    return y", "return inner"], "function"),
        (["import torch as t", "return t.zeros(1)"], "tensor <fresh>"),
        (["ctx.a = x", "return ctx.a"], "tensor <input x>"),
        (["if z is None:", "    return x", "return z"], None),
        (["z = x if z is None else z", "return z"], "tensor|unknown <input x> <input z>"),
        (["if isinstance(z, Tensor):", "    return z"], "tensor <input z>"),
        (["if not torch.is_tensor(z):", "    raise E", "return z"], "tensor <input z>"),
        (["if isinstance(z, (int, float)):", "    return z"], "number"),
        (["if isinstance(z, int | Tensor):", "    return z"], "unknown <input z>"),
        (["if isinstance(z, (int, Other)):", "    return z"], "unknown <input z>"),
        (["if not isinstance(z, torch.Tensor):", "    return z"], "unknown"),
        (["if not isinstance(z, SparseTensor):", "    return z"], "unknown <input z>"),
        (["if torch.is_tensor(z):", "    raise E", "return z"], "unknown"),
        (["if isinstance(z, int):", "    raise E", "return z"], "unknown <input z>"),
    ],
)  # fmt: skip
def test_statements(lines: list[str], expected: str | None) -> None:
    """What a name is behind assignments, branches, loops and handlers."""
    flow = forward(*lines)
    if expected is None:
        assert [shown(one.value) for one in flow.returns] == ["tensor <input x>", "unknown <input z>"]
    else:
        assert result(flow) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["return g"], "tensor <grad 0>"),
        (["return h.view(-1)"], "tensor <grad 1 view>"),
        (["x, y = ctx.saved_tensors", "return y"], "tensor <saved 1>"),
        (["return ctx.saved_tensors[0]"], "tensor <saved 0>"),
        (["x = ctx.saved_tensors", "return x[1]"], "tensor <saved 1>"),
        (["return ctx.n"], "number <ctx n>"),
        (["return ctx.unknown"], "unknown <ctx unknown>"),
        (["return ctx.needs_input_grad[1]"], "bool <needs 1>"),
        (["_, wanted, _ = ctx.needs_input_grad", "return wanted"], "bool <needs 1>"),
        (["return g * 2"], "tensor <fresh>"),
    ],
)
def test_what_backward_gets(lines: list[str], expected: str) -> None:
    """grad_outputs and saved tensors by their number, attributes of ctx by their name, flags by their argument."""
    assert result(backward(*lines)) == expected


def test_grad_outputs_behind_a_star() -> None:
    """Each has its number, in slices and unpacking too."""
    flow = backward("a, *b = grads", "return a, b[0], grads[2], grads[1:][0]", signature="ctx, *grads")
    items = flow.returns[0].value.items
    assert items is not None
    assert [shown(item) for item in items] == [f"tensor <grad {n}>" for n in (0, 1, 2, 1)]
    assert (
        result(backward("for g in grads:", "    a = g", "return a", signature="ctx, *grads")) == "tensor|unbound <grad>"
    )


def test_saved_tensors_lead_back_to_forward() -> None:
    """What backward reads is told in terms of forward, through either style."""
    both = """
        @staticmethod
        def forward(x, w, scale=2.0): return x * w
        @staticmethod
        def setup_context(ctx, inputs, output):
            x, w, ctx.scale = inputs
            ctx.save_for_backward(w, output)
        @staticmethod
        def backward(ctx, g):
            w, y = ctx.saved_tensors
            return g * w * ctx.scale, None, None
        """
    analysis = analysed(both)
    assert analysis.saved is not None
    assert [shown(value) for value in analysis.saved] == ["unknown <input w>", "unknown <output>"]
    assert analysis.backward is not None
    (w, y) = next(analysis.backward.nodes(ast.Tuple)).elts
    assert analysis.came_from(*analysis.backward.value(w).origins) == analysis.saved[0]
    assert analysis.came_from(*analysis.backward.value(y).origins) == analysis.saved[1]
    assert [*analysis.kept] == ["scale"]


def test_the_same_new_tensor_is_known_again() -> None:
    """What is kept and what is returned share their origin where they are one object, and don't where not."""
    flow = forward("y = x * 2", "ctx.y = y", "ctx.z = x * 3", "return y")
    kept = {one.name: one.value.origins for one in flow.ctx_sets}
    assert kept["y"] == flow.returns[0].value.origins
    assert kept["z"] != kept["y"]


def test_calls_of_ctx_are_remembered() -> None:
    """With what they got, stars spread where that is known, and what they stand under."""
    flow = forward(
        "if n:", "    ctx.save_for_backward(*(x, y), None)", "ctx.save_for_backward(*z)", "ctx.mark_dirty(x)"
    )
    first, second = flow.calls("save_for_backward")
    assert [shown(value) for value in first.values] == ["tensor <input x>", "tensor <input y>", "none"]
    assert first.whole
    assert [(guard.kind, guard.holds) for guard in first.guards] == [("if", True)]
    assert not second.whole
    assert len(flow.calls("mark_dirty")) == 1
    assert flow.falls_off


def test_an_early_return_guards_what_follows() -> None:
    """The rest of the block stands under the condition that didn't hold."""
    flow = forward("if not n:", "    return x", "return y")
    first, second = flow.returns
    assert [(g.kind, g.holds) for g in first.guards] == [("if", True)]
    assert [(g.kind, g.holds) for g in second.guards] == [("if", False)]


def test_what_cant_be_reached_has_no_value() -> None:
    """Behind a return, nothing is known, and nothing is returned."""
    flow = forward("return x", "return y + 1")
    assert len(flow.returns) == 1
    assert not flow.reached(next(flow.nodes(ast.BinOp)))


@pytest.mark.parametrize(
    ("signature", "lines", "expected"),
    [
        ("ctx, x", ["return x"], "unknown <input x>"),
        ("ctx, x", ["x.mul_(2)", "return x"], "tensor <input x>"),
        ("ctx, x", ["ctx.save_for_backward(x)", "return x"], "tensor <input x>"),
        ("ctx, x=None", ["ctx.save_for_backward(x)", "return x"], "unknown <input x>"),
        ("ctx, x: 'Tensor'", ["return x"], "tensor <input x>"),
        ("ctx, x: torch.Tensor", ["return x"], "tensor <input x>"),
        ("ctx, x: Optional[Tensor]", ["return x"], "none|tensor <input x>"),
        ("ctx, x: Tensor | None", ["return x"], "none|tensor <input x>"),
        ("ctx, x: float", ["return x"], "number"),
        ("ctx, x=True", ["return x"], "bool"),
        ("ctx, *x", ["return x[1]"], "unknown <input #1>"),
    ],
)
def test_arguments_are_tensors_where_something_shows_it(signature: str, lines: list[str], expected: str) -> None:
    """An annotation, what only a tensor can do, or that it is saved; otherwise nobody knows."""
    assert result(forward(*lines, signature=signature)) == expected


def test_an_argument_with_a_gradient_is_a_tensor() -> None:
    """Where backward returns a tensor for it."""
    analysis = analysed(
        """
        @staticmethod
        def forward(ctx, x, n): return x
        @staticmethod
        def backward(ctx, g): return 2 * g, None
        """
    )
    assert analysis.forward is not None
    assert result(analysis.forward) == "tensor <input x>"
