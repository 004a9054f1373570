"""Calls that run out of memory midway, as the largest batch of a training does: the next call must not notice.

An error may come from any operator that allocates. Then whatever was to be undone at the end isn't, unless a `finally`
does it: a mark that a call is running, a table entry that wasn't filled, a setting that is for this call alone.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pullback.battery.leaves import tensors
from pullback.battery.observe import storage_of
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.battery.trials import Call, Trial
from pullback.torch_private import TorchDispatchMode

_MOST = 3
"""At so many operators of forward, and of backward, memory runs out: the first, the last, and one between."""


class _Shortage(TorchDispatchMode):
    """Raises at the operator of this number among those that allocate; at none for 0."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self._at = at
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        older = {storage_of(tensor) for _, tensor in tensors((args, kwargs or {}), "")}
        if any(storage_of(tensor) not in older for _, tensor in tensors(result, "")):
            self.count += 1
            if self.count == self._at:
                raise torch.OutOfMemoryError("no memory")
        return result


def run_short(subject: Subject, case: Case) -> None:
    """Make calls of a case that run out of memory in forward, and others that do in backward."""
    apart = replace(subject, said=[])  # what pullback says of such an error is no fault of the function
    trial = Trial(apart, case)
    forward, backward = _Shortage(), _Shortage()
    call = trial.forward(under=lambda: forward)
    _differentiated(apart, trial, call, backward)
    for place in _places(forward.count):
        with suppress(ForwardRaised):
            trial.forward(under=partial(_Shortage, place))
    for place in _places(backward.count):
        with suppress(ForwardRaised, BackwardRaised):
            _differentiated(apart, trial, trial.forward(), _Shortage(place))


def _differentiated(subject: Subject, trial: Trial, call: Call, under: _Shortage) -> None:
    given = [cotangent.clone() for cotangent in trial.cotangents]  # made here, where there is memory
    with under:
        subject.gradients(call.outputs, given, call.inputs.varying, share=True)


def _places(count: int) -> list[int]:
    """The operators at which memory runs out, counted from 1."""
    return sorted({1, (count + 1) // 2, count}) if count else []
