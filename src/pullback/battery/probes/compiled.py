"""Compiled by torch.compile, a call gives the values and gradients that it gives in eager mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any

import torch

from pullback.battery.compiling import Breaks, compiled, leaving_no_trace, recompiling, why_unsupported
from pullback.battery.draws import draws
from pullback.battery.leaves import replace as tensors_replaced
from pullback.battery.oracle import elsewhere
from pullback.battery.probe import REASON, LeftOut, Note, Probe, Skip
from pullback.battery.repro_surroundings import compiled_lines
from pullback.battery.setting import Setting
from pullback.battery.subject import BackwardRaised, Case, ForwardRaised, Subject
from pullback.battery.targets import user_line
from pullback.battery.trials import Result, Trial
from pullback.finding import Finding
from pullback.torch_private import TorchDispatchMode

_SECONDS = 10.0
"""Nothing further is compiled after so much time of the processor, beside what Dynamo needs to get started."""

_MOST_OPERATORS = 1000
"""A call with more of them isn't compiled: tracing takes about a hundredth of a second for each."""

_PATIENCE = 30.0
"""The first compilation of a process imports a good part of PyTorch."""


@dataclass(frozen=True)
class _Variant:
    """One way to call.

    Attributes:
        label: What is varied; empty for the sample as it is.
        case: The arguments.
        non_leaves: Whether they are results of operations, as arguments in a model are.
        only: The position of the one output that is differentiated; None for all.
    """

    label: str
    case: Case
    non_leaves: bool = False
    only: int | None = None


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare compiled calls with eager ones, each sample first, until one differs or the time is up."""
    reason = why_unsupported()
    if reason:
        raise Skip(reason)
    count = _operators(subject)
    if count > _MOST_OPERATORS:
        raise Skip(f"a call runs {count} operators, and compiling more than {_MOST_OPERATORS} would take too long")
    breaks = Breaks()
    refused: list[str] = []
    with leaving_no_trace():
        yield from _compared(subject, refused)
        compiled_any, reasons = breaks.compiled(), breaks.reasons()
    if refused and not compiled_any:
        raise Skip(refused[0])
    if not compiled_any and not reasons:
        raise Skip("nothing was compiled: TorchDynamo is switched off, or skips this function")
    yield from (Note(f"refused: compiled, {text}") for text in dict.fromkeys(refused))
    yield from (Note(shorten(f"not compiled in one piece: {_first_line(text)}", REASON)) for text in reasons[:1])


def _compared(subject: Subject, refused: list[str]) -> Iterator[Finding | LeftOut]:
    """The first fault, or what the time didn't suffice for; what is refused goes to `refused`."""
    call = compiled(_on_clones(subject.callable) if subject.in_place else subject.callable)
    _started(subject)
    until = time.process_time() + _SECONDS
    variants = list(_variants(subject))
    with recompiling(len(variants)):
        for done, variant in enumerate(variants):
            if done and time.process_time() > until:
                yield _left_out(variants, done)
                return
            try:
                finding = _tried(subject, variant, call)
            except _Refused as refusal:
                refused.append(str(refusal))
                continue
            if finding is not None:
                yield finding
                return


def _left_out(variants: list[_Variant], done: int) -> LeftOut:
    """What was not compiled, where the time was up after the first `done` variants."""
    samples = len({variant.case.index for variant in variants})
    tried = len({variant.case.index for variant in variants[:done]})
    if tried < samples:
        return LeftOut(f"only {tried} of {samples} samples were compiled within {_SECONDS:g} s")
    labels = ", ".join(variant.label for variant in variants[done:])
    return LeftOut(shorten(f"{variants[0].case.label} wasn't compiled, for lack of time, {labels}", REASON))


class _Refused(Exception):
    """PyTorch itself can't compile the call, or can't be compared with."""


