"""The right Functions that faults are planted in: the operations, the examples, and the right half of the zoo."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

SOURCES = ("src/pullback/ops/*.py", "examples/chapter.py", "tests/zoo/right/*.py")
"""Where right Functions with samples stand."""

KERNELS = frozenset({"Snake"})
"""Functions whose forward and backward are one call of a kernel each: there is no formula in Python to rewrite."""


@dataclass(frozen=True)
class Original:
    """A right Function.

    Attributes:
        path: Its file, relative to the repository.
        name: Its class.
    """

    path: str
    name: str

    @property
    def id(self) -> str:
        """Its name in tables: ``swiglu.SwiGLU``."""
        return f"{Path(self.path).stem}.{self.name}"

    @functools.cached_property
    def source(self) -> str:
        """The text of its file."""
        return (ROOT / self.path).read_text(encoding="utf-8")


def originals() -> list[Original]:
    """Every right Function with samples, in the order of files and lines."""
    found = []
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            names = _functions(ast.parse(path.read_text(encoding="utf-8")))
            found += [Original(str(path.relative_to(ROOT)), name) for name in names if name not in KERNELS]
    return found


def _functions(tree: ast.Module) -> list[str]:
    """The Functions of a module that have samples, their own or inherited within the module."""
    known: set[str] = set()
    sampled: set[str] = set()
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = {base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases}
        if not bases & ({"Function"} | known):
            continue
        known.add(node.name)
        own = any(isinstance(part, ast.FunctionDef) and part.name == "samples" for part in node.body)
        if own or bases & sampled:
            sampled.add(node.name)
    return [node.name for node in tree.body if getattr(node, "name", "") in sampled and not node.name.startswith("_")]


def load(path: Path, name: str) -> Any:
    """Import the class `name` from a file, under a module name of its own, so that its source can be read."""
    module_name = f"power_{path.parent.name}_{path.stem}".replace("-", "_").replace(".", "_")
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # the zoo's files import from each other
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return getattr(module, name)
