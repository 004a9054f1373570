"""Finding Functions: importing a file or module, and listing what it defines.

This is where other people's code is run for the first time, so whatever it raises becomes a finding.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from types import FunctionType, ModuleType
from typing import Any

import torch

from pullback.battery.raised import one_line
from pullback.custom.decorated import Decorated
from pullback.errors import CheckFailedError, PullbackError
from pullback.finding import Finding

_OWN_FOLDER = str(Path(__file__).resolve().parents[1])
_TORCH_FOLDER = str(Path(torch.__file__).parent)

_OPTIONAL = ("jvp", "vmap", "double_backward")
"""An operation is whole without these."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A Function, or any differentiable callable that was named.

    Attributes:
        function: The class or callable.
        name: The name by which its module knows it, such as ``Square`` or ``Outer.Inner``.
        location: ``file.py:12``, relative to the working directory where it lies below it.
    """

    function: Callable[..., Any]
    name: str
    location: str


@dataclass(frozen=True, kw_only=True)
class Members:
    """What was looked up in a module.

    Attributes:
        found: What can be applied, in the order of its definition.
        skipped: A sentence about each Function that can't be.
        unmet: Those of these sentences that are about members that were named.
        lacking: An error for each name that isn't there, or stands for what can't be called.
    """

    found: list[Found]
    skipped: list[str]
    unmet: list[str]
    lacking: list[UnloadableError]


class UnloadableError(Exception):
    """A target can't be imported, or lacks what was named.

    Args:
        finding: What to report.
        missing: Whether the target isn't there at all.
    """

    def __init__(self, finding: Finding, *, missing: bool = False) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.missing = missing


def load(source: str, *, is_file: bool) -> ModuleType:
    """Imports a file or a module by its dotted name.

    A file of a package is imported as a part of that package; any other file as ``python FILE`` would find it, with its
    folder first on ``sys.path``.

    Args:
        source: A path to a Python file, or a dotted name.
        is_file: Which of the two it is.

    Returns:
        The module.

    Raises:
        UnloadableError: The import raised; its finding names the exception and the line.
    """
    try:
        return _import_file(Path(source).resolve()) if is_file else importlib.import_module(source)
    except BaseException as error:  # a module may raise anything, SystemExit included
        raise UnloadableError(_why(error, source), missing=_is_missing(error, source, is_file=is_file)) from error


def find(module: ModuleType, source: str, names: Sequence[str] = (), *, whole: bool | None = None) -> Members:
    """The Functions and decorated functions to check in a module.

    Args:
        module: The imported module.
        source: What it was imported from, for messages.
        names: Members to check, wherever they were defined.
        whole: Whether to check all that the module itself defines, too; by default if no name is given.

    Returns:
        What there is to check, and what was asked for and isn't.
    """
    defined = dict(_defined(module))
    chosen = defined if whole or (whole is None and not names) else {}
    members = Members(found=[], skipped=[], unmet=[], lacking=[])
    named: set[int] = set()
    for name in names:
        try:
            member = _member(module, source, name, list(defined))
        except UnloadableError as error:
            members.lacking.append(error)
            continue
        named.add(id(member))
        if not any(member is other for other in chosen.values()):
            chosen = {**chosen, name: member}
    for name, function in chosen.items():
        entry = Found(function=function, name=name, location=locate(function))
        why = _inapplicable(function)
        if not why:
            members.found.append(entry)
            continue
        sentence = f"{name} ({entry.location or source}) {why}, and was not checked"
        members.skipped.append(sentence)
        if id(function) in named:
            members.unmet.append(sentence)
    return members


def locate(function: Callable[..., Any]) -> str:
    """``file.py:12`` for a class or callable, as short as the working directory allows; empty if it has no source."""
    try:
        target = inspect.unwrap(function)
        path = inspect.getsourcefile(target)
        line = inspect.getsourcelines(target)[1]
    except (TypeError, OSError):
        return ""
    return f"{shorten(path)}:{line}" if path else ""


def shorten(path: str) -> str:
    """A path relative to the working directory if it lies below it, else as it is."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if relative.startswith(os.pardir) else relative


