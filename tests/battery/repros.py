"""Runs the lines that show a fault, as somebody would who pastes them, and tells whether they show it."""

import contextlib
import gc
import io
import re
import traceback

from pullback.finding import Finding


def shown(finding: Finding, **scope: object) -> str:
    """What the lines print, and the error that they end in."""
    assert finding.repro, f"{finding.rule} has no lines that show it"
    output, ending = io.StringIO(), ""
    known = {name: value for name, value in scope.items() if f"# {name} as it is defined in" in finding.repro}
    collects = gc.isenabled()
    with contextlib.redirect_stdout(output):
        try:
            exec(compile(finding.repro, "the lines", "exec"), known)
        except Exception as error:
            ending = f"{type(error).__name__}: {error}"
            # What PyTorch raises from C++ comes from the line that called it; of such an error the finding tells.
            in_lines = traceback.extract_tb(error.__traceback__)[-1].filename == "the lines"
            its_own = ending in finding.message or isinstance(error, AssertionError)
            if isinstance(error, SyntaxError) or (in_lines and not its_own):
                raise AssertionError(f"{error}, in\n{finding.repro}") from error  # a fault of the lines themselves
        finally:
            if collects:  # the lines that show a leak turn the collector off
                gc.enable()
    return output.getvalue() + ending


def shows_the_fault(finding: Finding, **scope: object) -> bool:
    """Whether the lines fail by themselves: in an AssertionError with the numbers, or in the error of the finding."""
    return re.search(r"^[\w.]*(Error|Exception): \S", shown(finding, **scope), re.MULTILINE) is not None
