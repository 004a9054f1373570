"""Runs tasks in worker processes with a time limit, and keeps each result in a file from which a later run goes on."""

from __future__ import annotations

import json
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mutation.originals import ROOT

TASKS_A_WORKER = 400
"""After so many tasks a worker is replaced: what mutants leave behind in it goes with it."""


@dataclass(frozen=True)
class Task:
    """One stage of one subject: the key under which its result is kept, and what the worker is told."""

    key: str
    message: dict[str, Any]


class Results:
    """A file of results, a line each. Lines of an earlier run are read; one that broke off half written is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.found: dict[str, dict[str, Any]] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            self.found[entry.pop("key")] = entry
        path.parent.mkdir(parents=True, exist_ok=True)
        if lines and not path.read_text(encoding="utf-8").endswith("\n"):
            self._append("\n")

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Keep a result."""
        with self._lock:
            self.found[key] = entry
            self._append(json.dumps({"key": key, **entry}, ensure_ascii=False) + "\n")

    def _append(self, text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)


class Worker:
    """One process, started anew after a hang or a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._done = 0

    def ask(self, message: dict[str, Any], limit: float) -> dict[str, Any]:
        """The answer to a task; ``{"ended": "timed out" or "crashed"}`` where none comes within `limit` seconds."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        self._done += 1
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._lost("crashed")
        ready, _, _ = select.select([process.stdout], [], [], limit)
        if not ready:
            return self._lost("timed out")
        line = process.stdout.readline()
        if not line:
            return self._lost("crashed")
        answer: dict[str, Any] = json.loads(line)
        if self._done >= TASKS_A_WORKER:
            self.close()
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-m", "benchmarks.mutation.worker"]
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
            self._done = 0
        return self._process

    def _lost(self, how: str) -> dict[str, Any]:
        self.close()
        return {"ended": how}

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def run(
    tasks: Sequence[Task], results: Results, *, jobs: int, limit: float, progress: Callable[[int, int], object]
) -> None:
    """Do the tasks that `results` doesn't have yet.

    Args:
        tasks: What to do; the neighbours share an original, which a worker remembers.
        results: Where results go.
        jobs: How many processes.
        limit: Seconds for a task.
        progress: Called with the number of tasks done and due, after each.
    """
    due = [task for task in tasks if task.key not in results.found]
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in due:
        waiting.put(task)
    counted = iter(range(1, len(due) + 1))
    failures: list[BaseException] = []

    def work() -> None:
        worker = Worker()
        try:
            while not failures:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                answer = worker.ask(task.message, limit)
                if "error" in answer:
                    raise RuntimeError(f"{task.key} can't be done:\n{answer['error']}")
                results.add(task.key, answer)
                progress(next(counted), len(due))
        except BaseException as error:
            failures.append(error)
        finally:
            worker.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
