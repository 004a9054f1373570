"""The first samples in the dtypes below their own, and in complex numbers, for trials that compare a call with itself.

Kernels have a branch for each dtype, and what is right of float64 in another setting (repeated, batched, on gradients
of another layout) needn't be of them. Whether the numbers themselves are right is asked elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.battery.away import has_values
from pullback.battery.case import Case, with_tensors
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.paths import telling
from pullback.battery.probe import Note
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.subject import Subject
from pullback.finding import Finding

_FIRST = (torch.float32, torch.bfloat16, torch.float16, torch.complex128)
_LATER = (torch.float32,)
"""The dtypes that the first sample is tried in, and those for what other samples run besides."""

_FEW = 3
"""So many samples are tried at most."""


@dataclass(frozen=True, eq=False)
class Lowered(Case):
    """A case whose real tensors are in another dtype than float64."""

    dtype: torch.dtype = torch.float32

    @property
    def label(self) -> str:
        """``sample 0 in float32``."""
        return f"sample {self.index} in {self.name}"

    @property
    def name(self) -> str:
        """What the dtype is called: ``float32``."""
        return str(self.dtype).removeprefix("torch.")


def lowered(subject: Subject) -> tuple[Lowered, ...]:
    """The first sample in each dtype in which forward works and backward runs, a few others in float32; found once.

    None where the author lets no dtype vary or forward takes no float64: that sample is in its own dtype already.
    """
    if "lowered" not in subject.cache:
        with subject.drawing_for("lowered"):
            cases = [case for case in telling(subject) if case.exact and case.may_vary("dtype")][:_FEW]
            tried = [
                _in_dtype(subject, case, dtype) for case in cases for dtype in (_LATER if case in cases[1:] else _FIRST)
            ]
            subject.cache["lowered"] = tuple(case for case in tried if _works(subject, case))
    found: tuple[Lowered, ...] = subject.cache["lowered"]
    return found


def or_in_lower(
    subject: Subject,
    results: Iterable[Finding | Note],
    trial: Callable[[Subject, Lowered], Iterable[Finding | Note]],
) -> Iterator[Finding | Note]:
    """The results, and if no finding is among them those of `trial` in each dtype, up to the first finding.

    What is wrong in every dtype is told once, in the sample's own.
    """
    found = False
    for result in results:
        found = found or isinstance(result, Finding)
        yield result
    for low in lowered(subject):
        if found:
            return
        findings = [result for result in trial(subject, low) if isinstance(result, Finding)]
        yield from findings  # what isn't tried there isn't in the sample's own dtype, which says so
        found = bool(findings)


def _in_dtype(subject: Subject, case: Case, dtype: torch.dtype) -> Lowered:
    def converted(tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() and is_dense(tensor)):
            return tensor
        if dtype.is_complex:
            low = torch.complex(tensor.detach(), subject.cotangent(tensor) * 0.25)
        else:
            low = tensor.detach().to(dtype)
        return torch.nn.Parameter(low) if isinstance(tensor, torch.nn.Parameter) else low

    return Lowered(case.index, with_tensors(case.sample, converted), case.varying, exact=False, dtype=dtype)


def _works(subject: Subject, case: Lowered) -> bool:
    """Whether forward computes in the dtype, and a gradient comes of it; what raises there is told elsewhere."""
    if not any(t.dtype is case.dtype for _, _, t in subject.named_tensors(case.sample)):
        return False
    try:
        if not has_values(subject, case):
            return False
        inputs = subject.fresh(case)
        outputs = subject.call(inputs)
        tracked = [output for output in outputs if output.tensor.requires_grad]
        subject.gradients(tracked, [subject.cotangent(output.tensor) for output in tracked], inputs.varying)
    except (ForwardRaised, BackwardRaised):
        return False
    return bool(tracked) and all(o.tensor.dtype is case.dtype for o in tracked if is_float(o.tensor))
