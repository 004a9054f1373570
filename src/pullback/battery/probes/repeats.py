"""The same call gives the same result: repeated, differentiated twice, interleaved and reordered with others."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pullback.battery.compare import Mismatch
from pullback.battery.leaves import is_float
from pullback.battery.observe import difference
from pullback.battery.probe import Note, Probe
from pullback.battery.repro import backward_lines
from pullback.battery.subject import BackwardRaised, Case, Change, ForwardRaised, Inputs, Output, Subject
from pullback.finding import Finding
from pullback.rules import Severity


@dataclass(frozen=True, eq=False)
class _Call:
    """A call that waits for its backward."""

    inputs: Inputs
    outputs: tuple[Output, ...]


@dataclass(frozen=True, eq=False)
class _Result:
    """What a call gave: values and gradients."""

    values: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor | None, ...]

    def differs_from(self, other: _Result) -> tuple[str, Mismatch] | None:
        """``value`` or ``gradient`` and the first difference, or None."""
        for kind, ours, theirs in (
            ("value", self.values, other.values),
            ("gradient", self.gradients, other.gradients),
        ):
            for expected, got in zip(ours, theirs, strict=True):
                mismatch = difference(expected, got)
                if mismatch is not None:
                    return kind, mismatch
        return None


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Repeat each case, then mix it with a call on other values."""
    for case in subject.cases:
        found = False
        for result in _repeated(subject, case):
            found = found or isinstance(result, Finding)
            yield result
        if not found:
            yield from _mixed(subject, case)


def _repeated(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    trial = _Trial(subject, case)
    first, second = trial.alone(), trial.alone()
    found = first.differs_from(second)
    if found is not None:
        kind, mismatch = found
        yield _depends(subject, case, f"the same call, repeated, gave another {kind}", mismatch)
        return
    call = trial.forward()
    once = trial.backward(call, retain_graph=True)
    try:
        twice = trial.backward(call, retain_graph=True)
    except BackwardRaised as raised:
        if _frees_on_purpose(subject):
            yield Note(f"{case.label}: backward frees what it saved, so it was not repeated")
        else:
            yield subject.finding(
                "PB125",
                case,
                f"backward raises when it runs a second time, with retain_graph=True: {raised}",
                severity=Severity.WARNING,
                remedy="Leave what backward reads in place: PyTorch frees saved tensors by itself.",
                repro=backward_lines(subject, case).replace(".backward()", ".backward(retain_graph=True)"),
                got=str(raised),
            )
        return
    found = once.differs_from(twice)
    if found is not None:
        yield subject.finding(
            "PB404",
            case,
            "a second backward through the same call gave another gradient: the first one changed what it reads",
            expected=found[1].expected,
            got=found[1].got,
            evidence=found[1].evidence,
        )


def _mixed(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    trial, other = _Trial(subject, case), _Trial(subject, case, _other_values)
    try:
        alone, other_alone = trial.alone(), other.alone()
    except (ForwardRaised, BackwardRaised) as refused:
        yield Note(f"refused: other values of the same shapes ({refused})")
        return
    for order in ("first in, first out", "last in, first out", "without grad"):
        try:
            call = trial.forward()
            later = other.forward(track=order != "without grad")
            if order == "last in, first out":
                other_mixed = other.backward(later)
                mixed = trial.backward(call)
            else:
                mixed = trial.backward(call)
                other_mixed = other.backward(later) if order == "first in, first out" else other_alone
        except BackwardRaised as raised:
            message = f"backward raises when another call came between it and its forward: {raised}"
            yield _depends(subject, case, message, None)
            return
        found = alone.differs_from(mixed) or other_alone.differs_from(other_mixed)
        if found is not None:
            kind, mismatch = found
            message = f"with another call between forward and backward ({order}), the {kind} is another one"
            yield _depends(subject, case, message, mismatch)
            return


class _Trial:
    """Calls of one case, always with the same arguments and cotangents."""

    def __init__(self, subject: Subject, case: Case, change: Change | None = None) -> None:
        self._subject, self._case, self._change = subject, case, change
        outputs = subject.call(subject.fresh(case, change=change))
        self._cotangents = [subject.cotangent(output.tensor) for output in outputs]

    def forward(self, *, track: bool = True) -> _Call:
        inputs = self._subject.fresh(self._case, change=self._change)
        with _seeded(self._subject.seed), torch.set_grad_enabled(track):
            return _Call(inputs, self._subject.call(inputs))

    def backward(self, call: _Call, *, retain_graph: bool = False) -> _Result:
        with _seeded(self._subject.seed):
            cotangents = [cotangent.clone() for cotangent in self._cotangents]
            gradients = self._subject.gradients(
                call.outputs, cotangents, call.inputs.varying, retain_graph=retain_graph
            )
        values = tuple(output.tensor.detach() for output in call.outputs)
        return _Result(values, gradients)

    def alone(self) -> _Result:
        return self.backward(self.forward())


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Python's and NumPy's generators in the same state each time, and put back afterwards."""
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state: object = numpy.random.get_state() if numpy is not None else None
    restore: Callable[[object], None] | None = numpy.random.set_state if numpy is not None else None
    try:
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed)
        yield
    finally:
        random.setstate(python_state)
        if restore is not None:
            restore(numpy_state)


def _other_values(_: str, tensor: torch.Tensor) -> torch.Tensor:
    """Values of the same kind: a little further from 0, of the same signs."""
    return tensor * 1.25 if is_float(tensor) else tensor


def _frees_on_purpose(subject: Subject) -> bool:
    flags: Sequence[str] = ("clear_saved_tensors_on_access", "boxed_grads_call")
    return any(getattr(subject.function, flag, False) for flag in flags)


def _depends(subject: Subject, case: Case, message: str, mismatch: Mismatch | None) -> Finding:
    return subject.finding(
        "PB504",
        case,
        message,
        expected=mismatch.expected if mismatch is not None else "no error",
        got=mismatch.got if mismatch is not None else message.rpartition(": ")[2],
        evidence=mismatch.evidence if mismatch is not None else {},
    )


PROBE = Probe(
    "repeats",
    "a call gives the same values and gradients when it is repeated, differentiated twice, or mixed with other calls",
    run,
)
