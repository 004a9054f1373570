"""What ends a command with exit code 2, and the exit codes themselves."""

from __future__ import annotations

CLEAN = 0
FINDINGS = 1
USAGE = 2
INTERRUPTED = 130


class UsageError(Exception):
    """The command can't be carried out as it was given; the message says what to write instead."""
