"""Complex arguments, of a function whose samples are real: where its author has thought of them, all must be right.

PyTorch's convention: a gradient is that of a real loss by real and imaginary parts, so for a holomorphic f it is
g conj(f'). Most functions take complex tensors by chance, and their backward leaves the conjugate out: nobody promised
more, and such a function isn't faulted. But where the gradient of one argument has its conjugate, and that of another
lacks it, forward and backward were meant for complex numbers, and a silent wrong gradient is what comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from pullback.battery.away import has_values, numbered
from pullback.battery.case import Leaf
from pullback.battery.compare import compare
from pullback.battery.curves import confirms
from pullback.battery.leaves import is_dense
from pullback.battery.numerics import flat, normals, size_of
from pullback.battery.probe import Note
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro import difference_lines
from pullback.battery.subject import Case, Subject, with_tensors
from pullback.battery.tolerances import CONFIRMED, for_gradients
from pullback.battery.truth import differentiable, truth_of
from pullback.finding import Finding

_NUMBER = 900
"""The number of the variant."""

Gradients = dict[str, "torch.Tensor | None"]


def for_complex(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """Give the real arguments of a case imaginary parts, and look which gradients are right."""
    varying = [tensor for name, _, tensor in subject.named_tensors(case.sample) if name in case.varying]
    is_real = bool(varying) and not any(tensor.is_complex() for tensor in varying)
    if not (case.exact and is_real and case.may_vary("dtype")) or subject.surrogate is not None:
        return
    variant = numbered(case, _complex(subject, case), _NUMBER)
    try:
        if not has_values(subject, variant):
            return
        wrong, promised = _judged(subject, variant)
    except (ForwardRaised, BackwardRaised) as refused:
        yield Note(f"refused: complex arguments ({refused})")
        return
    if wrong and not promised:
        yield Note("complex arguments: forward takes them, and backward has no conjugates, as for real ones alone")
    if not wrong or not promised:
        return
    yield from _findings(subject, case, variant, wrong, promised)


def _complex(subject: Subject, case: Case) -> Case:
    def with_imaginary_parts(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not is_dense(tensor):
            return tensor
        part = size_of(tensor) * normals(tensor.numel(), subject.random).reshape(tensor.shape)
        return torch.complex(tensor.detach(), part.to(tensor))

    return replace(case, sample=with_tensors(case.sample, with_imaginary_parts))


def _judged(subject: Subject, variant: Case) -> tuple[list[str], list[str]]:
    """The arguments whose gradients are wrong, and those whose gradients are right by a conjugate."""
    inputs = subject.fresh(variant)
    outputs = subject.call(inputs)
    positions = differentiable(outputs)
    if not positions:
        return [], []
    cotangents = tuple(subject.cotangent(outputs[position].tensor) for position in positions)
    gradients = _pulled(subject, variant, positions, cotangents)
    if _agrees(subject, variant, inputs.varying, gradients, positions, cotangents):
        return [], []
    right = {
        leaf.name for leaf in inputs.varying if _agrees(subject, variant, [leaf], gradients, positions, cotangents)
    }
    turned = _pulled(subject, variant, positions, tuple(cotangent.conj().resolve_conj() for cotangent in cotangents))
    promised = [
        leaf.name for leaf in inputs.varying if leaf.name in right and _conjugates(gradients, turned, leaf.name)
    ]
    return [leaf.name for leaf in inputs.varying if leaf.name not in right], promised


def _pulled(subject: Subject, variant: Case, positions: Sequence[int], cotangents: Sequence[torch.Tensor]) -> Gradients:
    inputs = subject.fresh(variant)
    outputs = subject.call(inputs)
    gradients = subject.gradients([outputs[position] for position in positions], cotangents, inputs.varying)
    return {leaf.name: gradient for leaf, gradient in zip(inputs.varying, gradients, strict=True)}


def _agrees(
    subject: Subject,
    variant: Case,
    leaves: Sequence[Leaf],
    gradients: Gradients,
    positions: tuple[int, ...],
    cotangents: tuple[torch.Tensor, ...],
) -> bool:
    """Whether the gradients of some leaves agree with a difference along one random direction."""
    direction = {
        leaf.name: size_of(leaf.tensor) * normals(flat(leaf.tensor).numel(), subject.random) for leaf in leaves
    }
    parts = [flat(g) * d for name, d in direction.items() if (g := gradients[name]) is not None]
    terms = torch.cat([torch.zeros(1, dtype=torch.float64), *parts])
    close = CONFIRMED * float(terms.abs().sum())
    return confirms(subject, variant, direction, positions, cotangents, 1.0, float(terms.sum()), close)


def _conjugates(gradients: Gradients, turned: Gradients, name: str) -> bool:
    """Whether a gradient has a conjugate in it, other than that of the cotangent.

    For B(g) = g conj(f') it is another than conj(B(conj(g))) = g f'. Both are the same where f' is real: a sum, say.
    """
    one, other = gradients[name], turned[name]
    if one is None or other is None or not one.is_complex():
        return False
    return compare(one, other.conj().resolve_conj(), for_gradients(one.dtype)) is not None


def _findings(
    subject: Subject, case: Case, variant: Case, wrong: Sequence[str], promised: Sequence[str]
) -> Iterator[Finding]:
    """Those that a truth confirms."""
    try:
        truth = truth_of(subject, variant)
        if isinstance(truth, str):
            return
        for place, position in enumerate(truth.outputs):
            inputs = subject.fresh(truth.case)
            chosen = [subject.call(inputs)[position]]
            gradients = subject.gradients(chosen, [truth.cotangents[place]], inputs.varying)
            for leaf, gradient in zip(inputs.varying, gradients, strict=True):
                mismatch = truth.judge(leaf, place, gradient) if leaf.name in wrong else None
                if mismatch is None:
                    continue
                yield subject.finding(
                    "PB203",
                    case,
                    f"forward takes complex arguments, and the gradient of {leaf.name} is wrong for them, while that "
                    f"of {' and '.join(promised)} has the conjugate that PyTorch's convention asks for",
                    argument=leaf.name,
                    what="complex arguments",
                    expected=mismatch.expected,
                    got=mismatch.got,
                    remedy="Conjugate what grad_output is multiplied with (.mH for .mT), or refuse complex arguments "
                    "in forward.",
                    evidence=mismatch.evidence,
                    repro=difference_lines(subject, variant, leaf.name, mismatch.index),
                )
            return
    except (ForwardRaised, BackwardRaised):
        return
