"""The command line's end of one worker process: starting it, hearing it with a time limit, and ending it."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

from pullback.cli.protocol import Job, Message, decode

_TICK = 0.2
_GRACE = 5.0
_ROOT = str(Path(__file__).resolve().parents[2])
# Without the working directory on sys.path, a file there that is called like a module of torch's can't replace it.
_START = f"import sys; sys.path[:1] = []; sys.path.append({_ROOT!r}); from pullback.cli.worker import main; main()"
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)


class WorkerEndedError(Exception):
    """A worker died, or said nothing for longer than its limit and was ended.

    Args:
        how: How it ended, in words: ``ended with SIGSEGV``.
        hung: Whether it ran out of time.
        printed: The last of what it printed, the place where it died or hung included.
    """

    def __init__(self, how: str, *, hung: bool, printed: str) -> None:
        super().__init__(how)
        self.how = how
        self.hung = hung
        self.printed = printed


class Worker:
    """One worker process, to be used as a context manager that leaves no process behind.

    Args:
        job: What it is to do.
        show_output: Whether what it prints goes to standard error, rather than into a file of its own.
    """

    def __init__(self, job: Job, *, show_output: bool = False) -> None:
        self._output = None if show_output else tempfile.TemporaryFile()  # closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, job.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env={"PYTHONIOENCODING": "utf-8:backslashreplace", **os.environ},
            start_new_session=True,  # so that processes which the checked code starts can be ended with it
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if self._output is not None:
            self._output.close()

    def receive(self, limit: float) -> Message:
        """The worker's next message.

        Args:
            limit: How many seconds to wait for it.

        Returns:
            The message.

        Raises:
            WorkerEndedError: None came in time, or the worker is gone.
        """
        deadline = time.monotonic() + limit
        gone = False
        while True:
            try:
                message = decode(self._lines.get(timeout=_TICK))
            except queue.Empty:
                if gone:
                    raise WorkerEndedError(self._how(), hung=False, printed=self._printed()) from None
                # One more round after it has gone: its last lines may still be on their way.
                gone = self._process.poll() is not None
            else:
                if message is not None:
                    return message
            if not gone and time.monotonic() > deadline:
                self._ask_where()
                raise WorkerEndedError(f"did not end within {limit:g} s", hung=True, printed=self._printed())

    def finish(self) -> None:
        """Lets a worker that is done end by itself, for what the checked code does at exit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._lines.put(line)

    def _ask_where(self) -> None:
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)
                time.sleep(_TICK)

    def _end(self) -> None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        # Not for ever: a process that left the worker's session may still hold the other end.
        self._listener.join(_GRACE)

    def _how(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"ended the process with {signal.Signals(-code).name}"
        return f"ended the process with exit code {code}"

    def _printed(self) -> str:
        if self._output is None:
            return ""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - 20_000))
        return self._output.read().decode("utf-8", "replace")


def frames(printed: str, file: str) -> str:
    """Where the worker was when it died or hung, innermost first, as far as that is in a file.

    Args:
        printed: What the worker printed, with the dump that Python's fault handler makes.
        file: The file that is checked; only its name counts.

    Returns:
        ``ops.py:33 in backward`` and so on, or an empty text.
    """
    own = [match for match in _FRAME.finditer(printed) if os.path.basename(match["file"]) == os.path.basename(file)]
    places = (f"{os.path.basename(match['file'])}:{match['line']} in {match['name']}" for match in own)
    return ", called from ".join(list(dict.fromkeys(places))[:4])


def last_words(printed: str) -> str:
    """The last lines that the worker printed before the fault handler's dump, if any."""
    head = re.split(
        r"^(?:Fatal Python error|Current thread|Thread 0x|Stack \()", printed, maxsplit=1, flags=re.MULTILINE
    )[0]
    return "\n".join(line for line in head.splitlines() if line.strip())[-600:]
