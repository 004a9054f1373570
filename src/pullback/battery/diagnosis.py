"""What is wrong with a gradient, in words: the pattern of its error, where there is one.

Each pattern is a guess that makes, from the right gradient and what else is known of the call, the gradient that came.
It is named only if it makes all of it, element by element; so none is named for an error that merely looks like it. The
order of the table is that of how much a pattern says: the first that fits is told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from pullback.battery.compare import compare, number
from pullback.battery.tolerances import Tolerance

_FEWEST = 3
"""Of fewer numbers than this, different from each other, no pattern can be told."""

_FEW = 5
"""With fewer elements on either side of a limit, that they lie on either side of it may be chance."""

_MOST_AXES = 4
"""Axes are permuted in up to this many dimensions."""

_RESOLUTION = 1e5
"""Numbers that agree to this many parts of the largest count as the same."""

_RESOLVED = 2e-6
"""A factor nearer to 1 than this is not told, nor what else would fit: its digits may be those of the differences."""

_DENOMINATORS = 64
"""A factor is told as a fraction if its denominator is at most this."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of a wrong gradient.

    Attributes:
        expected: The right one.
        got: What came, of the same shape.
        tolerance: How far the two may lie apart where they agree.
        argument: What it is the gradient by, itself.
        name: The argument's name.
        others: The right gradients of the other arguments, by name.
        known: Other tensors of the call that backward may have returned in its place, by what they are called.
        parts: Axis -> the gradient before it was summed over an axis along which the argument was broadcast.
    """

    expected: torch.Tensor
    got: torch.Tensor
    tolerance: Tolerance
    argument: torch.Tensor | None = None
    name: str = "the argument"
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)
    known: Mapping[str, torch.Tensor] = field(default_factory=dict)
    parts: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def agrees(self, guess: torch.Tensor) -> bool:
        """Whether what came is `guess`."""
        return guess.shape == self.got.shape and compare(guess, self.got, self.tolerance) is None

    @property
    def telling(self) -> bool:
        """Whether there are enough different numbers for a pattern to be no coincidence."""
        return _distinct(self.expected) >= _FEWEST


def diagnose(facts: Facts) -> str:
    """The pattern of the error in one sentence, without a full stop; empty where there is none that fits."""
    if facts.expected.shape != facts.got.shape or not bool(facts.got.isfinite().all()):
        return _not_finite(facts) if facts.expected.shape == facts.got.shape else ""
    if facts.agrees(facts.expected):
        return ""  # the error is below what a pattern can be told by, as rounding in a lower dtype is
    factor = factor_of(facts.expected, facts.got)
    if abs(factor - 1) < _RESOLVED and facts.agrees(_real_or_complex(factor, facts.expected) * facts.expected):
        return ""
    for pattern in _PATTERNS:
        found = pattern(facts)
        if found:
            return found
    return ""


def factor_of(expected: torch.Tensor, got: torch.Tensor) -> complex:
    """The c for which c times `expected` is nearest to `got`; 0 where `expected` is."""
    square = float((expected.abs() ** 2).sum())
    if square == 0.0:
        return 0.0
    product = (expected.conj() * got).sum() / square
    return complex(product.item())


def told(factor: complex, sizes: Mapping[str, int] | None = None) -> str:
    """A factor as people write it: ``-1``, ``1/3``, ``0.8862``, and which size of the call it is, if it is one."""
    if abs(factor.imag) > 1e-6 * abs(factor):
        return number(torch.tensor(factor))
    real = factor.real
    for label, size in (sizes or {}).items():
        if size > 2 and abs(real * size - 1) < 1e-4:
            return f"1/{size} ({size} is the {label})"
        if size > 2 and abs(real / size - 1) < 1e-4:
            return f"{size} (the {label})"
    near = Fraction(real).limit_denominator(_DENOMINATORS)
    if near not in (0, 1) and abs(float(near) - real) < 1e-5 * abs(real):
        return str(near)
    return _decimal(real)


def _decimal(real: float) -> str:
    """Four digits, and more where those would say 1: then as many as give the distance from 1 two."""
    shown = f"{real:.4g}"
    if float(shown) != 1.0 or real == 1.0:
        return shown
    digits = 1 - math.floor(math.log10(abs(real - 1)))
    return f"{real:.{digits}f}".rstrip("0")


# -- the patterns ------------------------------------------------------------------------------------------------------


def _not_finite(facts: Facts) -> str:
    bad = ~facts.got.isfinite()
    if not bool(facts.expected.isfinite().all()):
        return ""
    where = _place(bad, facts)
    return f"it is {'NaN' if bool(facts.got.isnan().any()) else 'infinite'} {where or 'in some elements'}"


def _zero(facts: Facts) -> str:
    return "it is zero everywhere, and should not be" if not bool((facts.got != 0).any()) else ""


def _factor(facts: Facts) -> str:
    if not facts.telling:
        return ""
    factor = factor_of(facts.expected, facts.got)
    if not facts.agrees(_real_or_complex(factor, facts.expected) * facts.expected):
        return ""
    if abs(factor + 1) < 1e-6:
        return "its sign is wrong everywhere, and nothing else"
    return f"it is {told(factor, _sizes(facts))} times the right one everywhere"


def _conjugate(facts: Facts) -> str:
    if not facts.expected.is_complex() or not facts.telling:
        return ""
    conjugate = facts.expected.conj().resolve_conj()
    return "it is the complex conjugate of the right one" if facts.agrees(conjugate) else ""


def _transposed(facts: Facts) -> str:
    expected = facts.expected
    if expected.dim() < 2 or not facts.telling:
        return ""
    if facts.agrees(expected.mT):
        return "it is the transpose of the right one"
    if facts.agrees(expected.mT.reshape(expected.shape)):
        return "its numbers are those of the right one's transpose, in the memory of the right shape"
    for axes in itertools.permutations(range(min(expected.dim(), _MOST_AXES))):
        if expected.dim() <= _MOST_AXES and axes != tuple(range(expected.dim())):
            if facts.agrees(expected.permute(axes)):
                return f"it is the right one with its axes in the order {axes}"
    return ""


def _moved(facts: Facts) -> str:
    if not facts.telling:
        return ""
    for axis, size in enumerate(facts.expected.shape):
        if size > 1 and facts.agrees(facts.expected.flip(axis)):
            return f"it is the right one back to front along axis {axis}"
        for shift in (step for near in (1, 2) for step in (near, -near) if near < size):
            if facts.agrees(facts.expected.roll(shift, axis)):
                return f"it is the right one shifted by {shift} along axis {axis}, the end coming in at the other side"
            if size > 2 * abs(shift) and _is_shifted(facts, axis, shift):
                return f"it is the right one shifted by {shift} along axis {axis}"
    return ""


def _is_shifted(facts: Facts, axis: int, shift: int) -> bool:
    """Whether it is shifted, apart from what came in at the end, which may be anything but the right numbers."""
    size = facts.expected.shape[axis] - abs(shift)
    start, end = (0, shift) if shift > 0 else (-shift, 0)
    moved, came = facts.expected.narrow(axis, start, size), facts.got.narrow(axis, end, size)
    return _distinct(moved) >= _FEWEST and compare(moved, came, facts.tolerance) is None


def _of_another(facts: Facts) -> str:
    for name, other in facts.others.items():
        if _distinct(other) >= _FEWEST and facts.agrees(other):
            return f"it is the gradient of {name}"
    return ""


def _known(facts: Facts) -> str:
    for name, tensor in facts.known.items():
        if _distinct(tensor) >= _FEWEST and facts.agrees(tensor):
            return f"it is {name}"
    return ""


def _unsummed(facts: Facts) -> str:
    for axis, part in facts.parts.items():
        if not facts.telling:
            return ""
        for index in (0, -1):
            if facts.agrees(part.select(axis, index).reshape(facts.expected.shape)):
                which = "first" if index == 0 else "last"
                return (
                    f"a sum is missing: of the {part.shape[axis]} parts along axis {axis} of the output, over which "
                    f"{facts.name} is broadcast, it is the {which}"
                )
    return ""


def _offset(facts: Facts) -> str:
    if not facts.telling or facts.expected.is_complex():
        return ""
    offset = (facts.got - facts.expected).mean()
    return f"it is off by {number(offset)} everywhere" if facts.agrees(facts.expected + offset) else ""


def _by_slices(facts: Facts) -> str:
    """A factor of its own for each row, column or other slice: what normalises them is left out."""
    for axis, size in enumerate(facts.expected.shape):
        rest = [other for other in range(facts.expected.dim()) if other != axis]
        if size < 2 or not rest or facts.expected.numel() // size < _FEWEST or facts.expected.is_complex():
            continue
        square = (facts.expected**2).sum(rest, keepdim=True)
        factors = (facts.expected * facts.got).sum(rest, keepdim=True) / torch.where(square == 0, 1.0, square)
        least = min(_distinct(part) for part in facts.expected.unbind(axis))
        if least >= _FEWEST and facts.agrees(factors * facts.expected):
            shown = number(factors.reshape(-1)[:3])
            return f"each slice along axis {axis} is multiplied by a factor of its own, such as {shown}"
    return ""


def _in_part(facts: Facts) -> str:
    """Wrong in one part only: which, and what is wrong there."""
    wrong = _wrong(facts)
    if bool(wrong.all()) or not bool(wrong.any()):
        return ""
    where = _place(wrong, facts)
    if not where:
        return _zero_in_part(facts, wrong)
    return f"{_what(facts, wrong)} {where}, and right elsewhere"


def _what(facts: Facts, wrong: torch.Tensor) -> str:
    expected, came = facts.expected[wrong], facts.got[wrong]
    if not bool((came != 0).any()):
        return "it is zero"
    if _distinct(expected) >= _FEWEST:
        factor = factor_of(expected, came)
        times = compare(_real_or_complex(factor, expected) * expected, came, facts.tolerance) is None
        if times and abs(factor - 1) >= _RESOLVED:
            return f"it is {told(factor)} times the right one"
    if not bool((expected != 0).any()):
        return "it is not zero"
    return "it is wrong"


def _zero_in_part(facts: Facts, wrong: torch.Tensor) -> str:
    if bool((facts.got[wrong] != 0).any()):
        return ""
    return f"it is zero in {int(wrong.sum())} of {wrong.numel()} elements where it should not be, and right elsewhere"


def _reordered(facts: Facts) -> str:
    if facts.expected.is_complex() or _distinct(facts.expected) <= _FEWEST:
        return ""
    ordered = facts.expected.flatten().sort().values
    if compare(ordered, facts.got.flatten().sort().values, facts.tolerance) is None:
        return "it has the right numbers in another order"
    return ""


_PATTERNS: tuple[Callable[[Facts], str], ...] = (
    _zero,
    _conjugate,
    _factor,
    _transposed,
    _of_another,
    _known,
    _unsummed,
    _moved,
    _in_part,
    _offset,
    _by_slices,
    _reordered,
)
"""Every pattern, those that say most first."""


# -- where -------------------------------------------------------------------------------------------------------------


def _place(wrong: torch.Tensor, facts: Facts) -> str:
    """The part that is wrong, and no other: an element, a slice, every second one, a sign of the argument."""
    if int(wrong.sum()) == 1 and wrong.numel() > 1:
        (place,) = wrong.nonzero().tolist()
        return f"in one element, at {place}"
    for axis, indices in _slices(wrong):
        size = wrong.shape[axis]
        noun = {(2, 0): "row", (2, 1): "column"}.get((wrong.dim(), axis), "slice")
        along = f" along axis {axis}" if noun == "slice" else ""
        if len(indices) == 1 and size > 1:
            last = " (the last)" if indices[0] == size - 1 else ""
            return f"in {noun} {indices[0]}{last}{along} only"
        if size > 3 and indices in (list(range(0, size, 2)), list(range(1, size, 2))):
            return f"in every second {noun}{along} only, from {indices[0]} on"
    return _by_argument(wrong, facts)


def _slices(wrong: torch.Tensor) -> Iterator[tuple[int, list[int]]]:
    """Each axis along which whole slices are wrong and the others are right, and which they are."""
    for axis in range(wrong.dim()):
        rest = [other for other in range(wrong.dim()) if other != axis]
        some, every = (wrong.any(rest[0]), wrong.all(rest[0])) if len(rest) == 1 else (None, None)
        if len(rest) != 1:
            lines = wrong.movedim(axis, 0).reshape(wrong.shape[axis], -1)
            some, every = lines.any(1), lines.all(1)
        if some is not None and every is not None and bool((some == every).all()):
            yield axis, [int(index) for index in some.nonzero().reshape(-1)]


def _by_argument(wrong: torch.Tensor, facts: Facts) -> str:
    """A property of the argument's own elements that tells the wrong from the right."""
    x = facts.argument
    if x is None or x.shape != wrong.shape or x.is_complex():
        return ""
    x = x.detach()
    if x.numel() < 2 * _FEWEST:
        return ""
    for label, there in (("negative", x < 0), ("positive", x > 0), ("zero", x == 0), ("not zero", x != 0)):
        if bool((there == wrong).all()) and bool(there.any()) and not bool(there.all()):
            return f"where {facts.name} is {label}"
    if min(int(wrong.sum()), int((~wrong).sum())) < _FEW:
        return ""
    for values, label in ((x, ""), (x.abs(), "the size of ")):
        here, elsewhere = values[wrong], values[~wrong]
        if bool(here.min() > elsewhere.max()):
            return f"where {label}{facts.name} is above {number(elsewhere.max())}"
        if bool(here.max() < elsewhere.min()):
            return f"where {label}{facts.name} is below {number(elsewhere.min())}"
    return ""


