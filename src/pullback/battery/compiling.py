"""Calls compiled by torch.compile, without a trace in what the user has compiled, and without a C++ compiler.

The backend is ``aot_eager``: Dynamo and AOTAutograd, which decide what is computed, and no code generator. What is
compiled is a function with a code object of its own for each check, so its compiled code goes when it goes. What Dynamo
compiles beside it, where it can't take a call in one piece, hangs on the code of the Function's own methods: that is
found and thrown away, the rest of Dynamo's memory is left alone.
"""

from __future__ import annotations

import logging
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pullback.torch_private import of_dynamo

BACKEND = "aot_eager"

_ours: dict[int, weakref.ref[types.CodeType]] = {}
"""The code objects that were compiled in earlier checks: Dynamo tells of each only once."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called as it is, inside a compiled function of its own; what can't be compiled runs as it does."""
    return torch.compile(_entry(function), backend=BACKEND, fullgraph=False, dynamic=False)


def _entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `function`, with a code object that no other function has."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and getattr(function, "__name__", "") == "apply":

        def entry(*args: Any, **kwargs: Any) -> Any:
            return owner.apply(*args, **kwargs)  # type: ignore[attr-defined]  # it is a Function

    else:

        def entry(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    code = entry.__code__.replace(co_name="compiled_call")
    return types.FunctionType(code, entry.__globals__, "compiled_call", None, entry.__closure__)


def why_unsupported() -> str:
    """Why nothing can be compiled here; empty where it can."""
    supported = of_dynamo("eval_frame", "is_dynamo_supported")
    if supported is None:
        return "this PyTorch has no TorchDynamo"
    return "" if supported() else "TorchDynamo doesn't support this Python"


class Breaks:
    """Where Dynamo stopped, and how many functions it compiled, since this was made."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter[str]] = of_dynamo("utils", "counters", {})
        self._before = {kind: Counter(self._counters.get(kind, {})) for kind in ("graph_break", "frames")}

    def reasons(self) -> list[str]:
        """Why it broke off, in its own words."""
        return list(Counter(self._counters.get("graph_break", {})) - self._before["graph_break"])

    def compiled(self) -> bool:
        """Whether anything was compiled; where Dynamo can't be asked, it is taken to have been."""
        now = Counter(self._counters.get("frames", {})) - self._before["frames"]
        return not self._counters or now["ok"] > 0


@contextmanager
def leaving_no_trace() -> Iterator[None]:
    """Logs silenced; code that was compiled meanwhile is thrown away, the user's own is kept."""
    tracker = of_dynamo("convert_frame", "input_codes")
    known = {id(code) for code in map(_alive, tracker.seen) if code is not None} if tracker is not None else set()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        if tracker is not None:
            _ours.update(
                {id(c): weakref.ref(c) for c in map(_alive, tracker.seen) if c is not None and id(c) not in known}
            )
            _forget()


@contextmanager
def recompiling(times: int) -> Iterator[None]:
    """Dynamo's limit raised by so many recompilations: beyond it, a call runs uncompiled and nobody is told."""
    limits = {name: of_dynamo("config", name) for name in ("recompile_limit", "cache_size_limit")}
    patch = of_dynamo("config", "patch")
    name = next((name for name, limit in limits.items() if isinstance(limit, int)), "")
    if patch is None or not name:
        yield
        return
    with patch(**{name: limits[name] + times}):
        yield


def _alive(reference: weakref.ref[types.CodeType]) -> types.CodeType | None:
    return reference()


def _forget() -> None:
    reset = of_dynamo("eval_frame", "reset_code")
    for key, reference in list(_ours.items()):
        code = reference()
        if code is None:
            del _ours[key]
        elif reset is not None:
            reset(code)
