"""Writing to standard output: colours for a terminal only, and no character that its encoding lacks can end a run."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator

from pullback.cli.failure import UsageError
from pullback.report.characters import visible
from pullback.report.text import WIDTH


def prepare() -> None:
    """Makes standard output take any text: what its encoding lacks is written as an escape.

    Raises:
        UsageError: There is no standard output.
    """
    if sys.stdout is None:
        raise UsageError("standard output is closed, so there is nowhere to write to")
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def width() -> int:
    """Where to wrap prose: at the terminal's width if there is one, up to a readable length."""
    if not sys.stdout.isatty():
        return WIDTH
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def write(text: str) -> None:
    """Writes text and a newline to standard output, coloured if that is a terminal.

    Raises:
        BrokenPipeError: Whoever read it has gone.
        UsageError: It can't be written to for another reason: a full disk.
    """
    with _told():
        if not sys.stdout.isatty():
            sys.stdout.write(text + "\n")
            return
        from pullback.cli import terminal  # here, since workers and pipes need no colours

        terminal.write(text)


def flush() -> None:
    """Sends what was written on its way; raises as `write` does."""
    with _told():
        sys.stdout.flush()


def abandon() -> None:
    """Drops what standard output couldn't take: Python would try again at its exit, and complain."""
    with contextlib.suppress(OSError, ValueError):  # no file behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon()
        raise UsageError(f"standard output can't be written to: {error.strerror or error}") from None


def complain(message: str) -> None:
    """Writes one message to standard error, without what could move a cursor: it may quote the checked code."""
    sys.stderr.write(f"pullback: {visible(message)}\n")