def _wrong(facts: Facts) -> torch.Tensor:
    """Which elements differ beyond the tolerance."""
    error = (facts.expected - facts.got).abs()
    largest = facts.expected.abs().max() if facts.expected.numel() else 0.0
    allowed = facts.tolerance.rtol * facts.expected.abs() + facts.tolerance.atol * largest
    return ~(error <= allowed)


def _sizes(facts: Facts) -> dict[str, int]:
    """The sizes that a factor may be: those of axes, and the number of elements."""
    found = {f"size of axis {axis}": size for axis, size in enumerate(facts.expected.shape)}
    for name, tensor in facts.known.items():
        found.update({f"size of axis {axis} of {name}": size for axis, size in enumerate(tensor.shape)})
    return {"number of elements": facts.expected.numel(), **found}


def _real_or_complex(factor: complex, like: torch.Tensor) -> complex:
    return factor if like.is_complex() else factor.real


def _distinct(tensor: torch.Tensor) -> int:
    """How many different numbers, zeros apart, a tensor has."""
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    parts = parts.detach().to(torch.float64)
    if not parts.numel() or not bool(parts.isfinite().all()):
        return 0
    rough = (parts / parts.abs().max() * _RESOLUTION).round()  # finite differences make equal numbers unequal
    return int(rough[rough != 0].unique().numel())
