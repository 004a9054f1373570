"""Which files are worth parsing, told from their bytes: parsing is what takes the time.

A file is parsed if it may derive a class from PyTorch's or pullback's Function, or imports a Function of the run, or
a module that has one, under whatever name. What isn't seen: a Function that is called without ``.apply`` where its
module is named by no import (``package.module.Square(x)`` after ``import package``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pullback.lint.discover import OURS, TORCHS
from pullback.lint.functions import FunctionClass
from pullback.lint.names import Binding, Scope

# A name is what `\w` takes, and any byte above: letters beyond ASCII, in whatever encoding. A class may have type
# parameters; its bases end before the colon, and may hold brackets of their own.
_CLASS = re.compile(rb"class\s+[\w\x80-\xff]+\s*(?:\[[^\n]*?\]\s*)?\(([^:]*)")
_SYMBOLS = re.compile(rb"\bsympy\s*\.\s*Function\b")  # another Function, of formulas
_IMPORTED_AS = re.compile(rb"Function\s+as\s+([\w\x80-\xff]+)")
_ASSIGNED = re.compile(rb"([\w\x80-\xff]+)\s*=\s*(?:[\w.\x80-\xff]*\.)?(?:Inplace|NestedIO)?$")
_ROOTS = frozenset(name.rpartition(".")[2].encode() for name in TORCHS | OURS)
_WORD = re.compile(rb"[\w\x80-\xff]+")
_BEFORE = re.compile(rb"([\w\x80-\xff]+)\s*$")


def defines(content: bytes) -> bool:
    """Whether a file may have a class whose base is PyTorch's or pullback's own."""
    if b"Function" not in content:
        return False
    names: set[bytes] | None = None
    for place in _places(content, b"class"):
        match = _CLASS.match(content, place)
        if match is None or not _begins(content, place):
            continue
        words = _WORD.findall(_SYMBOLS.sub(b"", match[1]))
        if not _ROOTS.isdisjoint(words):
            return True
        if names is None:
            names = set(_aliases(content))
        if names and not names.isdisjoint(words):
            return True
    return False


def _begins(content: bytes, place: int) -> bool:
    """Whether nothing but space, or the mark of UTF-8, stands before a place on its line, as before every class."""
    before = content[content.rfind(b"\n", 0, place) + 1 : place].rpartition(b"\r")[2]
    return not before.strip(b" \t\f\xef\xbb\xbf")


def _aliases(content: bytes) -> Iterator[bytes]:
    """The names that a file gives to something whose name ends in Function."""
    for place in _places(content, b"Function"):
        before = content[content.rfind(b"\n", 0, place) + 1 : place]
        match = _IMPORTED_AS.match(content, place) or (_ASSIGNED.search(before) if b"=" in before else None)
        if match is not None:
            yield match[1]


def _places(content: bytes, word: bytes) -> Iterator[int]:
    place = content.find(word)
    while place >= 0:
        yield place
        place = content.find(word, place + len(word))


class Imports(NamedTuple):
    """What a file imports, as its bytes say it.

    Attributes:
        named: ``from module import words``: the last word of the module (empty for ``from . import``), and the words.
        starred: The last words of modules of which everything is imported.
        words: Every word of every import.
        applied: The words before ``.apply``.
        absent: The names that the file was searched for, and hasn't got.
    """

    named: tuple[tuple[bytes, frozenset[bytes]], ...]
    starred: frozenset[bytes]
    words: frozenset[bytes]
    applied: frozenset[bytes]
    absent: set[bytes]


def imports(content: bytes) -> Imports:
    """What a file imports."""
    named: list[tuple[bytes, frozenset[bytes]]] = []
    starred: set[bytes] = set()
    words: set[bytes] = set()
    for module, text in _statements(content):
        last = module.rpartition(b".")[2]
        several = frozenset(_WORD.findall(text))
        if module is not _NO_MODULE and b"*" in text:
            starred.add(last)
        named.append((last, several))
        words |= several
    before = (_BEFORE.search(content, max(0, place - 80), place) for place in _places(content, b".apply"))
    applied = frozenset(match[1] for match in before if match is not None)
    return Imports(tuple(named), frozenset(starred), frozenset(words), applied, set())


_NO_MODULE = b""


def _statements(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The module and the text of each import; texts of comments and strings that look like one do no harm."""
    found = content.find(b"import ")
    while found >= 0:
        start = content.rfind(b"\n", 0, found) + 1
        head = content[start:found].strip()
        if head and not head.startswith(b"from"):
            head = re.split(rb"[;:]", head)[-1].strip()  # `if x: import y`
        begin = found + 7
        if content[begin : begin + 64].lstrip().startswith(b"("):
            end = content.find(b")", begin)
        else:
            end = content.find(b"\n", begin)
            while end > 0 and content[end - 1 : end] in (b"\\", b"\r") and content[:end].rstrip(b"\r").endswith(b"\\"):
                end = content.find(b"\n", end + 1)
        end = len(content) if end < 0 else end
        if not head:
            yield _NO_MODULE, content[begin:end]
        elif head.startswith(b"from"):
            yield head[4:].strip(), content[begin:end]
        found = content.find(b"import ", max(end, begin))