class _Counted(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _operators(subject: Subject) -> int:
    """How many operators forward and backward of the first sample run; Dynamo unrolls the loops that they stand in."""
    if not hasattr(TorchDispatchMode, "__enter__"):
        return 0
    trial = Trial(subject, subject.cases[0])
    with _Counted() as counted, suppress(ForwardRaised, BackwardRaised):
        trial.alone()
    return counted.count


def _started(subject: Subject) -> None:
    """Let Dynamo import what it needs, so that the time of a check is its own."""
    if "dynamo started" not in subject.cache:
        subject.cache["dynamo started"] = compiled(torch.neg)(torch.zeros(1))


def _variants(subject: Subject) -> Iterator[_Variant]:
    """Each sample as it is; then the first one with other values, outputs and arguments."""
    first = subject.cases[0]
    yield from (_Variant("", case) for case in subject.cases)
    if first.may_vary("values"):
        yield _Variant("for other values", elsewhere(subject, first))
    outputs = subject.call(subject.fresh(first))
    tracked = [position for position, output in enumerate(outputs) if output.tensor.requires_grad]
    for position in tracked if len(tracked) > 1 else ():
        yield _Variant(f"with {outputs[position].name} alone in use", first, only=position)
    if not subject.in_place:
        yield _Variant("for arguments that are no leaves", first, non_leaves=True)
    names = sorted(first.varying)
    for name in names if len(names) > 1 else ():
        yield _Variant(f"when only {name} requires grad", replace(first, varying=frozenset({name})))


def _on_clones(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on copies of its arguments: what it writes to is made inside the compiled code, as in a model."""

    def on_clones(*args: Any, **kwargs: Any) -> Any:
        copies = [a.clone() if isinstance(a, torch.Tensor) and a.requires_grad else a for a in args]
        return function(*copies, **kwargs)

    return on_clones


def _tried(subject: Subject, variant: _Variant, call: Callable[..., Any]) -> Finding | None:
    """The fault that shows in one variant.

    Raises:
        _Refused: If there is nothing to compare, or PyTorch refuses.
    """
    case = variant.case
    try:
        expected = _result(subject, variant, subject.callable)
    except (ForwardRaised, BackwardRaised) as refused:
        raise _Refused(f"{variant.label or case.label}: not without compilation either: {refused}") from refused
    setting = _setting(subject, variant)
    try:
        found = expected.differs_from(_result(subject, variant, call))
    except (ForwardRaised, BackwardRaised) as raised:
        in_backward = isinstance(raised, BackwardRaised)
        if _is_torchs(raised.error, subject, in_backward=in_backward):
            raise _Refused(shorten(f"{variant.label or case.label}: {raised}", REASON)) from raised
        return setting.raises("backward" if in_backward else "forward", raised.error)
    if found is None:
        return None
    if draws(subject, case).forward or draws(subject, case).backward:
        raise _Refused(
            f"{variant.label or case.label}: it draws random numbers, which compiled code may draw otherwise"
        )
    return setting.differs(found)


def _result(subject: Subject, variant: _Variant, function: Callable[..., Any]) -> Result:
    """Values and gradients of one variant of a call."""

    def on_non_leaves(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tensors_replaced((args, kwargs), lambda tensor: tensor.clone())
        return function(*args, **kwargs)

    trial = Trial(subject, variant.case, on_non_leaves if variant.non_leaves else function)
    call = trial.forward()
    if variant.only is None:
        return trial.backward(call)
    leaves, chosen = call.inputs.varying, variant.only
    gradients = subject.gradients([call.outputs[chosen]], [trial.cotangents[chosen]], leaves)
    return trial.result(call, gradients)


def _is_torchs(error: BaseException, subject: Subject, *, in_backward: bool = False) -> bool:
    """Whether PyTorch refuses, by a name of its compiler's or from within its own code, while it compiles."""
    module = type(error).__module__
    if module.startswith(("torch._dynamo", "torch._functorch", "torch._inductor")):
        return True
    place, _ = user_line(error, subject.location.rpartition(":")[0])
    return not in_backward and not place


def _setting(subject: Subject, variant: _Variant) -> Setting:
    def repro(order: int, values: bool) -> str:
        return compiled_lines(subject, variant.case, only=variant.only, non_leaves=variant.non_leaves, values=values)

    where = "compiled by torch.compile" + (f", {variant.label}" if variant.label else "")
    return Setting(subject, variant.case, "PB515", where, "in eager mode", repro, what=variant.label)


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


PROBE = Probe(
    "compiled",
    "a call compiled by torch.compile gives the values and gradients of an eager one",
    run,
    patience=_PATIENCE,
)
