"""Saved-tensor hooks: backward gets a copy of each saved tensor, as from offloading or compression, and is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from pullback.battery.leaves import is_dense
from pullback.battery.probe import NotApplicable, Note, Probe
from pullback.battery.repro_surroundings import hook_lines
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.battery.trials import Difference, Result, Trial
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
    for case in subject.cases:
        trial = Trial(subject, case)
        alone = trial.alone()
        for way in _WAYS:
            packed, found = _under(subject, case, trial, alone, way)
            saving += packed
            if found is not None:
                yield found
                break
        else:
            yield from _second(subject, case, trial)
    if not saving:
        raise NotApplicable("nothing is saved where a hook would see it")


def _under(subject: Subject, case: Case, trial: Trial, alone: Result, way: _Way) -> tuple[int, Finding | None]:
    """How many tensors were packed, and the fault that copies of them show."""
    hooks = _Copies(way)
    try:
        call = trial.forward(under=lambda: hooks)
        got = trial.backward(call)
    except ForwardRaised as raised:
        return 1, _raises(subject, case, way, "forward", raised.error)
    except BackwardRaised as raised:
        return 1, _raises(subject, case, way, "backward", raised.error)
    found = alone.differs_from(got)
    if found is None:
        return hooks.packed, None
    return hooks.packed, _differs(subject, case, way, found)


def _second(subject: Subject, case: Case, trial: Trial) -> Iterator[Finding]:
    """The fault that shows in second derivatives alone."""
    if subject.orders < 2:
        return
    try:
        expected = trial.again(trial.forward())
    except (ForwardRaised, BackwardRaised):  # there is no second derivative to compare with
        return
    way = _WAYS[0]
    try:
        found = expected.differs_from(trial.again(trial.forward(under=lambda: _Copies(way))))
    except (ForwardRaised, BackwardRaised) as raised:
        yield _raises(subject, case, way, "the second derivative", raised.error, order=2)
        return
    if found is not None:
        yield _differs(subject, case, way, found, order=2)


def _raises(subject: Subject, case: Case, way: _Way, what: str, error: BaseException, *, order: int = 1) -> Finding:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return subject.finding(
        "PB519",
        case,
        f"{what} raises when saved-tensor hooks keep {way.label}: {text}",
        expected="what comes without hooks",
        got=text,
        repro=hook_lines(subject, case, way.code, order=order),
        evidence={"kept": way.label, "raised": type(error).__name__},
    )


def _differs(subject: Subject, case: Case, way: _Way, found: Difference, *, order: int = 1) -> Finding:
    what = "second derivative" if order > 1 else found.kind
    return subject.finding(
        "PB519",
        case,
        f"with saved-tensor hooks that keep {way.label}, the {what} is another one",
        argument=found.name if found.kind == "gradient" else "",
        output=found.name if found.kind == "value" else "",
        expected=f"{found.mismatch.expected}, as without hooks",
        got=found.mismatch.got,
        repro=hook_lines(subject, case, way.code, order=order),
        evidence={**found.mismatch.evidence, "kept": way.label},
    )


PROBE = Probe("hooks", "backward needs no more of a saved tensor than its values, so hooks may keep a copy", run)
