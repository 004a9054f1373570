"""One file that was parsed."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass, field
from functools import cached_property

from pullback.lint.files import Note, decode, module_name
from pullback.lint.names import Names


@dataclass(frozen=True, eq=False)
class Source:
    """A file, its text and its tree.

    Attributes:
        path: The file, as it was found.
        text: Its text.
        tree: What `ast` makes of it.
        module: The dotted name that it has as a module.
        names: What its names stand for.
    """

    path: str
    text: str
    tree: ast.Module
    module: str
    names: Names = field(repr=False)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, as `ast` counts them."""
        return self.text.split("\n")

    def place(self, node: ast.AST) -> str:
        """``file.py:12``, where a node begins."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def column(self, line: int, offset: int) -> int:
        """The column, from 1 and in characters, of what `ast` counts from 0 and in bytes of UTF-8."""
        written = self.lines[line - 1].encode("utf-8", "surrogatepass")
        return len(written[:offset].decode("utf-8", "surrogatepass")) + 1


def parse(path: str, content: bytes) -> Source | Note:
    """Parses a file; what can't be parsed is a note."""
    text = decode(path, content)
    if isinstance(text, Note):
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes: the file's own affair
            tree = ast.parse(text)
    except SyntaxError as error:
        return Note(path, f"line {error.lineno or 1} can't be parsed: {error.msg}")
    except (RecursionError, MemoryError):
        return Note(path, "can't be parsed: it is nested too deeply")
    except ValueError as error:
        return Note(path, f"can't be parsed: {error}")
    module, package = module_name(path)
    try:
        names = Names(tree, module, package=package)
    except RecursionError:
        return Note(path, "can't be read: it is nested too deeply")
    return Source(path, text, tree, module, names)
