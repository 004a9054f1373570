"""From what a person names to what is to be imported. Nothing is imported here: files are only read."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pullback.cli.failure import UsageError

_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")
_METHODS = ("backward", "vjp", "jvp", "setup_context", "double_backward")


@dataclass(frozen=True, kw_only=True)
class Target:
    """One file or module that a worker is to import.

    Attributes:
        source: A path to a Python file, or a module's dotted name.
        is_file: Which of the two it is.
        names: Members that a person named: each is checked, or it is said that it isn't there.
        whole: Whether every Function that is defined in it is checked, beside those that are named.
        named: Whether a person named it; a file that was found in a folder may turn out to hold no Function.
    """

    source: str
    is_file: bool
    names: tuple[str, ...] = ()
    whole: bool = True
    named: bool = True


def resolve(named: Iterable[str]) -> list[Target]:
    """Turns command-line targets into files and modules, each once, in the order given.

    Args:
        named: ``file.py``, ``file.py:Class``, ``package.module:Class``, ``package.module`` or folders.

    Returns:
        The targets, those of one file joined, by whatever path or link it was named.

    Raises:
        UsageError: A file doesn't exist, isn't Python, or a folder holds no candidate.
    """
    joined: dict[tuple[bool, str], Target] = {}
    for text in named:
        for target in _parse(text):
            key = (target.is_file, os.path.realpath(target.source) if target.is_file else target.source)
            joined[key] = _join(joined[key], target) if key in joined else target
    return list(joined.values())


def _join(one: Target, other: Target) -> Target:
    # A file named as a whole stays whole, whichever of its classes are named beside it; and those have to be there.
    names = tuple(dict.fromkeys((*one.names, *other.names)))
    return replace(one, names=names, whole=one.whole or other.whole, named=one.named or other.named)


def _parse(text: str) -> Iterator[Target]:
    source, name = _split(text)
    path = Path(source)
    if path.is_dir():
        if name:
            raise UsageError(f"{text}: {source} is a folder; name a file in it, as in {path / 'file.py'}:{name}")
        yield from _in_folder(path)
    elif path.suffix == ".py" or path.exists() or os.sep in source:
        if not path.is_file():
            raise UsageError(f"{source}: no such file{_of_a_pattern(source)}")
        if path.suffix != ".py":
            raise UsageError(f"{source} isn't a Python file")
        yield Target(source=_tidy(path), is_file=True, names=(name,) if name else (), whole=not name)
    elif all(part.isidentifier() for part in source.split(".")):
        if "." in source and not name and not _may_be_package(source.partition(".")[0]):
            raise UsageError(f"{source}: no such file, and no such module")
        yield Target(source=source, is_file=False, names=(name,) if name else (), whole=not name)
    else:
        raise UsageError(f"{text}: a target is file.py, file.py:Class, package.module:Class or a folder")


def _of_a_pattern(source: str) -> str:
    return "; a pattern is the shell's to expand: name the folder" if re.search(r"[*?]|\[.*\]", source) else ""


def _may_be_package(name: str) -> bool:
    """Whether a module of this name can be found; nothing is imported for that."""
    try:
        here = importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
        return here is not None or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # an import hook of somebody else's; the import itself will tell
        return True


def _split(text: str) -> tuple[str, str]:
    if os.path.exists(text):  # a file's own name may hold a colon
        return text, ""
    source, colon, name = text.rpartition(":")
    if colon and source and all(part.isidentifier() for part in name.split(".")):
        return source, name
    if colon and not name:
        raise UsageError(f"{text}: name a class after the colon, or leave the colon out")
    return text, ""


def _tidy(path: Path) -> str:
    return os.path.normpath(path)


def _in_folder(folder: Path) -> Iterator[Target]:
    paths = sorted(_python_files(folder))
    if not paths:
        raise UsageError(f"{folder}: no Python file in this folder")
    candidates = [path for path in paths if may_define_function(path)]
    if not candidates:
        raise UsageError(f"{folder}: no Function can be seen in the source of its {len(paths)} Python files")
    for path in candidates:
        yield Target(source=_tidy(path), is_file=True, named=False)


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _PASSED_OVER and not Path(root, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(root, name) for name in names if name.endswith(".py"))


def may_define_function(path: Path) -> bool:
    """Whether a file's source shows a class that could be a Function; in doubt it could.

    Importing every file of a folder would run scripts that have nothing to do with gradients.
    """
    try:
        source = path.read_bytes()
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # its import will say what is wrong with it
        return b"Function" in source
    except OSError:
        return False
    return any(_may_be_function(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _may_be_function(node: ast.ClassDef) -> bool:
    bases = [ast.unparse(base) for base in node.bases]
    if any("Function" in base for base in bases):
        return True
    methods = [item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return bool(bases) and any(_looks_like_a_part(method) for method in methods)


def _looks_like_a_part(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    parameters = [*method.args.posonlyargs, *method.args.args]
    return method.name in _METHODS or (method.name == "forward" and bool(parameters) and parameters[0].arg == "ctx")
