"""Writes src/pullback/lint/torch_names.txt: the names of torch that the linter knows, release by release.

``python -m tests.lint.write_torch_names [WHEEL...]`` adds the names of the installed release, and those that the
sources and stubs in some wheels of other releases define, to those that are there: a name that any release had since
2.0 stays, since code for that release may say it. Private names are left out: the linter is silent on all of them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
import textwrap
import zipfile
from pathlib import Path
from types import ModuleType

import pullback

TARGET = Path(pullback.__file__).parent / "lint" / "torch_names.txt"

MODULES = (
    "torch",
    "torch.Tensor",
    "torch.amp",
    "torch.autograd",
    "torch.autograd.function",
    "torch.fft",
    "torch.func",
    "torch.linalg",
    "torch.nn.functional",
    "torch.special",
)

FILES = {
    "torch": ("__init__.py", "functional.py", "_C/_VariableFunctions.pyi", "_C/__init__.pyi"),
    "torch.amp": ("amp/__init__.py",),
    "torch.autograd": ("autograd/__init__.py",),
    "torch.autograd.function": ("autograd/function.py",),
    "torch.fft": ("fft/__init__.py",),
    "torch.func": ("func/__init__.py",),
    "torch.linalg": ("linalg/__init__.py",),
    "torch.nn.functional": ("nn/functional.py", "nn/functional.pyi"),
    "torch.special": ("special/__init__.py",),
}
TENSORS = {"_C/__init__.pyi": ("_TensorBase", "TensorBase"), "_tensor.py": ("Tensor",)}

HEAD = "# Names of torch since 2.0, written by tests/lint/write_torch_names.py. `torch.Tensor` holds methods.\n"


def names_of(dotted: str) -> set[str]:
    """Every public name of a module, or of the class of tensors."""
    if dotted == "torch.Tensor":
        return {name for name in dir(importlib.import_module("torch").Tensor) if not name.startswith("__")}
    module = importlib.import_module(dotted)
    if dotted == "torch":
        return {name for name in dir(module) if not name.startswith("__")} | {
            found.name for found in pkgutil.iter_modules(module.__path__)
        }
    found = {name for name in dir(module) if not name.startswith("__")}
    return found | {name for name, value in inspect.getmembers(module) if isinstance(value, ModuleType)}


def defined(body: list[ast.stmt]) -> set[str]:
    """Every name that statements define, under conditions too."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        for block in ("body", "orelse"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                found |= defined(getattr(node, block, []))
    return found


def names_in_wheel(path: str) -> dict[str, set[str]]:
    """The names by module that the sources and stubs of a wheel define; stubs say what compiled modules hold."""
    found: dict[str, set[str]] = {module: set() for module in MODULES}
    with zipfile.ZipFile(path) as wheel:
        inside = wheel.namelist()
        for module, files in FILES.items():
            for file in files:
                if f"torch/{file}" in inside:
                    found[module] |= defined(ast.parse(wheel.read(f"torch/{file}")).body)
        for file, classes in TENSORS.items():
            for node in ast.walk(ast.parse(wheel.read(f"torch/{file}"))):
                if isinstance(node, ast.ClassDef) and node.name in classes:
                    found["torch.Tensor"] |= defined(node.body)
    modules = [name.split("/")[1] for name in inside if name.startswith("torch/") and name.endswith((".py", ".pyi"))]
    found["torch"] |= {name.partition(".")[0] for name in modules}
    return {module: {name for name in names if not name.startswith("__")} for module, names in found.items()}


def parsed(text: str) -> dict[str, set[str]]:
    """The names by module that a file of this form lists."""
    found: dict[str, set[str]] = {}
    module = ""
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        if line.startswith(" "):
            found[module] |= set(line.split())
        else:
            module = line
            found[module] = set()
    return found


def written(names: dict[str, set[str]]) -> str:
    """The file that lists these names."""
    parts = [HEAD]
    for module in MODULES:
        public = sorted(name for name in names[module] if name.isidentifier() and not name.startswith("_"))
        wrapped = textwrap.wrap(" ".join(public), 118, initial_indent="  ", subsequent_indent="  ")
        parts += ["\n".join([module, *wrapped]) + "\n"]
    return "".join(parts)


def main() -> None:
    """Add the names of the installed torch, and of wheels, to the file."""
    known = parsed(TARGET.read_text("utf-8")) if TARGET.exists() else {}
    several = [known, *map(names_in_wheel, sys.argv[1:])]
    everything = {module: names_of(module).union(*(one.get(module, set()) for one in several)) for module in MODULES}
    TARGET.write_text(written(everything), "utf-8")


if __name__ == "__main__":
    main()
