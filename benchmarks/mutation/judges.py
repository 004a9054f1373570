"""The three judges, each asked about one class: the battery, gradcheck, and gradcheck with gradgradcheck.

A judge finds a mutant if it says anything against it, raising included. `tables` takes back what it says of mutants
whose original it says something against as well: that isn't about the fault.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from benchmarks.mutation.nests import exchanged, tensors
from pullback import Severity, check

SKIPPED = ("compiled",)
"""Probes that are left out unless asked for: compiling takes longer than all the others together."""


class Said(NamedTuple):
    """What a judge says.

    Attributes:
        found: What speaks against the class; empty where nothing does.
        hints: The rules of hints, which speak against nothing.
    """

    found: str
    hints: str = ""


def by_battery(cls: Any, seed: int, *, compiled: bool = False) -> Said:
    """The rules of all findings, hints apart."""
    report = check(cls, skip=() if compiled else SKIPPED, seed=seed)
    hints = {finding.rule for finding in report.findings if finding.severity is Severity.HINT}
    rules = {finding.rule for finding in report.findings if finding.severity is not Severity.HINT}
    return Said(", ".join(sorted(rules)), ", ".join(sorted(hints)))


def by_gradcheck(cls: Any, seed: int) -> Said:
    """What gradcheck raises on the Function's own samples, in float64."""
    return _raised((gradcheck,), cls, seed)


def by_gradgradcheck(cls: Any, seed: int) -> Said:
    """What gradcheck raises, or else gradgradcheck."""
    return _raised((gradcheck, gradgradcheck), cls, seed)


def _raised(judges: tuple[Callable[..., object], ...], cls: Any, seed: int) -> Said:
    torch.manual_seed(seed)
    for sample in list(cls.samples()):
        arguments = tuple(getattr(sample, "args", sample))
        if not any(tensor.requires_grad for tensor in tensors(arguments)):
            arguments = exchanged(arguments, lambda t: t.detach().requires_grad_() if t.is_floating_point() else t)
        arguments = exchanged(arguments, _double)
        call = functools.partial(cls.apply, **getattr(sample, "kwargs", {}))
        for judge in judges:
            try:
                judge(call, arguments)
            except Exception as error:
                return Said(type(error).__name__)
    return Said("")


def _double(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


JUDGES: dict[str, Callable[[Any, int], Said]] = {
    "battery": by_battery,
    "gradcheck": by_gradcheck,
    "gradgradcheck": by_gradgradcheck,
}
"""Every judge by its name in records."""


def judged(judge: str, cls: Any, seed: int) -> dict[str, object]:
    """What a judge says, and how many seconds of processor time it takes to."""
    torch.manual_seed(seed)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            said = JUDGES[judge](cls, seed)
        except Exception as error:
            said = Said(f"raises {type(error).__name__}")
    return {**said._asdict(), "seconds": round(time.process_time() - start, 4)}
