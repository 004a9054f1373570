"""Arguments and outputs changed between forward and backward: caught by PyTorch's version check, or without effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from pullback.battery.compare import Mismatch
from pullback.battery.leaves import is_float
from pullback.battery.nodes import node_of
from pullback.battery.observe import difference, kept_on, passed, storage_of
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.repro_effects import changed_lines
from pullback.battery.subject import BackwardRaised, Case, Output, Subject
from pullback.finding import Finding

Gradients = Sequence[torch.Tensor | None]


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Change one tensor at a time after the call, and differentiate."""
    if subject.definition is None:
        raise Skip("only a Function decides by itself what is saved")
    for case in subject.cases:
        yield from _each_change(subject, case)


def _each_change(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    baseline = subject.gradients(outputs, cotangents, inputs.varying)
    if all(gradient is None for gradient in baseline):
        return
    again = subject.fresh(case)
    repeated = subject.gradients(subject.call(again), cotangents, again.varying)
    if _first_mismatch(baseline, repeated) is not None:
        yield Note(f"{case.label}: an unchanged call gives other gradients already")
        return
    written = {storage_of(output.tensor) for output in outputs}
    arguments = {name for name, tensor in passed(subject, inputs).items() if storage_of(tensor) not in written}
    for name in [*sorted(arguments), *(output.name for output in outputs)]:
        try:
            mismatch = _change(subject, case, name, cotangents, baseline)
        except _NotTried as reason:
            yield Note(f"{case.label}: {name} can't be changed: {reason}")
            continue
        if mismatch is not None:
            yield _finding(subject, case, name, mismatch, is_argument=name in arguments)


class _NotTried(Exception):
    """The tensor refuses a change in place."""


def _change(
    subject: Subject, case: Case, name: str, cotangents: Sequence[torch.Tensor], baseline: Gradients
) -> Mismatch | None:
    """How the gradient differs after a change of `name`; None where it doesn't, or where PyTorch caught the change."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    tensor = _find(name, passed(subject, inputs), outputs)
    try:
        _write(tensor)
    except RuntimeError as refused:
        raise _NotTried(str(refused).splitlines()[0]) from None
    try:
        gradients = subject.gradients(outputs, cotangents, inputs.varying)
    except BackwardRaised:
        return None
    return _first_mismatch(baseline, gradients)


def _first_mismatch(baseline: Gradients, gradients: Gradients) -> Mismatch | None:
    mismatches = (difference(right, got) for right, got in zip(baseline, gradients, strict=True))
    return next((mismatch for mismatch in mismatches if mismatch is not None), None)


def _find(name: str, arguments: dict[str, torch.Tensor], outputs: Sequence[Output]) -> torch.Tensor:
    known = {**{output.name: output.tensor for output in outputs}, **arguments}
    return known[name]


def _write(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        if is_float(tensor):
            tensor.mul_(1.5).add_(0.25)
        elif tensor.dtype == torch.bool:
            tensor.logical_not_()
        else:  # another index might be out of bounds, where a kernel doesn't look
            raise _NotTried("it holds integers")


def _finding(subject: Subject, case: Case, name: str, mismatch: Mismatch, *, is_argument: bool) -> Finding:
    kept = _kept_as(subject, case, name)
    where = f"it is kept as {kept}" if kept else "backward reaches its memory without a saved tensor"
    return subject.finding(
        "PB302",
        case,
        f"{name} was changed after the call, and backward gave another gradient without an error: {where}",
        argument=name if is_argument else "",
        output="" if is_argument else name,
        expected=f"an error from PyTorch's version check, or the gradient {mismatch.expected}",
        got=mismatch.got,
        repro=changed_lines(subject, case, name),
        evidence={**mismatch.evidence, "kept_as": kept},
    )


def _kept_as(subject: Subject, case: Case, name: str) -> str:
    """The attribute of ctx that holds the tensor's memory, or ``""``."""
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    node = node_of(subject, outputs)
    if node is None:
        return ""
    storage = storage_of(_find(name, passed(subject, inputs), outputs))
    return next((path for path, tensor in kept_on(node) if storage_of(tensor) == storage), "")


PROBE = Probe(
    "changes",
    "an argument or output that is changed in place after the call is caught, or doesn't matter to backward",
    run,
)
