"""Which probe is running, on a terminal's standard error; nothing anywhere else."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from pullback.cli.protocol import Message
from pullback.report.characters import flat

_STEPS = {"ready": "importing", "loaded": "finding Functions"}


class Progress:
    """A line that says what is being checked, as a context manager; `heard` is what moves it."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._function = ""
        self._finished = 0

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            # This spinner is plain ASCII, which every terminal's encoding has.
            self._status = Console(stderr=True).status("starting", spinner="line")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def heard(self, source: str, message: Message) -> None:
        """Shows what a worker has just said.

        Args:
            source: The target.
            message: The worker's message.
        """
        kind = message["kind"]
        if kind == "function":
            self._function = message["name"]
        elif kind == "report":
            self._finished += 1
        if self._status is None:
            return
        step = f"{self._function} {message['name']}" if kind == "probe" else _STEPS.get(kind, self._function)
        self._status.update(escape(flat(f"{source}: {step} ({self._finished} finished)")))
