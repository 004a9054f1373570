"""What counts as a write, into what, and who reads what it gives back."""

from __future__ import annotations

import ast
import textwrap

import pytest

from pullback.lint.analysis import Analysis
from pullback.lint.discover import Project
from pullback.lint.source import Source, parse
from pullback.lint.writing import Write, writes


def written(*lines: str) -> list[Write]:
    """The writes of a backward with these lines, whose grad_outputs are g and h."""
    body = textwrap.indent("\n".join(lines), " " * 8)
    text = (
        "import numpy as np\nimport torch\nimport torch.distributed as dist\nfrom torch.autograd import Function\n"
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x, x\n"
        f"    @staticmethod\n    def backward(ctx, g, h):\n{body}\n"
    )
    source = parse("f.py", text.encode())
    assert isinstance(source, Source)
    project = Project()
    project.add([source])
    (function,) = project.functions.values()
    flow = Analysis(function).backward
    assert flow is not None
    return writes(flow)


@pytest.mark.parametrize(
    ("line", "target", "shown"),
    [
        ("g.mul_(2)", "g", "mul_"),
        ("g *= 2", "g", "*="),
        ("g @= h", "g", "@="),
        ("g[0] = 1", "g", "[…] ="),
        ("g[0] **= 2", "g", "**="),
        ("g.data = h", "g", ".data ="),
        ("g.data += h", "g.data", "+="),
        ("torch.add(g, h, out=h)", "h", "out="),
        ("torch.sort(h, out=(g, i))", "g", "out="),
        ("torch.nn.functional.relu_(g)", "g", "relu_"),
        ("torch.nn.init.zeros_(g)", "g", "zeros_"),
        ("dist.all_reduce(tensor=g)", "g", "all_reduce"),
        ("np.copyto(g.numpy(), 0)", "g.numpy()", "copyto"),
        ("g.numpy().fill(0)", "g.numpy()", "fill"),
        ("g.__setitem__(0, 1)", "g", "__setitem__"),
    ],
)
def test_each_way_of_writing_is_known(line: str, target: str, shown: str) -> None:
    """The first thing that is written into, and the name that a message gives to the write."""
    first = written(line)[0]
    assert (ast.unparse(first.target), first.shown) == (target, shown)


@pytest.mark.parametrize(
    "line",
    [
        "g.mul(2)", "g.requires_grad_()", "g.detach_()", "k.mul_(2)", "g.__init__()", "torch.mul(g, h)", "g.copy_(g)",
        "torch.ops.mine.fill(h, out=g)", "elsewhere(g, out=h)", "count += 1", "ctx.n[0] = 1", "g.grad = h",
    ],
)  # fmt: skip
def test_what_only_looks_like_one_is_none(line: str) -> None:
    """Names that nobody knows, numbers, methods that change no element, and kernels whose out= is anybody's guess."""
    assert written(line) == []


def test_a_chain_is_one_write() -> None:
    """The first of it stands for all, and it is read where the last one is."""
    (dropped,) = written("g.mul_(2).add_(1)")
    assert (dropped.shown, dropped.read) == ("mul_", False)
    (read,) = written("return g.mul_(2).add_(1), h")
    assert (read.shown, read.read) == ("mul_", True)


def test_a_write_to_the_object_leaves_others_views_alone() -> None:
    """squeeze_ changes the tensor it is called on: the gradient itself, or a view that is backward's own."""
    (itself,) = written("g.squeeze_()")
    assert [origin.index for origin in itself.into("grad")] == [0]
    (view,) = written("h.t().squeeze_()")
    assert view.into("grad") == ()
    (elements,) = written("h.t().mul_(2)")
    assert [origin.index for origin in elements.into("grad")] == [1]


def test_writes_come_in_the_order_of_their_lines() -> None:
    """Whatever kind they are of."""
    assert [one.shown for one in written("g += 1", "h.mul_(2)", "g[0] = 1", "torch.add(g, 1, out=h)")] == [
        "+=", "mul_", "[…] =", "out=",
    ]  # fmt: skip


def test_what_cant_be_reached_writes_nothing() -> None:
    """Behind a return nothing runs."""
    assert written("return g, h", "g.mul_(2)") == []
