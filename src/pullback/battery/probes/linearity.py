"""backward is linear in grad_output, as every vector-Jacobian product is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from pullback.battery.advice import to_declare
from pullback.battery.budgets import Shake
from pullback.battery.compare import compare, natural_scale
from pullback.battery.far import far, uneven
from pullback.battery.numerics import flat
from pullback.battery.oracle import in_double, moved
from pullback.battery.own import Own
from pullback.battery.paths import passed_over, telling
from pullback.battery.probe import Note, Probe, Skip
from pullback.battery.repro import scale_lines
from pullback.battery.subject import Case, Leaf, Subject
from pullback.battery.tolerances import LINEAR, for_gradients
from pullback.battery.verdict import with_remark
from pullback.finding import Finding

_A, _B = 2.5, -40.0
_IGNORED = "Multiply by grad_output: it is 1 only where nothing but backward() follows, and no scale, mean or weight."


def run(subject: Subject) -> Iterable[Finding | Note]:
    """Compare what comes back for a·u + b·v with a times that for u and b times that for v; and far from 1."""
    if subject.definition is not None and subject.definition.nonlinear_backward:
        raise Skip("backward is declared not to be linear")
    for case in telling(subject):
        found = list(_combine(subject, case))
        yield from found
        if not any(isinstance(note, Finding) for note in found):
            found = [*far(subject, case)]
            yield from found or uneven(subject, case)
    yield from passed_over(subject)


def _combine(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    tracked = [o.tensor for o in subject.call(subject.fresh(case)) if o.tensor.requires_grad]
    u, v = ([subject.cotangent(tensor) for tensor in tracked] for _ in range(2))
    leaves, of_u = _pull(subject, case, u)
    _, of_v = _pull(subject, case, v)
    _, of_sum = _pull(subject, case, [_A * a + _B * b for a, b in zip(u, v, strict=True)])
    _, of_zero = _pull(subject, case, [torch.zeros_like(a) for a in u])
    combined = {leaf.name: _combined(a, b) for leaf, a, b in zip(leaves, of_u, of_v, strict=True)}
    sizes = {leaf.name: _combined(a, b, sizes=True) for leaf, a, b in zip(leaves, of_u, of_v, strict=True)}

    def again(shake: Shake) -> dict[str, torch.Tensor | None]:
        rounded = moved(subject, case, lambda _, tensor: shake.rounded(tensor))
        parts = (_pull(subject, rounded, [shake.rounded(part) for part in parts]) for parts in (u, v))
        (_, one), (_, other) = parts
        return {leaf.name: _combined(a, b) for leaf, a, b in zip(leaves, one, other, strict=True)}

    own = Own(subject, case, combined, again, LINEAR, sizes)
    for leaf, a, b, both, nothing in zip(leaves, of_u, of_v, of_sum, of_zero, strict=True):
        tolerance = LINEAR if case.exact else for_gradients(leaf.tensor.dtype)
        scale = natural_scale(tracked, u, leaf.tensor) * abs(_B)
        expected = combined[leaf.name]
        if expected is not None and not bool(flat(expected).isfinite().all()):
            yield Note(f"{case.label}: the gradient of {leaf.name} isn't finite")
            continue
        bad = own.differs(leaf.name, both, scale=scale)
        what = f"{_A}·u {_B}·v"
        if bad is None and nothing is not None:
            bad = compare(torch.zeros_like(nothing), nothing, tolerance, scale=scale)
            what = "zeros"
        if bad is not None and not case.exact and _only_rounds(subject, case, u, leaf.name, a):
            yield Note(
                f"{case.label}: the gradient of {leaf.name} isn't linear beyond its rounding, which is too coarse"
            )
            continue
        if bad is not None:
            ignored = a is not None and all(compare(a, other, tolerance) is None for other in (b, both, nothing))
            message = (
                f"the gradient of {leaf.name} for the cotangent {what} is not that combination of those for u and v"
            )
            if ignored:
                message = f"backward ignores grad_output: the gradient of {leaf.name} is the same for every one"
            lines = scale_lines(subject, case, leaf.name)
            yield subject.finding(
                "PB211",
                case,
                message,
                argument=leaf.name,
                expected=bad.expected,
                got=bad.got,
                remedy=_IGNORED if ignored else to_declare(subject, "PB211"),
                evidence=bad.evidence,
                repro=lines if ignored else with_remark(lines),
            )


def _combined(a: torch.Tensor | None, b: torch.Tensor | None, *, sizes: bool = False) -> torch.Tensor | None:
    """The combination of two gradients, in float64 so that it adds no rounding; or the sizes of its terms, summed."""
    terms = [factor * in_double(term) for factor, term in ((_A, a), (_B, b)) if term is not None]
    if not terms:
        return None
    return torch.stack([term.abs() for term in terms] if sizes else terms).sum(0)


def _only_rounds(subject: Subject, case: Case, u: Sequence[torch.Tensor], name: str, of_u: torch.Tensor | None) -> bool:
    """Whether what looks like no linear map is one that rounds badly, which another probe has found.

    Rounding leaves a power of two alone: whatever rounds, and does nothing else, gives -4 times as much for -4·u.
    """
    if of_u is None or not subject.found & {"PB203", "PB214"}:
        return False
    leaves, found = _pull(subject, case, [-4 * part for part in u])
    scaled = next(gradient for leaf, gradient in zip(leaves, found, strict=True) if leaf.name == name)
    return compare(-4 * of_u, scaled, for_gradients(of_u.dtype)) is None


def _pull(
    subject: Subject, case: Case, cotangents: Sequence[torch.Tensor]
) -> tuple[tuple[Leaf, ...], tuple[torch.Tensor | None, ...]]:
    inputs = subject.fresh(case)
    tracked = [output for output in subject.call(inputs) if output.tensor.requires_grad]
    return inputs.varying, subject.gradients(tracked, cotangents, inputs.varying)


PROBE = Probe("linearity", "what comes back for a sum of cotangents is the sum of what comes back for each", run)
