"""Saved-tensor hooks: backward gets a copy of each saved tensor, as from offloading or compression, and is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch

from pullback.battery.leaves import is_dense
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.repro_surroundings import hook_lines
from pullback.battery.setting import Setting
from pullback.battery.subject import Case, Subject
from pullback.battery.trials import Result, Trial
from pullback.finding import Finding


@dataclass(frozen=True)
class _Way:
    """One way to keep a saved tensor elsewhere.

    Attributes:
        label: What is done, in a few words.
        copy: Makes what is kept, and what is handed out again.
        code: The same as code.
    """

    label: str
    copy: Callable[[torch.Tensor], torch.Tensor]
    code: str


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format) if is_dense(tensor) else tensor.detach().clone()


_WAYS = (
    _Way("copies with the same strides", lambda tensor: tensor.detach().clone(), "tensor.detach().clone()"),
    _Way(
        "contiguous copies, as save_on_cpu makes them",
        _in_order,
        "tensor.detach().clone(memory_format=torch.contiguous_format)",
    ),
)


class _Copies(torch.autograd.graph.saved_tensors_hooks):
    """Keeps a copy of each saved tensor and hands out a copy of that; counts what it packed."""

    def __init__(self, way: _Way) -> None:
        self.packed = 0
        self._copy = way.copy
        super().__init__(self._pack, way.copy)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.packed += 1
        return self._copy(tensor)


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare each case's gradients, and second derivatives where there are any, with those that come from copies."""
    saving = 0
    for case in telling(subject):
        packed, found = _fault(subject, case)
        saving += packed
        if found is not None:
            yield found
    if not saving:
        raise NotApplicable("nothing is saved where a hook would see it")
    yield from passed_over(subject)


def _fault(subject: Subject, case: Case) -> tuple[int, Finding | None]:
    """How many tensors were packed, and the first fault that copies of them show."""
    trial, packed = Trial(subject, case), 0
    alone = trial.alone()

    def once(hooks: _Copies) -> Result:
        return trial.backward(trial.forward(under=lambda: hooks))

    def twice() -> Result:
        return trial.again(trial.forward(under=lambda: _Copies(_WAYS[0])))

    for way in _WAYS:
        hooks = _Copies(way)
        found = _setting(subject, case, way).fault(alone, partial(once, hooks))
        packed += hooks.packed
        if found is not None:
            return max(packed, 1), found
    return packed, _setting(subject, case, _WAYS[0]).second_fault(trial, twice)


def _setting(subject: Subject, case: Case, way: _Way) -> Setting:
    def repro(order: int, values: bool) -> str:
        return hook_lines(subject, case, way.code, order=order)

    where = f"with saved-tensor hooks that keep {way.label}"
    return Setting(subject, case, "PB519", where, "without hooks", repro, evidence={"kept": way.label})


PROBE = Probe("hooks", "backward needs no more of a saved tensor than its values, so hooks may keep a copy", run)
