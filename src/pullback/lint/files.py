"""Which files are read, and what is in them: whatever is wrong with a file is a note, and the run goes on."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
import stat
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

SKIPPED = frozenset(("__pycache__", "node_modules", "venv", "env", "site-packages", "build", "dist"))
"""Folders that a walk leaves out unless they are named; as all that begin with a dot."""

LARGEST = 32 * 2**20
"""Bytes of the largest file that is read."""

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # how such a text begins

# A file with neither of these words neither defines nor calls a Function.
_AUTOGRAD, _PULLBACK = b"autograd", b"pullback"


class Note(NamedTuple):
    """Why a file, or a part of one, was not judged.

    Attributes:
        path: The file.
        sentence: What is the matter with it.
    """

    path: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}: {self.sentence}"


def find(paths: Sequence[str], exclude: Sequence[str] = ()) -> Iterator[str]:
    """The Python files of some paths, each once, in order.

    Args:
        paths: Files, taken whatever their name, and folders, walked through.
        exclude: Patterns of files and folders to leave out, as the shell's, matched against the name, and against
            the path from where the walk began; what is named in `paths` itself isn't matched.
    """
    if len(paths) == 1 and os.path.isdir(paths[0]):  # a walk gives each file once
        yield from _walk(paths[0], exclude)
        return
    seen: set[str] = set()
    for path in paths:
        for file in _walk(path, exclude) if os.path.isdir(path) else (path,):
            whole = os.path.abspath(file)
            if whole not in seen:
                seen.add(whole)
                yield file


def _walk(root: str, exclude: Sequence[str]) -> Iterator[str]:
    """The files of a folder, then those of the folders in it; one call of the system for each folder."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        folders, found = _listed(folder)
        prefix = "" if folder == "." else os.path.join(folder, "")
        for name in found:
            if not _matches(root, folder, name, exclude):
                yield prefix + name
        inner = [name for name in folders if not _is_skipped(folder, name)]
        waiting += [prefix + name for name in reversed(inner) if not _matches(root, folder, name, exclude)]


def _listed(folder: str) -> tuple[list[str], list[str]]:
    """The folders in a folder, but for links to others, and its Python files, by name; none where it can't be read."""
    folders: list[str] = []
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
            elif name.endswith((".py", ".pyw")) and not _leads_to_a_folder(entry):
                found.append(name)
    return sorted(folders), sorted(found)


def _leads_to_a_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a link to a folder; one that leads in a circle isn't, and is a note when it is read."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_skipped(folder: str, name: str) -> bool:
    if name.startswith(".") or name == "__pycache__":
        return True
    if name not in SKIPPED:
        return False
    # `build` and its like are left out where they are what they are called, not where they are packages.
    return not os.path.exists(os.path.join(folder, name, "__init__.py"))


def _matches(root: str, folder: str, name: str, exclude: Sequence[str]) -> bool:
    if not exclude:
        return False
    path = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
    return matches(path, exclude)


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path, its name, or a folder it lies in is one of these patterns."""
    parts = path.replace(os.sep, "/").split("/")
    ends = ["/".join(parts[start:]) for start in range(len(parts))]
    starts = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    candidates = {*parts, *ends, *starts}
    return any(fnmatch.fnmatchcase(one, pattern.rstrip("/")) for pattern in patterns for one in candidates)


def read(path: str) -> bytes | Note:
    """The bytes of a file, or why there are none."""
    if path.endswith(".ipynb"):  # it would parse, as a dict of strings
        return Note(path, "is a notebook, and wasn't read: export its code as a .py file")
    try:
        file = os.open(path, _READ)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):  # a pipe would never end
                return Note(path, "is no regular file, and wasn't read")
            if status.st_size > LARGEST:
                return Note(path, f"is larger than {LARGEST >> 20} MB, and wasn't read")
            content = os.read(file, status.st_size + 1)
            while len(content) < status.st_size and (more := os.read(file, status.st_size)):
                content += more
            if content.startswith(_UTF_16):  # which says none of the words, as far as bytes go
                return Note(path, "is UTF-16, which Python doesn't read")
            return content
        finally:
            os.close(file)
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        return Note(path, f"can't be read: {reason}")


# Opened without waiting, as for the writer of a pipe, and without changing the ends of lines, as Windows would.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def says_anything(content: bytes) -> bool:
    """Whether a file can have to do with Functions at all."""
    return _AUTOGRAD in content or _PULLBACK in content


def decode(path: str, content: bytes) -> str | Note:
    """The text of a file, by the encoding that it declares (PEP 263), or why it has none.

    Lines end as `ast` has it, whatever they end in: the columns and the lines of findings are counted in this text.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:
        return Note(path, f"its encoding can't be read: {_one_line(error)}")
    text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def module_name(path: str) -> tuple[str, bool]:
    """The dotted name that a file has as a module, by the packages it lies in; and whether it is a package itself."""
    folder, file = os.path.split(os.path.abspath(path))
    parts = [] if file == "__init__.py" else [os.path.splitext(file)[0]]
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.basename(folder):
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    return ".".join(parts), file == "__init__.py"


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
