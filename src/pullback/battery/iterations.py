"""Whether forward is an iteration that has converged: where it hasn't, what it returns has no derivative to speak of.

A solver that runs a fixed number of steps, or up to a limit, returns something wherever it is called. Its backward is
that of the solution. Where the steps are still large in the end, that is a derivative of another function than the one
that differences see, and forward isn't meant for such values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from pullback.battery.leaves import is_dense, is_float, tensors
from pullback.battery.raised import ForwardRaised
from pullback.battery.subject import Case, Subject
from pullback.torch_private import TorchDispatchMode

_ROUNDS = 5
"""So often a sequence of operators has to come in a row to be one step of an iteration."""

_LONGEST = 64
"""No step is looked for that has more operators."""

_MOST = 4000
"""The operators of a call that are looked at, from its end, and the elements of a result that are kept."""

_SETTLED = 1e-4
"""By this share of their size the last step of an iteration that converges changes its numbers at most."""

_OFF = 10.0
"""Differences of what is left of an iteration are off by this many times its last step: each is another number."""

_FEWER = 0.5
"""Where an iteration takes less than this share of its steps, it stops for the size of its numbers."""

_FURTHER = 100.0
"""Where that changes them by so many times as much, it hasn't converged."""


def diverges(subject: Subject, case: Case, variant: Case) -> bool:
    """Whether forward is an iteration that converges at a sample, and at a variant of it doesn't, or stops early."""
    try:
        known, there = (_steps(subject, point) for point in (case, variant))
    except ForwardRaised:
        return False
    if not known.times or known.change > _SETTLED:
        return False
    # Small numbers change by less than a tolerance from the beginning.
    early = there.times < _FEWER * known.times
    settled = min(_SETTLED, max(_FURTHER * known.change, torch.finfo(torch.float32).eps / _FURTHER))
    return early or not there.change <= settled


def stops_short(subject: Subject, case: Case) -> float:
    """By what share of their sizes differences of forward may be off, where it is an iteration with a tolerance."""
    steps = _steps(subject, case)
    return _OFF * steps.change if steps.times and steps.change <= _SETTLED else 0.0


class _Steps(NamedTuple):
    """How often forward repeats what it repeats most; by what share of their size the last time changes its numbers."""

    times: int
    change: float


def _steps(subject: Subject, case: Case) -> _Steps:
    with _Results() as results:
        subject.call(subject.fresh(case, requires=()))
    kept = results.kept[-_MOST:]
    names = [name for name, _ in kept]
    count, period, end = _longest_repeat(names)
    if not period:
        return _Steps(0, 0.0)
    pairs = [(kept[place][1], kept[place - period][1]) for place in range(end - period, end)]
    size = max((float(new.abs().max()) for new, _ in pairs if new.numel()), default=0.0)
    change = max((float((new - old).abs().max()) for new, old in pairs if new.numel()), default=0.0)
    return _Steps(count, change / size if size else 0.0)


def _longest_repeat(names: list[tuple[str, ...]]) -> tuple[int, int, int]:
    """How often the sequence comes that fills the longest row, how long it is, and where the row ends; else zeros."""
    best, found = 0, (0, 0, 0)
    for period in range(1, min(_LONGEST, len(names) // _ROUNDS) + 1):
        row = 0
        for place in range(period, len(names)):
            row = row + 1 if names[place] == names[place - period] else 0
            if row >= (_ROUNDS - 1) * period and row + period > best:
                best, found = row + period, (row // period + 1, period, place + 1)
    return found


class _Results(TorchDispatchMode):
    """Keeps what each operator gives, with the name of the operator and the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[tuple[str, ...], torch.Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for _, tensor in tensors(result, ""):
            if is_dense(tensor) and is_float(tensor) and tensor.numel() <= _MOST:
                self.kept.append(((str(func), str(tuple(tensor.shape))), tensor.detach().clone()))
        return result