def _last_word(bound: Binding) -> str:
    """The last word of what a binding stands for, but for ``.apply``; empty where that is no name."""
    node = bound.node
    if bound.kind == "value" and isinstance(node, ast.Attribute) and node.attr == "apply":
        node = node.value
    if bound.kind == "value" and isinstance(node, (ast.Name, ast.Attribute)):
        return node.id if isinstance(node, ast.Name) else node.attr
    return bound.dotted.rpartition(".")[2]


@dataclass(eq=False)
class Known:
    """The Functions found so far, and the modules through which each can be reached.

    Attributes:
        modules: Name of a Function -> words of the modules that have it.
        names: Last word of a module -> the Functions that it has.
    """

    modules: dict[bytes, set[bytes]] = field(default_factory=dict)
    names: dict[bytes, set[bytes]] = field(default_factory=dict)

    def add(self, name: bytes, module: str) -> bool:
        """Takes in that a module has a Function; whether that is new."""
        parts = module.encode("utf-8", "surrogateescape").split(b".")  # of a path, which may be no text at all
        words = set(parts)
        known = self.modules.setdefault(name, set())
        new = not words <= known
        known |= words
        self.names.setdefault(parts[-1], set()).add(name)
        return new

    def add_function(self, function: FunctionClass) -> bool:
        """Takes in a Function that was found; whether it is new."""
        return self.add(function.node.name.encode(), function.source.module)

    def passed_on(self, found: Imports) -> Iterator[bytes]:
        """The Functions that a file imports by name."""
        for module, words in found.named:
            for name in words & self.modules.keys():
                if not module or module in self.modules[name]:
                    yield name

    def passed_under(self, module: Scope) -> list[bytes]:
        """The names by which a module passes Functions on: ``from .ops import Square as S``, ``square = S.apply``."""
        found = []
        for name, bindings in module.bindings.items():
            if any(_last_word(bound).encode() in self.modules for bound in bindings):
                found.append(name.encode())
        return found

    def concern(self, content: bytes, found: Imports) -> bool:
        """Whether a file may call or derive from one of them."""
        known = self.modules.keys()
        if not known.isdisjoint(found.applied) or (not known.isdisjoint(found.words) and any(self.passed_on(found))):
            return True
        if any(name in content for word in found.starred for name in self.names.get(word, ())):
            return True
        names = {name for word in found.words & self.names.keys() for name in self.names[word]} - found.absent
        found.absent.update(names)  # whoever asks again has found more Functions, and need look for those alone
        return any(b"." + name in content for name in names)
