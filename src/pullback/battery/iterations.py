"""Whether forward is an iteration that has converged: where it hasn't, what it returns has no derivative to speak of.

A solver that runs a fixed number of steps, or up to a limit, returns something wherever it is called. Its backward is
that of the solution. Where the steps are still large in the end, that is a derivative of another function than the one
that differences see, and forward isn't meant for such values.
"""

from __future__ import annotations

from typing import Any

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

_SETTLED = 1e-5
"""By this share of their size the last step of an iteration that converges changes its numbers at most."""

_FURTHER = 100.0
"""Where that changes them by so many times as much, it hasn't converged."""


def diverges(subject: Subject, case: Case, variant: Case) -> bool:
    """Whether forward is an iteration that converges at a sample, and doesn't at a variant of it."""
    try:
        settled, there = (_last_change(subject, point) for point in (case, variant))
    except ForwardRaised:
        return False
    if settled is None or there is None or settled > _SETTLED:
        return False
    return not there <= max(_FURTHER * settled, torch.finfo(torch.float32).eps / _FURTHER)


def _last_change(subject: Subject, case: Case) -> float | None:
    """By what share of their size the last step of forward's iteration changes its numbers; None for no iteration."""
    with _Results() as results:
        subject.call(subject.fresh(case, requires=()))
    kept = results.kept[-_MOST:]
    names = [name for name, _ in kept]
    period, end = _longest_repeat(names)
    if not period:
        return None
    pairs = [(kept[place][1], kept[place - period][1]) for place in range(end - period, end)]
    size = max((float(new.abs().max()) for new, _ in pairs if new.numel()), default=0.0)
    change = max((float((new - old).abs().max()) for new, old in pairs if new.numel()), default=0.0)
    return change / size if size else 0.0


def _longest_repeat(names: list[tuple[str, ...]]) -> tuple[int, int]:
    """How long the sequence is that comes most in a row, and where the row ends; zeros where there is none."""
    best, found = 0, (0, 0)
    for period in range(1, min(_LONGEST, len(names) // _ROUNDS) + 1):
        row = 0
        for place in range(period, len(names)):
            row = row + 1 if names[place] == names[place - period] else 0
            if row >= (_ROUNDS - 1) * period and row + period > best:
                best, found = row + period, (period, place + 1)
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
