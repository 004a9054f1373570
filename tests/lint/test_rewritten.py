"""The same Function written in another way has the same findings."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lint.helper import findings

EXAMPLES = Path(__file__).parent / "examples"
CODES = (
    "PB111 PB201 PB202 PB204 PB208 PB209 PB210 PB218 PB222 PB230 PB231 PB233 PB234 PB235 PB236 PB237 PB238 PB240 PB241 "
    "PB304 PB508"
).split()
"""Rules on gradients, flags and saved tensors. (PB232 reads the names in the return itself.)"""


class _Backward(ast.NodeTransformer):
    """Rewrites statements of backward, those of functions in it left out."""

    def __init__(self) -> None:
        self._inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Go into backward alone."""
        if node.name == "backward" and not self._inside:
            self._inside = True
            self.generic_visit(node)
            self._inside = False
        return node


class ByAVariable(_Backward):
    """``return a, b`` by a name."""

    def visit_Return(self, node: ast.Return) -> ast.AST | list[ast.AST]:
        """Rewrite it."""
        if not isinstance(node.value, ast.Tuple):
            return node
        return [ast.Assign([ast.Name("result", ast.Store())], node.value), ast.Return(ast.Name("result", ast.Load()))]


class ByAList(_Backward):
    """``return a, b`` by a list."""

    def visit_Return(self, node: ast.Return) -> ast.AST | list[ast.AST]:
        """Rewrite it."""
        if not isinstance(node.value, ast.Tuple):
            return node
        made = ast.Assign([ast.Name("result", ast.Store())], ast.List(node.value.elts, ast.Load()))
        call = ast.Call(ast.Name("tuple", ast.Load()), [ast.Name("result", ast.Load())], [])
        return [made, ast.Return(call)]


class ByStatements(_Backward):
    """``a = b if c else d`` by ``if`` and ``else``."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Rewrite it."""
        if not isinstance(node.value, ast.IfExp):
            return node
        then, other = (ast.Assign(node.targets, value) for value in (node.value.body, node.value.orelse))
        return ast.If(node.value.test, [then], [other])


class TheOtherWayRound(_Backward):
    """``if c: a else: b`` by ``if not c: b else: a``."""

    def visit_If(self, node: ast.If) -> ast.AST:
        """Rewrite it."""
        self.generic_visit(node)
        return ast.If(ast.UnaryOp(ast.Not(), node.test), node.orelse or [ast.Pass()], node.body)


def within(wrapped: Callable[[list[ast.stmt]], ast.stmt]) -> Callable[[ast.Module], ast.Module]:
    """Puts the whole body of backward into a statement."""

    def rewrite(tree: ast.Module) -> ast.Module:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "backward":
                node.body = [wrapped(node.body)]
        return tree

    return rewrite


def no_grad(body: list[ast.stmt]) -> ast.stmt:
    """``with torch.no_grad():``."""
    (statement,) = ast.parse("with torch.no_grad():\n    pass").body
    assert isinstance(statement, ast.With)
    statement.body = body
    return statement


REWRITES: dict[str, Callable[[ast.Module], ast.AST]] = {
    "by a variable": lambda tree: ByAVariable().visit(tree),
    "by a list": lambda tree: ByAList().visit(tree),
    "by statements": lambda tree: ByStatements().visit(tree),
    "the other way round": lambda tree: TheOtherWayRound().visit(tree),
    "in with": within(no_grad),
    "in try": within(lambda body: ast.Try(body, [], [], [ast.Pass()])),
    "in if True": within(lambda body: ast.If(ast.Constant(True), body, [])),
}


def codes(text: str) -> Counter[str]:
    """How often each of these rules is found."""
    return Counter(one.rule for one in findings(text, hints=True) if one.rule in CODES)


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("code", CODES)
def test_another_way_to_write_it(code: str, rewrite: str) -> None:
    """Whatever means the same is judged the same; what is right stays right."""
    for name in ("wrong", "right"):
        text = (EXAMPLES / code / f"{name}.py").read_text("utf-8")
        other = ast.unparse(ast.fix_missing_locations(REWRITES[rewrite](ast.parse(text))))
        assert codes(f"import torch\n{other}") == codes(text)


def test_the_rewrites_rewrite() -> None:
    """Each of them changes some of the examples."""
    texts = [path.read_text("utf-8") for code in CODES for path in (EXAMPLES / code).glob("*.py")]
    for rewrite in REWRITES.values():
        assert any(
            ast.unparse(ast.fix_missing_locations(rewrite(ast.parse(text)))) != ast.unparse(ast.parse(text))
            for text in texts
        )