def user_line(error: BaseException, source: str) -> tuple[str, str]:
    """Where an exception came from: ``file.py:7`` and that line, in the file itself if it was on the way."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{shorten(error.filename)}:{error.lineno}", (error.text or "").strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    if not frames:
        return "", ""
    own = [frame for frame in frames if _is_same(frame.filename, source)]
    frame = own[-1] if own else frames[-1]
    return f"{shorten(frame.filename)}:{frame.lineno}", (frame.line or "").strip()


def _import_file(path: Path) -> ModuleType:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and _is_same(file, str(path)):
            return module
    root, name = path.parent, path.stem
    if (root / "__init__.py").exists():
        while (root / "__init__.py").exists():
            root, name = root.parent, f"{root.name}.{name}"
        _put_first(root)
        return importlib.import_module(name.removesuffix(".__init__"))
    _put_first(root)
    return _import_alone(path)


def _import_alone(path: Path) -> ModuleType:
    # A file called like a module that is there already (random.py) must not take that module's place.
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_checked"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} isn't a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _put_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _defined(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    seen: dict[int, tuple[str, Callable[..., Any]]] = {}
    for name, value in _classes(vars(module), module, ""):
        # Of several names for one class, its own is the one that people know.
        if _is_function_class(value) and (id(value) not in seen or name == value.__qualname__):
            seen[id(value)] = (name, value)
    for name, value in vars(module).items():
        if isinstance(value, Decorated) and value.__module__ == module.__name__:
            seen.setdefault(id(value), (name, value))
    yield from seen.values()


def _classes(namespace: Any, module: ModuleType, prefix: str) -> Iterator[tuple[str, type]]:
    for name, value in list(namespace.items()):
        if not isinstance(value, type) or value.__module__ != module.__name__:
            continue
        path = f"{prefix}{name}"
        yield path, value
        if value.__qualname__ == path:  # its own place, so an alias inside it can't lead in a circle
            yield from _classes(vars(value), module, f"{path}.")


def _is_function_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def _inapplicable(function: object) -> str:
    """Why something can't be applied; empty where it can be."""
    if _is_function_class(function) and _is_abstract(function):
        return "has no forward: it is abstract"
    left = _left_to_subclasses(function) if _is_function_class(function) else ""
    if left:
        return f"leaves {left} to its subclasses: it is abstract"
    if isinstance(function, Decorated) and not function.has_rule:
        return "was given no derivative"
    return ""


def _is_abstract(function: Any) -> bool:
    return getattr(function.forward, "__qualname__", "") == torch.autograd.Function.forward.__qualname__


def _left_to_subclasses(function: Any) -> str:
    """A method that does nothing but raise NotImplementedError, and that a subclass writes; empty if there is none."""
    for name in dir(function) if function.__subclasses__() else ():
        held = inspect.getattr_static(function, name)
        method = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held
        if name in _OPTIONAL or not inspect.isfunction(method) or not _is_unwritten(method):
            continue
        if any(name in vars(subclass) for subclass in function.__subclasses__()):
            return name
    return ""


def _is_unwritten(method: FunctionType) -> bool:
    if "NotImplementedError" not in method.__code__.co_names or _is_machinery(method.__code__.co_filename):
        return False
    try:
        (tree,) = ast.parse(dedent(inspect.getsource(method))).body
    except (OSError, SyntaxError, ValueError):
        return False
    body = getattr(tree, "body", [])
    said = isinstance(tree, ast.FunctionDef) and ast.get_docstring(tree) is not None
    return len(body) == 1 + said and isinstance(body[-1], ast.Raise)


def _member(module: ModuleType, source: str, name: str, defined: list[str]) -> Callable[..., Any]:
    value: Any = module
    try:
        for part in name.split("."):
            value = getattr(value, part)
    except AttributeError:
        known = f"it defines {', '.join(defined)}" if defined else "it defines no Function"
        message = f"{source} has no {name}; {known}"
        raise UnloadableError(_unloadable(f"{source}:{name}", message), missing=True) from None
    if not callable(value):
        kind = type(value).__name__
        message = f"{name} in {source} is of type {kind}: neither class nor callable"
        raise UnloadableError(_unloadable(f"{source}:{name}", message), missing=True)
    return value  # type: ignore[no-any-return]  # narrowed from Any by callable()


def _why(error: BaseException, source: str) -> Finding:
    place, line = user_line(error, source)
    where = f"{place}: {line}" if line else place
    finding = _unloadable(source, f"importing {source} raised {one_line(error)}", where, place)
    if isinstance(error, PullbackError) and not isinstance(error, CheckFailedError):
        return replace(finding, expected=error.expected, got=error.got, remedy=error.remedy)
    return finding


def _unloadable(source: str, message: str, where: str = "", location: str = "") -> Finding:
    return Finding(rule="PB120", function=source, where=where, message=message, location=location)


def _is_missing(error: BaseException, source: str, *, is_file: bool) -> bool:
    if is_file or not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    return source == error.name or source.startswith(f"{error.name}.")


def _is_machinery(filename: str) -> bool:
    return filename.startswith(("<", _OWN_FOLDER, _TORCH_FOLDER))


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
