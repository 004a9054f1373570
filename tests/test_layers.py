"""The import table: which part of pullback may import which. Imports point down the table, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "pullback"

# Lowest first. A unit is a module or a folder right under pullback; it may import what stands in a lower row.
LAYERS = (
    ("__init__",),  # is there before all others, and loads the public names by their text
    ("rules", "context"),
    ("errors",),
    ("finding",),
    ("report", "lint", "torch_private"),
    ("torch_probes", "untraced"),
    ("define",),
    ("call",),
    ("transforms",),
    ("function",),
    ("adopted",),
    ("custom",),
    ("memory", "ops"),  # neither knows the other
    ("nn",),
    ("battery",),
    ("cli",),
    ("__main__", "pytest_plugin"),
)

# These load without torch, so at import time they import each other and nothing that needs it.
NO_TORCH = {"__init__", "rules", "context", "errors", "finding", "report", "lint", "cli", "__main__", "pytest_plugin"}

# These know less than their row allows.
ONLY = {"report": {"rules", "finding"}, "lint": {"rules", "finding"}}

# Imports inside a function: who, and what. All others stand at the head of the module.
LAZY = {
    ("finding", "report"),  # a Report prints itself
    ("cli", "torch"),  # `pullback env` says which torch there is
    ("cli", "torch_private"),
    ("torch_private", "torch_probes"),  # each name is read there anew, at its trial
    ("cli", "battery"),
    ("cli", "pathlib"),  # the linter has to start at once, and few of its runs need these three
    ("cli", "traceback"),
    ("report", "textwrap"),
    ("pytest_plugin", "errors"),  # pytest loads the plugin with every run, used or not
    ("pytest_plugin", "finding"),
    ("pytest_plugin", "report"),
}

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60


@dataclass(frozen=True)
class Import:
    """One import statement: in which module, of which module, and whether it stands inside a function."""

    importer: str
    imported: str
    line: int
    lazy: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path, root: Path) -> str:
    """`define.definition` for define/definition.py; a folder's own __init__ goes by the folder's name."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def unit(module: str) -> str:
    """The part that a module belongs to: the first word of its name."""
    return module.partition(".")[0]


def is_type_checking(node: ast.AST) -> bool:
    """Whether this is `if TYPE_CHECKING:`, whose imports never run."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def walk(node: ast.AST, *, lazy: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import that can run, and whether it waits for a call."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, lazy
        elif is_type_checking(child):
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield from walk(other, lazy=lazy)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from walk(child, lazy=lazy or inside)


def imported_names(node: ast.Import | ast.ImportFrom, modules: set[str]) -> Iterator[str]:
    """What a statement imports: `pullback`'s own modules without that prefix, others by their top name."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        assert node.level == 0, f"line {node.lineno}: imports are absolute here"
        assert node.module is not None
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
        top, _, rest = name.partition(".")
        if top != "pullback":
            yield top
            continue
        # `from pullback.rules import RULES` names a thing in a module; `from pullback import rules` names the module.
        while rest and rest not in modules:
            rest = rest.rpartition(".")[0]
        yield rest or "__init__"


def read(root: Path) -> tuple[dict[str, ast.Module], list[Import]]:
    """Every module under `root`, and every import in them."""
    trees = {module_name(path, root): ast.parse(path.read_text("utf-8")) for path in sorted(root.rglob("*.py"))}
    modules = set(trees)
    imports = [
        Import(importer, imported, node.lineno, lazy)
        for importer, tree in trees.items()
        for node, lazy in walk(tree, lazy=False)
        for imported in imported_names(node, modules)
    ]
    return trees, imports


def direction_faults(root: Path) -> list[str]:
    """Imports that point up or sideways, reach torch too early, or hide in a function."""
    trees, imports = read(root)
    row = {name: number for number, names in enumerate(LAYERS) for name in names}
    faults = [f"{module} stands in no row of the table" for module in trees if unit(module) not in row]
    for one in imports:
        here, there = unit(one.importer), unit(one.imported) if one.imported in trees else one.imported
        if here == there or here not in row:
            continue
        if one.lazy:
            if (here, there) not in LAZY:
                faults.append(f"{one} inside a function")
            continue
        if there == "torch" and here in NO_TORCH:
            faults.append(f"{one}, and is one of the parts that load without it")
        if there not in row:
            continue
        if row[there] >= row[here]:
            faults.append(f"{one}, which isn't below it")
        if here in NO_TORCH and there not in NO_TORCH:
            faults.append(f"{one}, which needs torch")
        if here in ONLY and there not in ONLY[here]:
            faults.append(f"{one}; it may know only {sorted(ONLY[here])}")
    return faults


def cycles(root: Path) -> list[str]:
    """Modules that can't be imported without each other."""
    trees, imports = read(root)
    edges: dict[str, set[str]] = {module: set() for module in trees}
    for one in imports:
        if not one.lazy and one.imported in trees and one.imported != one.importer:
            edges[one.importer].add(one.imported)
    faults: list[str] = []
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            faults.append(" -> ".join((*path[path.index(module) :], module)))
        elif module not in done:
            for following in sorted(edges[module]):
                visit(following, (*path, module))
            done.add(module)

    for module in sorted(edges):
        visit(module, ())
    return faults


