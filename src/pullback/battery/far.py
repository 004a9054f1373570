"""Cotangents far from 1, in every dtype: a loss that is scaled up, a mean over a million tokens.

backward is linear, so what comes back for 2ᵏ times a cotangent is 2ᵏ times as much; a power of two is rounded nowhere.
A detour through a dtype of a smaller range gives infinities or zeros there, and a clamp its edge. Below float64 the
infinities and zeros alone count: an algorithm that takes cotangents of another size by other steps loses other digits.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.battery.advice import to_declare
from pullback.battery.compare import compare, natural_scale
from pullback.battery.leaves import is_dense
from pullback.battery.numerics import flat
from pullback.battery.observe import is_finite
from pullback.battery.paths import telling
from pullback.battery.raised import BackwardRaised, ForwardRaised
from pullback.battery.repro import scale_lines, uneven_lines
from pullback.battery.subject import Case, Leaf, Subject
from pullback.battery.tolerances import EXACT, FAR, LOWER, SAME, for_gradients, has_room, real_dtype
from pullback.finding import Finding

_USUAL = (20, -20)

_BESIDE = 2.0**-20
"""By how much some elements of a cotangent are made smaller than the rest."""

_LOST = 0.1
"""What belongs to them is lost where it is off by so much of itself."""

_SEEN = 1e-10
"""Rounding is far below that where it is this share of the whole."""

_IN_FLOAT16 = 6
"""In float16 a sum overflows, or its terms vanish, for factors that are nothing elsewhere."""

_ROOM = 8.0
"""How far within a dtype's range a gradient and its terms must lie: kernels square and sum on the way."""

_RANGE = (
    "Compute backward in the dtype of the cotangent or in float32: a dtype of a smaller range overflows, or turns "
    "small numbers into zeros."
)


def far(subject: Subject, case: Case) -> Iterator[Finding]:
    """The first argument in each dtype whose gradient doesn't grow or shrink as the cotangent does."""
    dtypes: list[torch.dtype | None] = [None]
    if case.exact and case.may_vary("dtype") and case in telling(subject):
        dtypes += LOWER
    for dtype in dtypes:
        try:
            found = _in_dtype(subject, case, dtype)
        except (ForwardRaised, BackwardRaised):
            continue  # other probes tell of a dtype that forward takes and backward doesn't
        if found is not None:
            yield found
            return


def uneven(subject: Subject, case: Case) -> Iterator[Finding]:
    """The first argument whose gradient lacks what belongs to elements of the cotangent far smaller than the others.

    Nothing is asked where a sum of cotangents doesn't give the sum to the bit, or nearly: a solver stops at a residual
    of the whole.
    """
    _, outputs, _ = _pulled(subject, case, None, None, (0,))
    if not case.exact or any(tensor.dtype not in (torch.float64, torch.complex128) for tensor in outputs):
        return
    whole = [subject.cotangent(tensor) for tensor in outputs]
    every_other = [torch.arange(part.numel(), device=part.device).view(part.shape) % 2 for part in whole]
    large, small = ([p * (place == which) for p, place in zip(whole, every_other, strict=True)] for which in (0, 1))
    both = [one + _BESIDE * other for one, other in zip(large, small, strict=True)]
    try:
        found = [_pulled(subject, case, None, parts, (0,)) for parts in (large, small, whole, both)]
    except (ForwardRaised, BackwardRaised):
        return
    for leaf, *gradients in zip(found[0][0], *(gradients for _, _, (gradients,) in found), strict=True):
        dense = [gradient for gradient in gradients if gradient is not None and is_dense(gradient)]
        if len(dense) < len(gradients) or not all(map(is_finite, dense)):
            continue
        of_large, of_small, of_whole, of_both = dense
        scale = natural_scale(outputs, whole, leaf.tensor)
        share = _BESIDE * float(of_small.abs().max()) if of_small.numel() else 0.0
        if compare(of_large + of_small, of_whole, SAME, scale=scale) is not None or share < _SEEN * scale:
            continue
        expected, got = of_large + _BESIDE * of_small - of_large, of_both - of_large
        if float((got - expected).abs().max()) > _LOST * share:
            bad = compare(expected, got, EXACT)
            assert bad is not None
            yield _uneven(subject, case, leaf, bad.expected, bad.got)
            return


def _in_dtype(subject: Subject, case: Case, dtype: torch.dtype | None) -> Finding | None:
    _, outputs, _ = _pulled(subject, case, dtype, None, (0,))
    if not outputs or (dtype is not None and any(tensor.dtype is not dtype for tensor in outputs)):
        return None  # forward promotes: the lower dtype isn't one that it works in
    own = min((real_dtype(tensor.dtype) for tensor in outputs), key=lambda one: torch.finfo(one).max)
    cotangents = [subject.cotangent(tensor) for tensor in outputs]
    exponents = _exponents(own, cotangents)
    leaves, _, (usual, *others) = _pulled(subject, case, dtype, cotangents, (0, *exponents))
    for exponent, scaled in zip(exponents, others, strict=True):
        factor = 2.0**exponent
        for leaf, one, other in zip(leaves, usual, scaled, strict=True):
            scale = natural_scale(outputs, cotangents, leaf.tensor) * factor
            if one is None or not _in_range(one, scale, factor, leaf.tensor.dtype):
                continue
            if own is torch.float16 and not _squares_in_range(one, factor, own):
                continue
            expected = one.to(torch.complex128 if one.is_complex() else torch.float64) * factor
            got = other.to(expected.dtype) if other is not None else None
            near = max(FAR, for_gradients(leaf.tensor.dtype), for_gradients(own), key=lambda tolerance: tolerance.rtol)
            bad = compare(expected, got, near, scale=scale)
            known = own is torch.float64 or (bool(flat(one).isfinite().all()) and _is_lost(got))
            if bad is not None and known:
                return _finding(subject, case, leaf, dtype, exponent, got, bad.expected, bad.got)
    return None


