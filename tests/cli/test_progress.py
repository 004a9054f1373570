"""The line on a terminal that says what is being checked."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pullback.cli import progress


def test_names_are_seen_and_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's or a Function's name moves no cursor, breaks no line and is no markup."""
    shown: list[str] = []
    status = SimpleNamespace(start=list, stop=list, update=shown.append)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "Console", lambda stderr: SimpleNamespace(status=lambda text, spinner: status))
    with progress.Progress() as line:
        line.heard("\x1b[31m\nops.py", {"kind": "function", "name": "[bold]\x07Scale"})
        line.heard("ops.py", {"kind": "probe", "name": "values"})
    assert shown == [
        "\\x1b[31m ops.py: \\[bold]\\x07Scale (0 finished)",
        "ops.py: \\[bold]\\x07Scale values (0 finished)",
    ]
