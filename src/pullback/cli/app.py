"""The entry point: parses the command line, runs a command, and makes an exit code of whatever happens."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from pullback.cli import output, parser
from pullback.cli.failure import INTERRUPTED, USAGE, UsageError


def main(argv: Sequence[str] | None = None, *, engine: str = "pullback.battery.engine") -> int:
    """Runs one command.

    Args:
        argv: The arguments; those of the process unless given, and then ``lint`` ends the process by itself, at once.
        engine: The module that finds Functions and checks them in worker processes.

    Returns:
        0 clean, 1 findings, 2 usage or internal error, 130 interrupted.
    """
    try:
        output.prepare()
        arguments = _parsed(argv)
        ends_process = argv is None and arguments.command == "lint"
        if ends_process:
            gc.disable()  # trees die with the process: what is collected or taken apart before is time lost
        code = _dispatch(arguments.command, arguments, engine)
        output.flush()
        if ends_process:
            sys.stderr.flush()
            os._exit(code)
        return code
    except UsageError as error:
        output.complain(str(error))
        return USAGE
    except KeyboardInterrupt:
        output.complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has seen enough; Python must not complain at exit
        output.abandon()
        return USAGE
    except Exception:
        import traceback  # here, since no other run needs it

        output.complain(f"internal error; please report it\n{traceback.format_exc()}")
        return USAGE


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    try:
        return parser.build().parse_args(argv)
    except SystemExit:  # after --help and --version, or what is wrong with the arguments
        output.flush()
        raise


def _dispatch(command: str, arguments: argparse.Namespace, engine: str) -> int:
    # Each command is imported when it is run, so that the help of one doesn't wait for the others.
    if command == "check":
        from pullback.cli import check

        return check.run(arguments, engine=engine)
    if command == "lint":
        from pullback.cli import lint

        return lint.run(arguments)
    if command == "saved":
        from pullback.cli import saved

        return saved.run(arguments)
    if command == "explain":
        from pullback.cli import explain

        return explain.run(arguments)
    from pullback.cli import env

    return env.run()
