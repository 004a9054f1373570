"""``pullback saved script.py``, in the process that runs the script: the ledger of its first step.

A script has no block whose end could be waited for. Its step is complete, and its graph the largest, when it first
calls backward: there the ledger is written, and the script ends. One that never does is measured at its own end.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from pullback.memory.ledger import Ledger, saved_memory

MEASURED = 0
FAILED = 2


class MeasuredError(BaseException):
    """Ends a script whose ledger is written; no author is to catch it."""


def main() -> None:
    """Run ``script.py [arguments]``; `sys.argv` has first the ledger's file and form, and the file of a plot."""
    target, form, plot, *arguments = sys.argv[1:]
    sys.argv[:] = arguments
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
    ledger = measured(arguments[0])
    if ledger is None:
        sys.stdout.flush()
        os._exit(FAILED)
    if plot:
        try:
            ledger.plot(plot)
        except (ImportError, OSError, ValueError) as error:
            print(f"pullback: {error}", file=sys.stderr)
            sys.exit(FAILED)
    with open(target, "w", encoding="utf-8") as file:
        file.write(ledger.to_json() if form == "json" else str(ledger))


def measured(path: str) -> Ledger | None:
    """The ledger of the first step of a script; None where the script fails before that, which it says itself."""
    with saved_memory() as ledger, _first_forward(ledger), _first_backward(ledger):
        try:
            names = runpy.run_path(path, run_name="__main__")
            ledger.write()
            del names  # held until here, since a script's variables hold its graph
        except MeasuredError:
            pass
        except SystemExit as end:
            if end.code not in (None, 0):
                print(f"pullback: the script ended with code {end.code} before it called backward", file=sys.stderr)
                return None
            ledger.write()
        except BaseException:
            traceback.print_exc()
            print("pullback: the script failed before it called backward", file=sys.stderr)
            return None
    return ledger


@contextmanager
def _first_backward(ledger: Ledger) -> Iterator[None]:
    """Have the first call of backward, or of autograd.grad, write the ledger and end the script."""
    before = torch.autograd.backward, torch.autograd.grad

    def ending(function: Callable[..., Any]) -> Callable[..., Any]:
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
            ledger.take_inputs()

    handle = register_module_forward_pre_hook(first)
    try:
        yield
    finally:
        handle.remove()


if __name__ == "__main__":
    main()
