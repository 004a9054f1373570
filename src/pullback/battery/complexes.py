"""Complex arguments, of a function whose samples are real: where its author has thought of them, all must be right.

PyTorch's convention: a gradient is that of a real loss by real and imaginary parts, so for a holomorphic f it is
g conj(f'). Most functions take complex tensors by chance, and their backward leaves the conjugate out: nobody promised
more, and such a function isn't faulted. But where the gradient of one argument has its conjugate, and that of another
lacks it, forward and backward were meant for complex numbers, and a silent wrong gradient is what comes: if the
conjugate is written there, as an operator of PyTorch's (cholesky_solve) has its own in it. So they were where backward
takes a real part or a conjugate of what comes in, and forward is holomorphic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.battery.away import has_values, numbered
from pullback.battery.case import Leaf
from pullback.battery.compare import compare
from pullback.battery.cotangents import Watched, standing_over
from pullback.battery.curves import confirms
from pullback.battery.further import further
from pullback.battery.leaves import is_dense
from pullback.battery.numerics import flat, normals, size_of
from pullback.battery.ordinary import is_right
from pullback.battery.probe import Note
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro import difference_lines
from pullback.battery.rounding import detours
from pullback.battery.subject import Case, Subject, with_tensors
from pullback.battery.tolerances import CONFIRMED, SPECIAL, STEPS, for_gradients
from pullback.battery.truth import differentiable, truth_of
from pullback.finding import Finding
from pullback.torch_private import TorchDispatchMode

_NUMBER = 900
"""The number of the variant."""

Gradients = dict[str, "torch.Tensor | None"]


def for_complex(subject: Subject, case: Case) -> Iterator[Finding | Note]:
    """Give the real arguments of a case imaginary parts, and look which gradients are right."""
    varying = [tensor for name, _, tensor in subject.named_tensors(case.sample) if name in case.varying]
    is_real = bool(varying) and not any(tensor.is_complex() for tensor in varying)
    if not (case.exact and is_real and case.may_vary("dtype")) or subject.surrogate is not None:
        return
    if not is_right(subject, case):
        return
    variant = numbered(case, made_complex(subject, case), _NUMBER)
    try:
        if not has_values(subject, variant):
            return
        wrong, promised = _judged(subject, variant)
        if not wrong:
            found = further(subject, case, variant, "complex arguments", raising=False)
            yield from (found,) if found is not None else detours(subject, replace(variant, index=case.index))
            return
        by_hand = not promised or _has_complex_samples(subject) or _conjugates_by_hand(subject, variant)
        turned = not promised and _turns_holomorphic(subject, variant, wrong)
    except (ForwardRaised, BackwardRaised) as refused:
        yield Note(f"refused: complex arguments ({refused})")
        return
    if not by_hand:
        yield Note("complex arguments: forward takes them, and no conjugate in backward is but that of an operator")
        return
    if not promised and not turned:
        yield Note("complex arguments: forward takes them, and backward has no conjugates, as for real ones alone")
        return
    why = f"that of {' and '.join(promised)} has the conjugate that PyTorch's convention asks for"
    if turned:
        why = "backward takes a real part or a conjugate of what comes in, though forward takes none"
    yield from _findings(subject, case, variant, wrong, why)


def made_complex(subject: Subject, case: Case) -> Case:
    """The case with imaginary parts for its real tensors, of their size."""

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


def _has_complex_samples(subject: Subject) -> bool:
    """Whether any sample has a complex tensor: then complex numbers are meant."""
    return any(t.is_complex() for case in subject.cases for _, _, t in subject.named_tensors(case.sample))


class _Conjugations(Watched):
    """Sees whether a conjugate is asked for by name, and not by an operator of PyTorch's inside."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or func in _CONJUGATES
        return super().__torch_function__(func, types, args, kwargs)


