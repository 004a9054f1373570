"""``pullback saved script.py``, in the process that runs the script: the ledger of its first step.

A script has no block whose end could be waited for. Its step is complete, and its graph the largest, when it first
calls backward: there the ledger is written, and the script ends. One that never does is measured at its own end.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from pullback.memory.ledger import Ledger, saved_memory

FAILED = 2
"""The exit code where the script fails."""

_WITHOUT_BACKWARD = "pullback: the script never called backward; this is what its variables kept at its end\n"


class MeasuredError(BaseException):
    """Ends a script whose ledger is written; no author is to catch it."""


class Outcome(NamedTuple):
    """What came of a script.

    Attributes:
        ledger: The ledger of its first step; None where there is nothing in it.
        said: What is to be said about it, after the ledger.
        code: The exit code.
    """

    ledger: Ledger | None
    said: str
    code: int


def main() -> None:
    """Run a script with its arguments.

    `sys.argv` has first the ledger's file and form, the file of a plot, the depth of the table by module, and whether
    it is a module; then the script or the module, and its own arguments. Beside the ledger's file is one with what is
    to be said after it.
    """
    target, form, plot, depth, kind, *arguments = sys.argv[1:]
    sys.argv[:] = arguments
    of_module = kind == "module"
    sys.path.insert(0, os.getcwd() if of_module else os.path.dirname(os.path.realpath(arguments[0])))
    ledger, said, code = measured(arguments[0], of_module=of_module)
    if ledger is not None:
        with open(target, "w", encoding="utf-8") as file:
            file.write(ledger.to_json() if form == "json" else ledger.report(int(depth) if depth else None))
        if plot:
            try:
                ledger.plot(plot)
            except (ImportError, OSError, ValueError) as error:
                said, code = f"{said}pullback: {error}\n", FAILED
    with open(f"{target}.said", "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(said)
    _end(code)


def _end(code: int) -> NoReturn:
    """End the process. The script's threads may wait for a main thread that went no further, so nobody waits for them.

    Args:
        code: The exit code.
    """
    processes = sys.modules.get("multiprocessing")
    for child in processes.active_children() if processes is not None else ():
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed by the script, or its reader has gone
            continue
    os._exit(code)


def measured(path: str, of_module: bool = False) -> Outcome:
    """Run a script up to the end of its first step, or to where it fails.

    Args:
        path: The script; the name of a module if `of_module` is true.
        of_module: Whether it is run as ``python -m`` would.
    """
    if of_module and not _is_there(path):
        return Outcome(None, f"pullback: {path} is no module that python -m could run from here\n", FAILED)
    said, code = "", 0
    with saved_memory() as ledger, _first_forward(ledger), _first_backward(ledger):
        try:
            names = runpy.run_module(path, run_name="__main__", alter_sys=True) if of_module else _run(path)
            ledger.write()
            del names  # held until here, since a script's variables hold its graph
            said = _WITHOUT_BACKWARD
        except MeasuredError:
            pass
        except SystemExit as end:
            if end.code in (None, 0):
                ledger.write()
                said = _WITHOUT_BACKWARD
            else:
                ledger.write_stopped(end)
                said, code = _of_exit(end.code), FAILED
        except BaseException as error:
            ledger.write_stopped(error)
            said, code = _of_error(error), FAILED
    if not ledger.written:  # which is none of the script's doing
        return Outcome(None, f"{said}pullback: {ledger}\n", FAILED)
    if not code or ledger.entries:
        return Outcome(ledger, said, code)
    return Outcome(None, said, code)


def _is_there(module: str) -> bool:
    """Whether there is such a module, or a package with a ``__main__``; packages that it lies in are imported."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{module}.__main__")
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # one of those packages lacks what it imports
            return True
        return False
    except Exception:  # it will fail in the same way when it is run, and then it is told how
        return True
    return spec is not None


def _run(path: str) -> dict[str, Any]:
    return runpy.run_path(path, run_name="__main__")


def _of_exit(code: object) -> str:
    """What to say of a script that ended by itself; one that ends with a text wants that to be printed."""
    if isinstance(code, str):
        return f"{code}\npullback: the script ended before it called backward\n"
    return f"pullback: the script ended with code {code} before it called backward\n"


def _of_error(error: BaseException) -> str:
    """What to say of a script that failed: its traceback as Python would print it, from its own first line on."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        own = own.tb_next
    lines = traceback.format_exception(type(error), error, own)
    lines.append("pullback: the script failed before it called backward\n")
    if isinstance(error, ImportError) and "relative import" in str(error):
        lines.append("pullback: a script in a package is run as a module: pullback saved -m package.module\n")
    return "".join(lines)


@contextmanager
def _first_backward(ledger: Ledger) -> Iterator[None]:
    """Have the first call of backward, or of autograd.grad, write the ledger and end the script."""
    before = torch.autograd.backward, torch.autograd.grad

    def ending(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def end(*arguments: Any, **keywords: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():  # pullback itself tries torch out in others
                return function(*arguments, **keywords)
            ledger.write()
            raise MeasuredError

        return end

    torch.autograd.backward, torch.autograd.grad = ending(before[0]), ending(before[1])
    try:
        yield
    finally:
        torch.autograd.backward, torch.autograd.grad = before


@contextmanager
def _first_forward(ledger: Ledger) -> Iterator[None]:
    """What is alive when a module first runs in grad mode is what the step is given; a script starts with nothing."""

    def first(module: torch.nn.Module, arguments: Any) -> None:
        if torch.is_grad_enabled():
            handle.remove()
            with contextlib.suppress(Exception):  # then inputs stand among the entries, and the model runs on
                ledger.take_inputs()

    handle = register_module_forward_pre_hook(first)
    try:
        yield
    finally:
        handle.remove()


if __name__ == "__main__":
    main()
