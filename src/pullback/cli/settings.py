"""What configured commands share: ``[tool.pullback.COMMAND]`` of the nearest pyproject.toml, and checks of values."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pullback.cli.failure import UsageError
from pullback.report.names import format_of
from pullback.rules import RULES

_SHOWN = 60  # characters of a text that is refused


def file(start: str) -> str:
    """The pyproject.toml that is nearest to a folder, upwards; empty where there is none."""
    folder = os.path.abspath(start)
    while not os.path.isfile(found := os.path.join(folder, "pyproject.toml")):
        if folder == os.path.dirname(folder):
            return ""
        folder = os.path.dirname(folder)
    return found


def table(start: str, command: str) -> tuple[str, dict[str, Any]]:
    """The file that configures a command, and its table; an empty name and table where there is none.

    Raises:
        UsageError: What stands there is no table.
    """
    path = file(start)
    if not path:
        return "", {}
    from pullback.cli import toml  # here, since most runs of the linter find no such file, or have none

    found: Any = toml.read(path)
    for key in ("tool", "pullback", command):
        found = found.get(key, {}) if isinstance(found, dict) else {}
    if not isinstance(found, dict):
        raise UsageError(f"{path}: tool.pullback.{command} must be a table")
    return path, found


def known(keys: Collection[str], names: Collection[str], path: str, command: str) -> Iterator[str]:
    """The keys of a table, each of which has to be one of `names`.

    Raises:
        UsageError: A key is unknown.
    """
    for key in keys:
        if key not in names:
            close = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the keys are {', '.join(names)}"
            raise UsageError(f"{path}: unknown key {key!r} in [tool.pullback.{command}]; {hint}")
        yield key


def demand_codes(codes: Sequence[str], what: str) -> None:
    """Refuse a code that no rule has, or begins with."""
    for code in codes:
        if not code.startswith("PB") or not any(rule.startswith(code) for rule in RULES):
            raise UsageError(f"{what}: there is no rule {code!r}; pullback explain --list shows them all")


def demand_text(value: object, what: str, *, path: bool) -> None:
    """Refuse an empty text: whoever gave it meant something, most likely a variable that isn't set."""
    for text in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(text, str) and not text.strip(" ,"):
            raise UsageError(f"{what} is empty: {text!r}")
        if isinstance(text, str) and path:
            demand_path(text, what)


def demand_path(text: str, what: str) -> None:
    """Refuse what no file can be called, so that whatever uses a path later only has to ask whether it is there."""
    try:
        os.stat(text)
    except ValueError as error:  # NUL, or half of a surrogate pair
        fault = str(error)
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL):
            return
        fault = error.strerror or str(error)
    else:
        return
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    raise UsageError(f"{what} can't be a path: {shown!r} ({fault})")


def split(values: Sequence[str]) -> tuple[str, ...]:
    """The parts of texts that commas keep apart."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def demand_writable(path: str) -> None:
    """Refuse a report that could not be written, before anything is checked for it."""
    try:
        format_of(os.path.basename(path))
    except ValueError as error:
        raise UsageError(f"output-file: {error}") from None
    if os.path.isdir(path):
        raise UsageError(f"output-file: {path} is a folder")
