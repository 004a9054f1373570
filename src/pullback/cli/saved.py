"""``pullback saved``: what the graph of a script's first step keeps in memory."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from pullback.cli import output
from pullback.cli.failure import CLEAN, USAGE, UsageError

_ROOT = str(Path(__file__).resolve().parents[2])
# Without the working directory on sys.path, a file there that is called like a module of torch's can't replace it.
_START = f"""\
import sys
sys.path[:1] = []
sys.path.append({_ROOT!r})
try:
    from pullback.memory.script import main
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    sys.exit("pullback: measuring needs torch: install your own build, or pullback[torch]")
main()
"""
_STDERR = 2


def run(arguments: argparse.Namespace) -> int:
    """Carries out the command.

    Args:
        arguments: What argparse made of the command line.

    Returns:
        The exit code: 0, or 2 where the script fails before its step is complete.

    Raises:
        UsageError: There is no such script.
    """
    if not arguments.module:
        _check(Path(arguments.script))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "ledger"
        plot = os.path.abspath(arguments.plot) if arguments.plot else ""  # the script may go to another folder
        options = ["json" if arguments.json else "text", plot, str(arguments.depth or "")]
        kind = "module" if arguments.module else "script"
        given = [str(target), *options, kind, arguments.script, *arguments.arguments]
        # What the script prints goes to standard error, so that standard output has the ledger alone.
        code = subprocess.run([sys.executable, "-c", _START, *given], stdout=_STDERR, check=False).returncode
        if target.is_file():
            output.write(target.read_text("utf-8"))
            output.flush()
        said = Path(f"{target}.said")
        if said.is_file():
            sys.stderr.write(said.read_text("utf-8"))
        elif code < 0:
            output.complain(f"the script ended its process with {signal.Signals(-code).name}")
        elif not code:
            output.complain("the script ended its process before it called backward, so there is no ledger")
        measured = target.is_file() and code == 0
    return CLEAN if measured else USAGE


def _check(script: Path) -> None:
    """Raise where a script can't be run.

    Raises:
        UsageError: It isn't there, or is a folder.
    """
    if script.is_dir():
        raise UsageError(f"{script} is a folder; name a script, or a module: pullback saved -m package.module")
    if not script.is_file():
        raise UsageError(f"{script} is no file; name a script: pullback saved train.py")