_CONJUGATES = frozenset(
    {
        *(Tensor.conj, Tensor.conj_physical, Tensor.adjoint, Tensor.vdot, Tensor.conj_physical_),
        *(torch.conj, torch.conj_physical, torch.adjoint, torch.vdot, torch.linalg.vecdot),
        Tensor.mH.__get__,  # type: ignore[attr-defined]  # a getset
        Tensor.H.__get__,  # type: ignore[attr-defined]  # a getset
    }
)


def _conjugates_by_hand(subject: Subject, variant: Case) -> bool:
    """Whether forward or backward, as their author wrote them, take a conjugate."""
    inputs = subject.fresh(variant)
    conjugations = _Conjugations()
    with conjugations:
        outputs = subject.call(inputs)
    chosen = [outputs[position] for position in differentiable(outputs)]
    with standing_over([output.tensor for output in chosen], conjugations):
        subject.gradients(chosen, [subject.cotangent(output.tensor) for output in chosen], inputs.varying)
    return conjugations.seen


def _turns_holomorphic(subject: Subject, variant: Case, wrong: Sequence[str]) -> bool:
    """Whether forward is holomorphic, and yet what comes back for i times a cotangent isn't i times as much.

    Then backward is g conj(f') for it to be right, and g f' where nobody thought of complex numbers: linear over the
    complex numbers either way. One that isn't takes a real part or a conjugate of g on purpose.
    """
    inputs = subject.fresh(variant)
    outputs = subject.call(inputs)
    positions = differentiable(outputs)
    if not all(outputs[position].tensor.is_complex() for position in positions) or not _is_holomorphic(
        subject, variant
    ):
        return False
    cotangents = tuple(subject.cotangent(outputs[position].tensor) for position in positions)
    with _Casts() as casts:
        one = _pulled(subject, variant, positions, cotangents)
    if casts.seen:
        return False  # a cast to a real dtype, of which PyTorch warns: of complex numbers nobody thought
    other = _pulled(subject, variant, positions, tuple(1j * cotangent for cotangent in cotangents))
    return any(_parts(one[name], other[name]) for name in wrong)


class _Casts(TorchDispatchMode):
    """Sees whether complex numbers are cast to a real dtype, or copied into a real tensor."""

    seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if str(func) in _COPIES and any(isinstance(arg, torch.Tensor) and arg.is_complex() for arg in args):
            self.seen = self.seen or not result.is_complex()
        return result


_COPIES = ("aten._to_copy.default", "aten.copy_.default")


def _parts(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None or not one.is_complex():
        return False
    return compare(1j * one, other, for_gradients(one.dtype)) is not None


def _is_holomorphic(subject: Subject, variant: Case) -> bool:
    """Whether forward's derivative along i times a direction is i times that along the direction."""
    directions = {
        name: size_of(tensor) * subject.cotangent(tensor)
        for name, _, tensor in subject.named_tensors(variant.sample)
        if name in variant.varying
    }

    def outputs_at(step: complex) -> list[torch.Tensor]:
        def move(name: str, tensor: torch.Tensor) -> torch.Tensor:
            return tensor + step * directions[name] if name in directions else tensor

        return [output.tensor for output in subject.call(subject.fresh(variant, requires=(), change=move))]

    h = STEPS[1]
    sides = [outputs_at(step) for step in (h, -h, 1j * h, -1j * h)]
    for right, left, up, down in zip(*sides, strict=True):
        if right.is_complex() and compare(1j * (right - left), up - down, SPECIAL) is not None:
            return False
    return True


def _findings(subject: Subject, case: Case, variant: Case, wrong: Sequence[str], why: str) -> Iterator[Finding]:
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
                    f"forward takes complex arguments, and the gradient of {leaf.name} is wrong for them, while {why}",
                    argument=leaf.name,
                    what="complex arguments",
                    expected=mismatch.expected,
                    got=mismatch.got,
                    remedy="Conjugate what grad_output is multiplied with (.mH for .mT), and nothing else, or refuse "
                    "complex arguments in forward.",
                    evidence=mismatch.evidence,
                    repro=difference_lines(subject, variant, leaf.name, mismatch.index),
                )
            return
    except (ForwardRaised, BackwardRaised):
        return
