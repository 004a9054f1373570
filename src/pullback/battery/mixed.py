"""One argument in a lower dtype than the others: a weight in float32 beside activations in float64, say.

Forward promotes, or refuses. Where it gives a result, that and the gradients are those of float64 at the same numbers,
but for what rounding to the lower dtype costs. What backward refuses is loud, and no fault here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pullback.battery.budgets import Shake
from pullback.battery.compare import Mismatch, compare, natural_scale
from pullback.battery.draws import draws
from pullback.battery.leaves import is_dense, is_float
from pullback.battery.numerics import flat
from pullback.battery.observe import is_finite
from pullback.battery.oracle import in_double, moved
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro_precision import lower_lines, lower_value_lines
from pullback.battery.subject import Case, Subject
from pullback.battery.tolerances import EXACT, LOW_VALUES, PRECISIONS, for_gradients, for_values
from pullback.finding import Finding

_DTYPES = (torch.float32, torch.bfloat16)

_ARGUMENTS = 4
"""So many arguments are lowered one by one."""

_SHAKES = 4

Named = dict[str, "torch.Tensor | None"]


@dataclass(frozen=True, eq=False)
class _Results:
    """What a call gave: values and gradients, and the size of the terms that each gradient is a sum of."""

    values: Named
    gradients: Named
    scales: dict[str, float]


def one_lowered(subject: Subject, case: Case) -> Iterator[Finding]:
    """A finding for the first argument and dtype for which a value or gradient is another than in float64."""
    named = [name for name, _, t in subject.named_tensors(case.sample) if t.is_floating_point() and is_dense(t)]
    drawn = draws(subject, case)
    if len(named) < 2 or not case.exact or drawn.forward or drawn.backward:
        return
    for name in named[:_ARGUMENTS]:
        for dtype in _DTYPES:
            try:
                finding = _with_one(subject, case, name, dtype)
            except (ForwardRaised, BackwardRaised):
                continue
            if finding is not None:
                yield finding
                return


def _with_one(subject: Subject, case: Case, name: str, dtype: torch.dtype) -> Finding | None:
    low = moved(subject, case, lambda other, tensor: tensor.to(dtype) if other == name else tensor)
    high = moved(subject, low, lambda _, tensor: in_double(tensor))
    outputs = subject.call(subject.fresh(high))
    if not all(is_finite(output.tensor) for output in outputs if is_float(output.tensor)):
        return None
    cotangents = [subject.cotangent(output.tensor) for output in outputs]
    wanted, came = _results(subject, high, cotangents), _results(subject, low, cotangents)
    if set(came.values) != set(wanted.values):
        return None
    for what, kind in (("values", for_values(dtype)), ("gradients", for_gradients(dtype))):
        expected: Named = getattr(wanted, what)
        got: Named = getattr(came, what)
        for key, right in expected.items():
            scale = wanted.scales.get(key, 0.0) if what == "gradients" else 0.0
            there = _double(got.get(key))
            if compare(right, there, kind, scale=scale) is None:
                continue
            if _explained(subject, high, cotangents, dtype, what, key, right, there, scale):
                continue
            bad = compare(right, there, EXACT)
            if bad is not None:
                return _finding(subject, case, name, dtype, what, key, bad)
    return None


def _results(subject: Subject, case: Case, cotangents: Sequence[torch.Tensor], shake: Shake | None = None) -> _Results:
    inputs = subject.fresh(case)
    outputs = subject.call(inputs)
    along = [c.to(o.tensor.dtype) if is_float(o.tensor) else c for c, o in zip(cotangents, outputs, strict=True)]
    along = [shake.rounded(c) for c in along] if shake is not None else along
    gradients = subject.gradients(outputs, along, inputs.varying)
    tensors = [output.tensor.detach() for output in outputs]
    return _Results(
        {output.name: output.tensor.detach() for output in outputs if is_float(output.tensor)},
        {leaf.name: gradient for leaf, gradient in zip(inputs.varying, gradients, strict=True)},
        {leaf.name: natural_scale(tensors, along, leaf.tensor) for leaf in inputs.varying},
    )


def _explained(
    subject: Subject,
    high: Case,
    cotangents: Sequence[torch.Tensor],
    dtype: torch.dtype,
    what: str,
    key: str,
    right: torch.Tensor | None,
    got: torch.Tensor | None,
    scale: float,
) -> bool:
    """Whether random roundings to the dtype move the worst element about as far."""
    if right is None or got is None or right.shape != got.shape:
        return False
    exact, unit, most = flat(right), PRECISIONS[dtype].unit, 0.0
    for _ in range(_SHAKES):
        shake = Shake(unit, subject.random)
        shaken = moved(subject, high, lambda _, tensor, shake=shake: shake.rounded(tensor))  # type: ignore[misc]  # it is bound
        with shake.operators():
            other = getattr(_results(subject, shaken, cotangents, shake), what)[key]
        if other is not None and other.shape == right.shape:
            most = max(most, float((flat(other) - exact).abs().max()))
    off = float((flat(got) - exact).abs().max())
    return off <= LOW_VALUES * (most + unit * max(scale, float(exact.abs().max())))


def _double(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return in_double(tensor) if tensor is not None else None


def _finding(
    subject: Subject, case: Case, name: str, dtype: torch.dtype, what: str, key: str, bad: Mismatch
) -> Finding:
    short = str(dtype).removeprefix("torch.")
    where = f"{name} alone in {short}"
    is_value = what == "values"
    if is_value:
        repro = lower_value_lines(subject, case, dtype, only=name)
    else:
        repro = lower_lines(subject, case, key, dtype, only=name)
    return subject.finding(
        "PB219" if is_value else "PB214",
        case,
        f"with {where}, {key if is_value else f'the gradient of {key}'} is another than in float64, by more than "
        "rounding explains",
        argument="" if is_value else key,
        output=key if is_value else "",
        what=where,
        expected=f"{bad.expected}, as in float64",
        got=bad.got,
        remedy="Compute in the dtype that PyTorch promotes to, or refuse arguments of several dtypes in forward.",
        evidence={**bad.evidence, "dtype": short},
        repro=repro,
    )
