"""Which samples together take every path through the function: each instruction and operator that any of them runs.

What a call leaves behind, shares, or needs from its surroundings is decided by what it runs, and not by the numbers nor
by how many there are. Where a sample runs nothing that others don't run, on arguments of the same kinds, probes of
surroundings learn nothing more from it. So these take a few samples that run everything, and say so.

Trials that differ in numbers alone are dealt out among these samples: each is made, with one of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import pullback
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.probe import Note
from pullback.battery.randomness import own_seed
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.torch_private import TorchDispatchMode

_FEW = 2
"""So many samples are never too many."""

_TORCH = str(Path(torch.__file__).parent) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_OURS = str(Path(pullback.__file__).parent) + os.sep
_AUTHORED = ("ops", "kernels")
"""What of pullback itself is code under test, and no machinery that runs it."""


def telling(subject: Subject) -> tuple[Case, ...]:
    """Cases that run together what all of them run, in order; all where there are few, or paths can't be seen."""
    if len(subject.cases) <= _FEW or subject.runs_on.type != "cpu":  # elsewhere backward has threads of its own
        return subject.cases
    if "telling" not in subject.cache:
        subject.cache["telling"] = _telling(subject)
    found: tuple[Case, ...] = subject.cache["telling"]
    return found


def tells(subject: Subject, case: Case) -> bool:
    """Whether a case, or the sample that it was made of under the same number, is among those."""
    return case.index in {other.index for other in telling(subject)}


def dealt(subject: Subject, trials: Mapping[Case, Iterable[str]]) -> dict[Case, set[str]]:
    """Each trial, by its name, for one of the cases that it can be made with, which the seed decides."""
    able: dict[str, list[Case]] = {}
    for case, names in trials.items():
        for name in names:
            able.setdefault(name, []).append(case)
    hands: dict[Case, set[str]] = {case: set() for case in trials}
    for name, cases in able.items():
        hands[cases[own_seed(subject.seed, name) % len(cases)]].add(name)
    return hands


def passed_over(subject: Subject, instead: str = "not tried here") -> Iterator[Note]:
    """A note on the samples that `telling` leaves out, if there are any, with what became of them."""
    kept = {case.index for case in telling(subject)}
    left = [str(case.index) for case in subject.cases if case.index not in kept]
    if left:
        samples = f"sample {left[0]} runs" if len(left) == 1 else f"samples {', '.join(left)} run"
        yield Note(f"{samples} no instruction and no operator that others don't: {instead}")


def _telling(subject: Subject) -> tuple[Case, ...]:
    """The first case, and then whichever adds most, until all that any of them runs is run."""
    with subject.drawing_for("paths"):
        paths = {case: _path(subject, case) for case in subject.cases}
    kept = [case for case, path in paths.items() if path is None]
    left = {case: path for case, path in paths.items() if path is not None}
    seen: set[object] = set()
    while left:
        best = max(left, key=lambda case: len(left[case] - seen)) if seen else next(iter(left))
        if left[best] <= seen:
            break
        kept.append(best)
        seen |= left.pop(best)
    return tuple(sorted(kept, key=lambda case: case.index))


def _path(subject: Subject, case: Case) -> set[object] | None:
    """The instructions and operators that a call with its backward runs, and the kinds of its arguments."""
    path: set[object] = set(_kinds(subject, case))
    inputs = subject.fresh(case)
    try:
        with instructions(path), _Operators(path):
            outputs = subject.call(inputs)
        cotangents = [subject.cotangent(output.tensor) for output in outputs]
        with instructions(path), _Operators(path):
            subject.gradients(outputs, cotangents, inputs.varying)
    except (ForwardRaised, BackwardRaised):
        return None
    return path


def _kinds(subject: Subject, case: Case) -> Iterator[object]:
    """What tells arguments apart, but for the numbers in them and their sizes."""
    for name, _, tensor in subject.named_tensors(case.sample):
        yield name, tensor.dtype, tensor.layout, tensor.is_contiguous() if is_dense(tensor) else None
        yield name, tensor.dim(), tensor.numel() == 0, is_float(tensor) and name in case.varying
    values: Sequence[object] = (*case.sample.args, *sorted(case.sample.kwargs.items()))
    for place, value in enumerate(values):
        yield place, type(value), value if value is None or isinstance(value, (bool, str)) else ""


@contextmanager
def instructions(path: set[object]) -> Iterator[None]:
    """Within this, add each instruction of the code under test that runs."""

    def local(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "opcode":
            path.add((frame.f_code, frame.f_lasti))
        return local

    def each(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if not _is_authored(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        return local

    outer = sys.gettrace()
    sys.settrace(each)
    try:
        yield
    finally:
        sys.settrace(outer)


def _is_authored(code: CodeType) -> bool:
    """Whether it is the code under test: neither Python's own nor PyTorch's, nor what pullback runs around it."""
    name = code.co_filename
    if name.startswith(_PYTHON) and "site-packages" not in name:
        return False
    return not name.startswith((_TORCH, "<")) and (
        not name.startswith(_OURS) or name.removeprefix(_OURS).split(os.sep)[0] in _AUTHORED
    )


class _Operators(TorchDispatchMode):
    """Adds the name of each operator that runs."""

    def __init__(self, path: set[object]) -> None:
        super().__init__()
        self._path = path

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._path.add(str(func))
        return func(*args, **(kwargs or {}))
