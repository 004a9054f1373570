"""Custom operations for PyTorch whose derivative you write: right to every order, and proved to be.

The names below are loaded when they are first touched, so that the linter, the reports and the command line, which need
no torch, don't wait for its import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pullback import nn as nn
    from pullback import ops as ops
    from pullback.adopted import adopt as adopt
    from pullback.battery.check import assert_correct as assert_correct
    from pullback.battery.check import check as check
    from pullback.battery.samples import Sample as Sample
    from pullback.battery.samples import samples_for as samples_for
    from pullback.context import Context as Context
    from pullback.custom.jvp import custom_jvp as custom_jvp
    from pullback.custom.vjp import custom_vjp as custom_vjp
    from pullback.finding import Finding as Finding
    from pullback.finding import Report as Report
    from pullback.function import Function as Function
    from pullback.memory.ledger import saved_memory as saved_memory
    from pullback.memory.recompute import recompute as recompute
    from pullback.rules import Severity as Severity

__version__ = "0.1.0"

__all__ = [
    "Context",
    "Finding",
    "Function",
    "Report",
    "Sample",
    "Severity",
    "__version__",
    "adopt",
    "assert_correct",
    "check",
    "custom_jvp",
    "custom_vjp",
    "nn",
    "ops",
    "recompute",
    "samples_for",
    "saved_memory",
]

_HOME = {
    "Context": "pullback.context",
    "Finding": "pullback.finding",
    "Function": "pullback.function",
    "Report": "pullback.finding",
    "Sample": "pullback.battery.samples",
    "Severity": "pullback.rules",
    "adopt": "pullback.adopted",
    "assert_correct": "pullback.battery.check",
    "check": "pullback.battery.check",
    "custom_jvp": "pullback.custom.jvp",
    "custom_vjp": "pullback.custom.vjp",
    "nn": "pullback.nn",  # a module, itself the value
    "ops": "pullback.ops",
    "recompute": "pullback.memory.recompute",
    "samples_for": "pullback.battery.samples",
    "saved_memory": "pullback.memory.ledger",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first touched (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(home)
        value: object = module if home == f"{__name__}.{name}" else getattr(module, name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"pullback.{name} needs PyTorch, which isn't installed: install your own build of torch, "
            "or pullback with its extra: pullback[torch].",
            name="torch",
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
