"""Follows a name through modules that pass it on and that nobody had to read: a package that imports it, say."""

from __future__ import annotations

import ast
import os

from pullback.lint import files, source
from pullback.lint.names import Names
from pullback.lint.source import Source


def root_of(one: Source) -> str:
    """The folder from which a file's module is imported."""
    depth = len(one.module.split(".")) if one.module else 1
    folder = os.path.dirname(os.path.abspath(one.path))
    steps = depth if os.path.basename(one.path) == "__init__.py" else depth - 1
    for _ in range(steps):
        folder = os.path.dirname(folder)
    return folder


class Passing:
    """Reads the modules below some folder when a name leads through them, each once."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], Names | None] = {}
        self._led: dict[tuple[str, str], str] = {}

    def follow(self, dotted: str, root: str) -> str:
        """The full name under which a thing is defined; empty if that can't be told.

        Args:
            dotted: The name by which it was imported: ``package.Square``.
            root: The folder in which the package lies.
        """
        if (dotted, root) not in self._led:
            self._led[dotted, root] = ""  # for modules that pass it on to each other
            try:
                self._led[dotted, root] = self._follow(dotted, root)
            except RecursionError:  # through a thousand modules
                return ""
        return self._led[dotted, root]

    def _follow(self, dotted: str, root: str) -> str:
        module, _, name = dotted.rpartition(".")
        names = self._read(module, root) if module else None
        if names is None:
            return ""
        found = names.root.binding(name)
        if found is None:
            for star in names.root.stars:
                led = self.follow(f"{star}.{name}", root)
                if led:
                    return led
            return ""
        if found[0].kind == "class":
            return dotted
        leads_to = names.root.qualified(ast.Name(name))
        return self.follow(leads_to, root) if leads_to and leads_to != dotted else ""

    def _read(self, module: str, root: str) -> Names | None:
        if (module, root) not in self._names:
            base = os.path.join(root, *module.split("."))
            paths = [path for path in (os.path.join(base, "__init__.py"), f"{base}.py") if os.path.isfile(path)]
            content = files.read(paths[0]) if paths else None
            parsed = source.parse(paths[0], content) if isinstance(content, bytes) else None
            self._names[module, root] = parsed.names if isinstance(parsed, Source) else None
        return self._names[module, root]
