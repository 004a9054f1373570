"""The walk through a tree gives what `ast.walk` gives."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pullback.lint.trees import walk

SOURCES = sorted((Path(__file__).parents[1] / "zoo").glob("*/*.py"))[:6]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_node_comes_in_its_order(path: Path) -> None:
    """But for the marks that say whether a name is loaded or stored."""
    tree = ast.parse(path.read_text("utf-8"))
    marks = (ast.Load, ast.Store, ast.Del)
    assert walk(tree) == [node for node in ast.walk(tree) if not isinstance(node, marks)]


def test_several_roots_are_walked_together() -> None:
    """Each with all that is below it."""
    first, second = ast.parse("x = 1\ny = 2").body
    assert {id(node) for node in walk(first, second)} == {id(node) for root in (first, second) for node in walk(root)}
