"""The hook for pre-commit runs the command as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

from pullback.cli.parser import build

HOOKS = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"


def test_the_hook_runs_the_linter() -> None:
    """Its entry is a command that the parser takes, with the files behind it, in one process."""
    lines = HOOKS.read_text("utf-8").splitlines()
    assert [line[:2] for line in lines] == ["- ", *["  "] * (len(lines) - 1)]  # one hook
    hook = dict(line[2:].split(": ", 1) for line in lines)
    program, *arguments = shlex.split(hook["entry"])
    parsed = build().parse_args([*arguments, "a.py", "b.py"])
    assert (program, parsed.command, parsed.paths) == ("pullback", "lint", ["a.py", "b.py"])
    assert (hook["id"], hook["language"], hook["types"]) == ("pullback-lint", "python", "[python]")
    assert hook["require_serial"] == "true"
