"""Whole calls of another thread, put between the lines and the operators of a call: a race without luck.

Two threads that run at once show a race only now and then. Here the other thread runs, from start to end, at each of a
call's own lines and after each of its operators, while the call itself stands still; so whatever the call leaves
outside itself between two of these points is overwritten. What a race inside a single operator or kernel does isn't
seen.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Generic, TypeVar

import torch

from pullback.battery.raised import BackwardRaised
from pullback.battery.randomness import preserved
from pullback.battery.surroundings import tracking
from pullback.torch_private import TorchDispatchMode

T = TypeVar("T")

_MOST = 48
_SECONDS = 1.0
"""At most so many other calls, and no further ones after so many seconds of the processor."""

_PATIENCE = 1.0
"""How many seconds a call waits for the other thread: one that needs a lock of the call's can't end before it."""


def in_thread(job: Callable[[], T], wait: float) -> T:
    """What the job returns in a thread of its own; what it raises is raised here.

    Raises:
        BackwardRaised: The job has not ended after `wait` seconds; it may wait for what only another thread can do.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            with tracking():
                results.append(job())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, name="pullback: another thread", daemon=True)
    thread.start()
    thread.join(wait)
    if thread.is_alive():
        raise BackwardRaised(TimeoutError(f"not done after {wait:.0f} seconds"))
    if errors:
        raise errors[0]
    return results[0]


class Others(Generic[T]):
    """Runs `call` in a thread of its own, one call at a time, from wherever `between` is told to.

    Args:
        call: A whole call on other arguments.
        device: The device of the calls, whose generator is left as it was.

    Attributes:
        count: How often it ran.
        results: What it gave each time.
        waited: Whether it was kept waiting, by a lock that the call holds.
        error: What it raised the first time that it did.
    """

    def __init__(self, call: Callable[[], T], device: torch.device) -> None:
        self._call, self._device = call, device
        self._thread: threading.Thread | None = None
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answered = threading.Semaphore(0)
        self._until = time.process_time() + _SECONDS
        self.count = 0
        self.results: list[T] = []
        self.waited = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the other call now, unless an earlier one had to wait or there were enough."""
        if self.waited or self.count >= _MOST or time.process_time() > self._until:
            return
        self.count += 1
        with preserved(self._device):  # threads share the generators: what the others draw is none of the call's
            if self._thread is None:  # one for all calls, as to start one takes longer than most calls
                self._thread = threading.Thread(target=self._serve, name="pullback: another call", daemon=True)
                self._thread.start()
            self._asked.put(True)
            self.waited = not self._answered.acquire(timeout=_PATIENCE)

    def end(self) -> None:
        """Wait for what is still running: whatever it waited for is free by now."""
        if self._thread is not None:
            self._asked.put(False)
            self._thread.join(5 * _PATIENCE)

    def _serve(self) -> None:
        with tracking():  # a new thread has its own modes
            while self._asked.get():
                try:
                    self.results.append(self._call())
                except BaseException as error:
                    self.error = self.error or error
                finally:
                    self._answered.release()


@contextmanager
def between_lines(others: Others[Any], files: frozenset[str]) -> Iterator[None]:
    """Run the others before each line of code in `files`. A debugger or a tracer is left alone, and nothing runs."""
    before = sys.gettrace()
    if before is not None:
        yield
        return

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            others.run()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
        others.end()


class _Operators(TorchDispatchMode):
    def __init__(self, others: Others[Any]) -> None:
        super().__init__()
        self._others = others

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._others.run()
        return result


@contextmanager
def between_operators(others: Others[Any]) -> Iterator[None]:
    """Run the others after each operator."""
    try:
        with _Operators(others):
            yield
    finally:
        others.end()
