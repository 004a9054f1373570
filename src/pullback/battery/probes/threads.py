"""Calls in several threads don't change one another, and backward may run in another thread than forward."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import torch

import pullback
from pullback.battery.draws import draws
from pullback.battery.interleaving import Others, between_lines, between_operators
from pullback.battery.leaves import is_float
from pullback.battery.oracle import moved
from pullback.battery.probe import Note, Probe
from pullback.battery.repro_surroundings import interleaved_lines, thread_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.battery.surroundings import tracking
from pullback.battery.trials import Difference, Result, Trial
from pullback.finding import Finding

T = TypeVar("T")

_LEAST_WAIT, _WAIT = 10.0, 100.0
"""backward in another thread may take so many seconds, and so many times what the call takes alone."""

_METHODS = ("forward", "setup_context", "backward", "vjp")
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (torch, pullback))


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Run backward in another thread; then run calls on other values between the lines and operators of each case."""
    for case in subject.cases:
        if draws(subject, case).backward:
            yield Note(f"{case.label}: backward draws random numbers, so threads were not compared")
            continue
        trial = Trial(subject, case)
        started = time.perf_counter()
        alone = trial.alone()
        wait = _LEAST_WAIT + _WAIT * (time.perf_counter() - started)
        found = _backward_elsewhere(subject, case, trial, alone, wait)
        if found is not None:
            yield found
            continue
        yield from _interleaved(subject, case, trial, alone)


def _backward_elsewhere(subject: Subject, case: Case, trial: Trial, alone: Result, wait: float) -> Finding | None:
    """forward here and backward in another thread, as always on a GPU."""
    call = trial.forward()
    try:
        found = alone.differs_from(_in_thread(lambda: trial.backward(call), wait))
        text = "the gradient is another one"
    except BackwardRaised as raised:
        found, text = None, f"backward raises: {raised}"
    else:
        if found is None:
            return None
    message = f"when backward runs in another thread than forward, {text}"
    return _finding(subject, case, message, found, thread_lines(subject, case))


def _in_thread(job: Callable[[], T], wait: float) -> T:
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


def _interleaved(subject: Subject, case: Case, trial: Trial, alone: Result) -> Iterator[Finding | Note]:
    """Calls on other values between the lines of a call, and between its operators."""
    other_case = moved(subject, case, lambda _, tensor: tensor * 1.25 if is_float(tensor) else tensor)
    try:
        other = Trial(subject, other_case)
        other.cotangents = [1.5 * cotangent for cotangent in other.cotangents]  # what backward shares shows, too
        other_alone = other.alone()
    except (ForwardRaised, BackwardRaised) as refused:
        yield Note(f"refused: threads, other values of {case.label} ({refused})")
        return
    files = _own_files(subject)
    ways: tuple[tuple[str, Callable[[Others], AbstractContextManager[None]]], ...] = (
        ("lines", lambda others: between_lines(others, files)),
        ("operators", between_operators),
    )
    for label, between in ways:
        results: list[Result] = []

        def another(results: list[Result] = results) -> None:
            with tracking():
                results.append(other.alone())

        others = Others(another, subject.runs_on)
        try:
            with between(others):
                got = trial.alone()
        except (ForwardRaised, BackwardRaised) as raised:
            found, text = None, f"{'forward' if isinstance(raised, ForwardRaised) else 'backward'} raises: {raised}"
        else:
            found = _first_difference(alone, [got]) or _first_difference(other_alone, results)
            text = f"the {found.kind} is another one" if found is not None else ""
        if others.error is not None and not text:
            text = f"the other call raises: {others.error}"
        if text:
            place = min(files) if label == "lines" else ""
            values = found is not None and found.kind == "value"
            repro = interleaved_lines(subject, case, other_case, place, values=values, fails=others.error is not None)
            yield _finding(subject, case, f"with calls of another thread between its {label}, {text}", found, repro)
            return
        if others.waited:
            yield Note(f"{case.label}: the call holds a lock, so calls of another thread waited for its end")
            return


def _first_difference(expected: Result, results: Iterable[Result]) -> Difference | None:
    return next((found for got in results if (found := expected.differs_from(got)) is not None), None)


def _own_files(subject: Subject) -> frozenset[str]:
    """The files of the function's own code."""
    methods = [getattr(subject.function, name, None) for name in _METHODS] if subject.definition else []
    codes = [getattr(inspect.unwrap(method), "__code__", None) for method in methods or [subject.function] if method]
    return frozenset(code.co_filename for code in codes if code is not None and not _is_library(code.co_filename))


def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARIES)


def _finding(subject: Subject, case: Case, message: str, found: Difference | None, repro: str) -> Finding:
    return subject.finding(
        "PB520",
        case,
        message,
        argument=found.name if found is not None and found.kind == "gradient" else "",
        output=found.name if found is not None and found.kind == "value" else "",
        expected=f"{found.mismatch.expected}, as alone" if found is not None else "no error",
        got=found.mismatch.got if found is not None else message.rpartition("raises: ")[2],
        repro=repro,
        evidence=found.mismatch.evidence if found is not None else {},
    )


PROBE = Probe("threads", "calls in other threads don't change a result, nor does another thread for backward", run)
