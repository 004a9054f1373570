"""Calls in several threads don't change one another, and backward may run in another thread than forward."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import torch

import pullback
from pullback.battery.draws import draws
from pullback.battery.interleaving import Others, between_lines, between_operators, in_thread
from pullback.battery.oracle import elsewhere
from pullback.battery.paths import dealt, passed_over, telling
from pullback.battery.probe import Note, Probe
from pullback.battery.repro_surroundings import interleaved_lines, thread_lines
from pullback.battery.setting import Setting
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.battery.trials import Result, Trial
from pullback.finding import Finding

Between = Callable[[Others[Result]], AbstractContextManager[None]]

_BETWEEN = ("lines", "operators")
"""Between what of a call other calls run."""

_LEAST_WAIT, _WAIT = 10.0, 100.0
"""backward in another thread may take so many seconds, and so many times what the call takes alone."""

_METHODS = ("forward", "setup_context", "backward", "vjp")
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (torch, pullback))


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Run backward in another thread; then run calls on other values between the lines and operators of a case."""
    yield from passed_over(subject)
    # What methods share is shared by all their calls.
    hands = dealt(subject, dict.fromkeys(telling(subject), _BETWEEN))
    for case, between in hands.items():
        if len(hands) > 1:
            yield from (Note(f"other calls ran between the {what} of {case.label} alone") for what in sorted(between))
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
        elif between and subject.samples.generators:
            yield Note(f"{case.label}: calls at once would share the generator among its arguments")
        elif between:
            yield from _interleaved(subject, case, trial, alone, between)


def _backward_elsewhere(subject: Subject, case: Case, trial: Trial, alone: Result, wait: float) -> Finding | None:
    """forward here and backward in another thread, as always on a GPU."""
    where = "when backward runs in another thread than forward"
    setting = Setting(subject, case, "PB520", where, "in the same thread", lambda *_: thread_lines(subject, case))
    call = trial.forward()
    return setting.fault(alone, lambda: in_thread(lambda: trial.backward(call), wait))


def _interleaved(
    subject: Subject, case: Case, trial: Trial, alone: Result, wanted: Collection[str]
) -> Iterator[Finding | Note]:
    """Calls on other values between the lines of a call, and between its operators."""
    other_case = elsewhere(subject, case)
    try:
        other = Trial(subject, other_case)
        other.cotangents = [1.5 * cotangent for cotangent in other.cotangents]  # what backward shares shows, too
        other_alone = other.alone()
    except (ForwardRaised, BackwardRaised) as refused:
        yield Note(f"refused: threads, other values of {case.label} ({refused})")
        return
    files = _own_files(subject)
    ways: tuple[tuple[str, Between, str], ...] = (
        ("lines", lambda others: between_lines(others, files), min(files, default="")),
        ("operators", between_operators, ""),
    )
    for label, between, place in [way for way in ways if way[0] in wanted]:
        others = Others(other.alone, subject.runs_on)
        repro = partial(_lines, subject, case, other_case, place, others)
        where = f"with calls of another thread between its {label}"
        setting = Setting(subject, case, "PB520", where, "alone", repro)
        found = setting.fault(alone, partial(_among, trial, between, others))
        found = found or _fault_of_others(setting, others, other_alone)
        if found is not None:
            yield found
            return
        if others.waited:
            yield Note(f"{case.label}: the call holds a lock, so calls of another thread waited for its end")
            return


def _among(trial: Trial, between: Between, others: Others[Result]) -> Result:
    with between(others):
        return trial.alone()


def _fault_of_others(setting: Setting, others: Others[Result], alone: Result) -> Finding | None:
    for got in others.results:
        found = alone.differs_from(got)
        if found is not None:
            return setting.differs(found)
    return setting.raises("the other call", others.error) if others.error is not None else None


def _lines(subject: Subject, case: Case, other: Case, place: str, others: Others[Result], _: int, values: bool) -> str:
    return interleaved_lines(subject, case, other, place, values=values, fails=others.error is not None)


def _own_files(subject: Subject) -> frozenset[str]:
    """The files of the function's own code."""
    methods = [getattr(subject.function, name, None) for name in _METHODS] if subject.definition else []
    codes = [getattr(inspect.unwrap(method), "__code__", None) for method in methods or [subject.function] if method]
    return frozenset(code.co_filename for code in codes if code is not None and not _is_library(code.co_filename))


def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARIES)


PROBE = Probe("threads", "calls in other threads don't change a result, nor does another thread for backward", run)
