"""How long a probe may go on: by the work that it does, so that a busy machine doesn't make it prove less."""

from __future__ import annotations

import time

_WAITING = 4
"""Of time that passes while others work, or while a process or a device is waited for, so many seconds count as one."""


class Deadline:
    """Passes after some seconds of this thread's own work, or after four times as many by the clock.

    Args:
        seconds: How much work there may be.
    """

    def __init__(self, seconds: float) -> None:
        self._worked = time.thread_time() + seconds
        self._waited = time.perf_counter() + _WAITING * seconds

    def passed(self) -> bool:
        """Whether it is time to stop."""
        return time.thread_time() > self._worked or time.perf_counter() > self._waited
