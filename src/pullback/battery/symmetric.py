"""Arguments that are meant to be symmetric matrices: for them a derivative is one along symmetric directions.

A Cholesky factor, or eigenvalues, are made of one half of a matrix, and some forwards refuse what isn't symmetric. The
gradient that is of use there is symmetric, as PyTorch's own is: along symmetric directions it is forward's derivative,
and by a single element off the diagonal there is none to compare it with. So whatever an experiment does to such an
argument, it stays symmetric.
"""

from __future__ import annotations

import torch

from pullback.battery.leaves import is_dense, is_symmetric, symmetrised
from pullback.battery.numerics import flat, normals, size_of, unflat
from pullback.battery.oracle import moved
from pullback.battery.ordinary import pulled_at
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.randomness import preserved
from pullback.battery.subject import Case, Subject
from pullback.battery.surroundings import neutral
from pullback.battery.tolerances import SAME

_NOISE = 0.01
"""By what share of its size a matrix is changed to see what is read of it: it stays positive definite."""


def symmetric_arguments(subject: Subject) -> frozenset[str]:
    """The leaves of which forward reads one half, or which it takes symmetric alone, and whose gradients are symmetric.

    None where a reference or a surrogate says what the derivative is.
    """
    if subject.reference is not None or subject.surrogate is not None:
        return frozenset()
    given = [entry for sample in subject.samples.samples for entry in subject.named_tensors(sample)]
    apart = {name for name, _, tensor in given if not _may_be_meant(subject, tensor)}
    chosen = {name for name, _, _ in given} - apart
    if not chosen:
        return frozenset()
    with preserved(subject.runs_on), neutral():
        tried = [
            (name, _is_meant(subject, case, name, tensor))
            for case in subject.cases
            for name, _, tensor in subject.named_tensors(case.sample)
            if name in chosen & case.varying
        ]
    return frozenset(name for name, _ in tried) - {name for name, meant in tried if not meant}


def _may_be_meant(subject: Subject, tensor: torch.Tensor) -> bool:
    """Whether the author gave a symmetric matrix; a guessed one needn't be."""
    square = is_dense(tensor) and tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1 and tensor.numel() > 0
    return square and (subject.samples.guessed or is_symmetric(tensor))


def _is_meant(subject: Subject, case: Case, name: str, tensor: torch.Tensor) -> bool:
    point = moved(subject, case, lambda leaf, t: symmetrised(t) if leaf == name else t)
    noise = unflat(_NOISE * size_of(tensor) * normals(flat(tensor).numel(), subject.random), tensor)
    start, even, upper, lower = (
        _outputs(subject, point, name, part) for part in (0 * noise, noise + noise.mT, noise.triu(1), noise.tril(-1))
    )
    if start is None or even is None:
        return False
    refused = upper is None and lower is None
    half_read = upper is not None and lower is not None and _are_equal(start, upper) != _are_equal(start, lower)
    return (refused or half_read) and _has_symmetric_gradient(subject, point, name)


def _outputs(subject: Subject, point: Case, name: str, noise: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """What forward makes of the matrix and some noise; None where it refuses that."""
    try:
        there = subject.fresh(point, requires=(), change=lambda leaf, t: t + noise if leaf == name else t)
        return tuple(output.tensor for output in subject.call(there))
    except ForwardRaised:
        return None


def _are_equal(some: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def _has_symmetric_gradient(subject: Subject, point: Case, name: str) -> bool:
    try:
        pulled = pulled_at(subject, point)
    except (ForwardRaised, BackwardRaised):
        return False
    found = (gradient for leaf, gradient in zip(pulled.leaves, pulled.gradients, strict=True) if leaf.name == name)
    gradient = next(found, None)
    if gradient is None or not bool(gradient.any()):
        return False
    allowed = max(SAME.rtol, torch.finfo(gradient.dtype).eps) * gradient.abs().max()
    return bool(((gradient - gradient.mH).abs() <= allowed).all())
