"""Writing to standard output: colours for a terminal only, and no character that its encoding lacks can end a run."""

from __future__ import annotations

import shutil
import sys

from pullback.report.characters import visible
from pullback.report.text import WIDTH


def prepare() -> None:
    """Makes standard output take any text: what its encoding lacks is written as an escape."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def width() -> int:
    """Where to wrap prose: at the terminal's width if there is one, up to a readable length."""
    if not sys.stdout.isatty():
        return WIDTH
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def write(text: str) -> None:
    """Writes text and a newline to standard output, coloured if that is a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.write(text + "\n")
        return
    from pullback.cli import terminal  # here, since workers and pipes need no colours

    terminal.write(text)


def complain(message: str) -> None:
    """Writes one message to standard error, without what could move a cursor: it may quote the checked code."""
    sys.stderr.write(f"pullback: {visible(message)}\n")
