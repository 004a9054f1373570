"""What backward returns for each argument, as a sign of what the argument is."""

from __future__ import annotations

import ast

import pytest

from pullback.lint.analysis import Analysis
from pullback.lint.discover import Project
from pullback.lint.given import gradient_of, is_tensor, returned
from pullback.lint.source import Source, parse


def analysed(backward: str, forward: str = "return x * w") -> Analysis:
    """A Function of x and w, and whatever else, with these methods."""
    text = (
        "from torch.autograd import Function\nclass F(Function):\n"
        f"    @staticmethod\n    def forward(ctx, x, w):\n        {forward}\n"
        f"    @staticmethod\n    def backward(ctx, g):\n        {backward}\n"
    )
    source = parse("f.py", text.encode())
    assert isinstance(source, Source)
    project = Project()
    project.add([source])
    (function,) = project.functions.values()
    return Analysis(function)


@pytest.mark.parametrize(
    ("backward", "x", "w"),
    [
        ("return g * 2, None", "some", "none"),
        ("return None, kernel(g)", "none", "some"),
        ("return (g if ctx.needs_input_grad[0] else None), None", "some", "none"),
        ("return kernel(g)", "unknown", "unknown"),
        ("return (g, *rest)", "unknown", "unknown"),
        ("return g", "unknown", "unknown"),
        ("raise NotImplementedError", "unknown", "unknown"),
    ],
)
def test_the_gradient_of_an_argument(backward: str, x: str, w: str) -> None:
    """Some on a path, none on every path, or nobody knows."""
    analysis = analysed(backward)
    assert (gradient_of(analysis, "x"), gradient_of(analysis, "w")) == (x, w)
    assert gradient_of(analysis, "missing") == "unknown"


def test_an_argument_with_a_gradient_is_a_tensor() -> None:
    """Without one it may be anything."""
    analysis = analysed("return g * 2, None")
    assert analysis.forward is not None
    inputs = {node.id: analysis.forward.value(node) for node in analysis.forward.nodes(ast.Name)}
    assert is_tensor(analysis, inputs["x"])
    assert not is_tensor(analysis, inputs["w"])


def test_what_forward_returns_is_known_by_its_origins() -> None:
    """An argument that comes back, and what was computed."""
    kinds = {(origin.kind, origin.name) for origin in returned(analysed("return g, g", "return x, x + 1"))}
    assert kinds == {("input", "x"), ("fresh", "")}
