"""``pullback saved``: what the graph of a script's first step keeps in memory."""

from __future__ import annotations

import argparse
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
        The exit code: 0, or 2 where the script fails before there is anything to measure.

    Raises:
        UsageError: There is no such script.
    """
    script = Path(arguments.script)
    if not script.is_file():
        raise UsageError(f"{script} is no file; name a script: pullback saved train.py")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "ledger"
        form = "json" if arguments.json else "text"
        given = [str(target), form, arguments.plot or "", str(script), *arguments.arguments]
        # What the script prints goes to standard error, so that standard output has the ledger alone.
        code = subprocess.run([sys.executable, "-c", _START, *given], stdout=_STDERR, check=False).returncode
        if not target.is_file():
            if code < 0:
                output.complain(f"the script ended its process with {signal.Signals(-code).name}")
            return USAGE
        output.write(target.read_text("utf-8"))
    return CLEAN