def size_faults(root: Path) -> list[str]:
    """Modules and functions that are too long to be read in one go."""
    faults = []
    for path in sorted(root.rglob("*.py")):
        # A rulebook is a table to look things up in, not a module to read.
        lines = len(path.read_text("utf-8").splitlines())
        if lines > MAX_MODULE_LINES and path != root / "rules.py":
            faults.append(f"{path.relative_to(root)} has {lines} lines")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    faults.append(f"{path.relative_to(root)}:{node.lineno} {node.name} has {length} lines")
    return faults


def private_faults(root: Path) -> list[str]:
    """Private names of torch used outside the one module that tries them out."""
    faults = []
    for path in sorted(root.rglob("*.py")):
        if path == root / "torch_private.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
            # In a chain of attributes each part is a node: only the one that ends in the private name counts.
            private = r"torch\.(\w+\.)*_[a-zA-Z]\w*" + ("$" if isinstance(node, ast.Attribute) else "")
            for name in names:
                if re.match(private, name):
                    faults.append(f"{path.relative_to(root)}:{node.lineno} uses {name}")
    return faults


def test_imports_point_down_the_table() -> None:
    """No module imports one that stands beside or above it, and none hides an import in a function."""
    assert direction_faults(SOURCE) == []


def test_no_import_cycles() -> None:
    """Every module can be imported first."""
    assert cycles(SOURCE) == []


def test_modules_and_functions_are_short() -> None:
    """No module is over 400 lines, no function over 60."""
    assert size_faults(SOURCE) == []


def test_private_names_of_torch_live_in_one_module() -> None:
    """What PyTorch promises nothing about is used through torch_private, where it is tried out."""
    assert private_faults(SOURCE) == []


def test_the_table_has_no_dead_rows() -> None:
    """Every unit that the table names is there, so that the table stays the map of the code."""
    units = {unit(module) for module in read(SOURCE)[0]}
    assert {name for names in LAYERS for name in names} <= units
    assert {name for pair in LAZY for name in pair} - {"torch", "pathlib", "textwrap", "traceback"} <= units


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("rules.py", "import pullback.finding", "isn't below it"),
        ("rules.py", "from pullback import finding", "isn't below it"),
        ("define/other.py", "from pullback.call import apply", "isn't below it"),
        ("define/other.py", "def f():\n    from pullback.rules import RULES", "inside a function"),
        ("define/other.py", "class A:\n    def f(self):\n        import torch", "inside a function"),
        ("cli.py", "import torch", "load without it"),
        ("cli.py", "import torch.nn as nn", "load without it"),
        ("cli.py", "from pullback.battery import check", "needs torch"),
        ("report/text.py", "from pullback.errors import PullbackError", "it may know only"),
        ("stray.py", "", "stands in no row"),
    ],
)
def test_direction_faults_are_seen(tmp_path: Path, path: str, text: str, fault: str) -> None:
    """Each kind of forbidden import is found where it is planted, so the tests above can fail."""
    for name in ("rules.py", "finding.py", "errors.py", "call/apply.py", "battery/check.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / path).parent.mkdir(exist_ok=True)
    assert direction_faults(tmp_path) == []
    (tmp_path / path).write_text(text)
    (found,) = direction_faults(tmp_path)
    assert fault in found


def test_imports_for_types_alone_are_free(tmp_path: Path) -> None:
    """What stands under TYPE_CHECKING never runs, so it may point anywhere."""
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n    import pullback.cli\n"
    (tmp_path / "cli.py").touch()
    (tmp_path / "rules.py").write_text(text)
    assert direction_faults(tmp_path) == []


def test_cycles_are_seen(tmp_path: Path) -> None:
    """A cycle inside one folder, which the table can't see, is found."""
    (tmp_path / "call").mkdir()
    (tmp_path / "call" / "one.py").write_text("import pullback.call.two")
    assert cycles(tmp_path) == []
    (tmp_path / "call" / "two.py").write_text("from pullback.call.one import name")
    assert cycles(tmp_path) == ["call.one -> call.two -> call.one"]


@pytest.mark.parametrize("text", ["import torch._C", "from torch._C import x", "torch.a._b", "y = torch._C.z().w"])
def test_private_names_are_seen(tmp_path: Path, text: str) -> None:
    """However a private name is reached, it is found, except in the module that may."""
    (tmp_path / "torch_private.py").write_text(text)
    (tmp_path / "call.py").write_text("import torch.nn\ntorch.autograd.Function.__init__\nfrom torch.nn import Module")
    assert private_faults(tmp_path) == []
    (tmp_path / "call.py").write_text(text)
    assert len(private_faults(tmp_path)) == 1


def test_long_modules_and_functions_are_seen(tmp_path: Path) -> None:
    """One line more than is allowed is found."""
    (tmp_path / "module.py").write_text("x = 1\n" * MAX_MODULE_LINES)
    (tmp_path / "function.py").write_text("def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 1))
    assert size_faults(tmp_path) == []
    (tmp_path / "module.py").write_text("x = 1\n" * (MAX_MODULE_LINES + 1))
    (tmp_path / "function.py").write_text("def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES)
    assert size_faults(tmp_path) == ["function.py:1 f has 61 lines", "module.py has 401 lines"]