def _exponents(own: torch.dtype, cotangents: list[torch.Tensor]) -> tuple[int, ...]:
    """The powers of two to try: in float16 the largest that keep the sum of the cotangents' squares in its range."""
    if own is not torch.float16:
        return _USUAL
    sizes = range(_IN_FLOAT16, 0, -1)
    up, down = (
        [
            sign * size
            for size in sizes
            if all(_squares_in_range(part, 2.0 ** (sign * size), own) for part in cotangents)
        ]
        for sign in (1, -1)
    )
    return (*up[:1], *down[:1])


def _squares_in_range(tensor: torch.Tensor, factor: float, dtype: torch.dtype) -> bool:
    """Whether a solver may add up the squares of the tensor times the factor, and multiply what it gets."""
    elements = flat(tensor)
    squares = float(elements[~elements.isnan()].square().sum()) * factor**2
    return squares == 0.0 or (has_room(squares, dtype) and squares > _ROOM * torch.finfo(dtype).tiny)


def _is_lost(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient shows that its numbers had no room: infinities, NaN, or nothing but zeros."""
    elements = flat(gradient) if gradient is not None else torch.zeros(1)
    return not bool(elements.isfinite().all()) or not bool(elements.any())


def _pulled(
    subject: Subject,
    case: Case,
    dtype: torch.dtype | None,
    cotangents: list[torch.Tensor] | None,
    exponents: tuple[int, ...],
) -> tuple[tuple[Leaf, ...], list[torch.Tensor], list[tuple[torch.Tensor | None, ...]]]:
    """The leaves, the outputs that require grad, and the gradients for each multiple of the cotangents."""

    def down(_: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor

    found: list[tuple[torch.Tensor | None, ...]] = []
    for exponent in exponents:
        inputs = subject.fresh(case, change=down)
        tracked = [output for output in subject.call(inputs) if output.tensor.requires_grad]
        gradients: tuple[torch.Tensor | None, ...] = (None,) * len(inputs.varying)
        if cotangents is not None:
            gradients = subject.gradients(tracked, [2.0**exponent * part for part in cotangents], inputs.varying)
        found.append(gradients)
    return inputs.varying, [output.tensor.detach() for output in tracked], found


def _in_range(gradient: torch.Tensor, scale: float, factor: float, dtype: torch.dtype) -> bool:
    """Whether a gradient, that times the factor, and their terms are numbers that the dtype holds in full."""
    elements, info = flat(gradient).abs(), torch.finfo(real_dtype(dtype))
    elements = elements[~elements.isnan()]  # a sample may hold some
    largest = float(elements.max()) if elements.numel() else 0.0
    if not largest < info.max:
        return False
    most = max(largest, scale / factor) * max(factor, 1.0)
    return most * _ROOM < info.max and (largest == 0.0 or largest * min(factor, 1.0) > _ROOM * info.tiny)


def _uneven(subject: Subject, case: Case, leaf: Leaf, expected: str, got: str) -> Finding:
    what = "a cotangent with some elements far smaller than the others"
    return subject.finding(
        "PB211",
        case,
        f"the gradient of {leaf.name} for {what} lacks what belongs to these",
        argument=leaf.name,
        what=what,
        expected=f"{expected} from them",
        got=got,
        remedy=to_declare(subject, "PB211"),
        evidence={"factor": _BESIDE},
        repro=uneven_lines(subject, case, leaf.name, _BESIDE),
    )


def _finding(
    subject: Subject,
    case: Case,
    leaf: Leaf,
    dtype: torch.dtype | None,
    exponent: int,
    came: torch.Tensor | None,
    expected: str,
    got: str,
) -> Finding:
    out_of_range = _is_lost(came)
    where = f"in {str(dtype).removeprefix('torch.')} " if dtype is not None else ""
    what = f"2**{exponent} times a cotangent"
    return subject.finding(
        "PB214" if out_of_range else "PB211",
        case,
        f"{where}the gradient of {leaf.name} for {what} isn't 2**{exponent} times the gradient"
        + (": backward computes in a dtype of a smaller range" if out_of_range else ""),
        argument=leaf.name,
        what=what,
        expected=expected,
        got=got,
        remedy=_RANGE if out_of_range else to_declare(subject, "PB211"),
        evidence={"factor": 2.0**exponent, "dtype": str(dtype or leaf.tensor.dtype).removeprefix("torch.")},
        repro=scale_lines(subject, case, leaf.name, factor=2.0**exponent, dtype=dtype),
    )
