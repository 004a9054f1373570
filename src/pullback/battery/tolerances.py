"""How far two numbers may lie apart: the one place with tolerances, each with its reason.

What is computed below float64 is judged against float64 by a budget of roundings (`PRECISIONS`), which
`pullback.battery.budgets` works out for each element; so are two results of one program below float64, by
`pullback.battery.own`. In float64 these, and finite differences, are judged by fixed tolerances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch


@dataclass(frozen=True)
class Tolerance:
    """Two values agree if they differ by at most `rtol` of the value plus `atol` of the largest value.

    Attributes:
        rtol: Relative to the element.
        atol: Relative to the largest element, for elements that cancel to nearly nothing.
        reason: Why no tighter and no wider.
    """

    rtol: float
    atol: float
    reason: str


@dataclass(frozen=True)
class Precision:
    """What a kernel of normal rounding does to numbers of a dtype.

    Attributes:
        unit: One rounding to the nearest number changes a value by at most this share of it.
        sums: The same of the dtype in which long sums are accumulated.
        smallest: Numbers below this size are rounded by up to this much, or flushed to 0.
        reason: Why.
    """

    unit: float
    sums: float
    smallest: float
    reason: str


PRECISIONS: Mapping[torch.dtype, Precision] = MappingProxyType(
    {
        torch.float64: Precision(2**-53, 2**-53, 2**-1022, "53 bits; sums are made in float64 too"),
        torch.float32: Precision(2**-24, 2**-24, 2**-126, "24 bits; no kernel accumulates in more, many flush to 0"),
        torch.float16: Precision(2**-11, 2**-24, 2**-24, "11 bits, sums in float32; below 6e-5 the bits get fewer"),
        torch.bfloat16: Precision(2**-8, 2**-24, 2**-126, "8 bits, sums in float32: in 8 bits they stop at 256 terms"),
    }
)
"""The roundings of each dtype. The budget of an element v of a result is made of

* one rounding of v itself, of the size of v, and one of what was kept on the way, of the size that the elements of
  the result have on average;
* its conditioning: by how much v changes where the arguments, the cotangents and every step of the reference are
  rounded at random to the unit, once each. A badly conditioned element changes much, whoever computes it;
* for the accumulator of a sum of n terms sqrt(n) such roundings to `sums`, since their errors are as often up as down.
"""

ROUNDINGS = 6.0
"""No element is off by more than this many budgets: kernels round a few numbers on the way, by at most a unit each,
where the budget is an average. Right kernels with one, two or eight roundings on the way reach 1.5."""

AVERAGE_ROUNDINGS = 1.5
"""The root mean square of all errors against that of the budgets: roundings go up and down, so that large tensors show
less than a budget on average. Right kernels reach 0.5."""

COMMON_ROUNDINGS = 3.0
"""A common factor of all elements is off by at most this many units: a scale and a mean that are rounded once for a
whole tensor give two. In bfloat16 that is 1.2 percent, so a factor of 1.01 is below the budget there."""

SHAKES = 8
"""How often a reference is rounded at random to see its conditioning: the estimate is then good to a factor of 2."""

GRADIENTS: Mapping[torch.dtype, Tolerance] = MappingProxyType(
    {
        torch.float64: Tolerance(
            1e-7, 1e-9, "two right formulas differ by rounding; a float32 detour is PB214's to find"
        ),
        torch.float32: Tolerance(1e-3, 1e-4, "sums of thousands of terms in another order lose three to four digits"),
        torch.float16: Tolerance(5e-2, 2e-2, "11 bits: sums and products of a few terms keep about two digits"),
        torch.bfloat16: Tolerance(1e-1, 8e-2, "8 bits: PyTorch's own layer_norm gradients are off by 5 percent"),
    }
)
"""Gradients of one program in two settings, by the dtype in which they were computed; float64 against a truth, too.
Below float64 these are for gross faults alone: what one rounding costs isn't known there."""

VALUES: Mapping[torch.dtype, Tolerance] = MappingProxyType(
    {
        torch.float64: Tolerance(1e-7, 1e-9, "as for gradients"),
        torch.float32: Tolerance(1e-3, 1e-4, "as for gradients"),
        torch.float16: Tolerance(2e-2, 1e-2, "one rounding fewer than a gradient has"),
        torch.bfloat16: Tolerance(8e-2, 4e-2, "one rounding fewer than a gradient has"),
    }
)
"""The same for outputs."""

ROUNDED = Tolerance(
    4e-9, 4e-9, "rounding to float32 on the way costs about 3e-8; asked only where backward is seen to compute in it"
)
"""Gradients in float64 against sharp finite differences, or the oracle's, where a lower dtype was seen in backward."""

EXACT = Tolerance(0.0, 0.0, "judged elsewhere, by a budget for each element: this one only tells where the worst is")
"""Nothing is allowed: for the place and the size of a difference that is known to be a fault."""

SAME = Tolerance(1e-9, 1e-11, "one program on the same values in float64: only the order of its sums may differ")
"""Gradients of the same call in another setting: another subset, layout, or part of a linear combination."""

LINEAR = Tolerance(
    1e-5, 1e-6, "what isn't linear differs by its own size; rounding to float32 on the way is PB214's to find"
)
"""What comes back for a combination of cotangents against the combination of what comes back for each."""

LOW_VALUES = 16.0
"""By how many times what random roundings do to the worst element a value may differ in a lower dtype from float64's
where no reference is known: kernels round more often than once, and what forward rounds on the way isn't seen."""

LOSING = 32.0
"""By how many times what rounded arguments do to a gradient, and one rounding, it may be off in a lower dtype: five
bits may be lost on the way before it is said to cancel for nothing."""

AS_FORWARD = 8.0
"""By how many times the relative error of forward's own values a gradient may be off in a lower dtype: a derivative of
the same steps loses what they lose, and another few roundings."""

NOTHING = 1e-9
"""Derivatives at a variant that are off by less are roundings of what cancels to 0, as in a softmax over one, or the
tail of what saturates: no value of forward shows it."""

ROOM_FOR_PRODUCTS = 64.0
"""By how much results must lie below the largest number of a dtype for it to be judged there: sums and products on the
way are larger than what comes out of them."""

FAR = Tolerance(1e-3, 1e-4, "solvers stop at a residual, whatever the size of the cotangent; a range is lost whole")
"""What comes back for a very large or small cotangent against that many times what comes back for a usual one."""

DIFFERENCES = Tolerance(1e-5, 1e-7, "a finite difference in float64, beside the error bar that comes with it")
"""Gradients against finite differences."""

SECOND = Tolerance(1e-5, 1e-6, "finite differences of a gradient, which has roundings of its own")
"""Second derivatives against finite differences of the first."""

CONTINUOUS = Tolerance(1e-3, 1e-3, "a gradient that changes by more than this over the smallest step has jumped")
"""The gradient of a surrogate beside a point against that at the point itself."""

PATTERNS: Mapping[torch.dtype, Tolerance] = MappingProxyType(
    {
        torch.float64: GRADIENTS[torch.float64],
        torch.float32: GRADIENTS[torch.float32],
        torch.float16: Tolerance(5e-3, 5e-3, "ten roundings: a pattern that is told must be told apart from rounding"),
        torch.bfloat16: Tolerance(
            2e-2, 2e-2, "five roundings: a pattern that is told must be told apart from rounding"
        ),
    }
)
"""How near a wrong gradient must be to what a pattern of errors makes of the right one, for the pattern to be told."""

UNTOUCHED = Tolerance(5e-3, 5e-3, "what is kept for backward may be rounded to bfloat16 once; nothing else is cast")
"""Gradients after a forward under autocast that gave float32's own numbers, to the bit."""

SHOWN: Mapping[torch.dtype, Tolerance] = MappingProxyType(
    {
        torch.float64: Tolerance(1e-5, 1e-8, "a finite difference of one fixed step, as somebody writes it by hand"),
        torch.float32: Tolerance(1e-3, 1e-5, "the same digits as two sums in another order"),
        torch.float16: Tolerance(1e-2, 1e-2, "a few roundings: what is found lies beyond them"),
        torch.bfloat16: Tolerance(3e-2, 3e-2, "a few roundings: what is found lies beyond them"),
    }
)
"""Within these the lines that show a fault take two numbers for the same, once the fault is mended. Absolute, as
`torch.testing.assert_close` has it."""

SENSITIVITY = 32.0
"""Two results at a badly conditioned point may differ by this many times the change that one rounding of the argument
makes there: each is the exact result for an argument that is off by a few roundings."""

SPECIAL = Tolerance(1e-3, 1e-6, "faults at special points are gross, and a kernel may compute in float32 unseen")
"""Gradients at zeros and at very large values against finite differences there."""

CONFIRMED = 1e-7
"""The share of its terms by which a sum of gradients may differ from a difference that confirms them all: a wrong
element shows unless its error is below that share of all of them."""

CERTAIN = 1e-8
"""The share of a gradient's largest element by which a sharp difference along all of its elements may be off and still
confirm each one: `DIFFERENCES` would find an element that is off by ten times as much."""

COMMON_FACTOR = 1e-7
"""A gradient that is off by one factor along all lines, each known that sharply, has another constant than forward: two
right formulas differ by rounding, and not all elements by the same share."""

STEPS = (2e-4, 2e-5, 2e-6, 1e-2)
"""Steps of finite differences, relative to an argument's size, in the order tried: in float64 the first is exact to
about 1e-12 for smooth functions, smaller ones stay clear of kinks, the largest is for coarsely rounding forwards."""

ERROR_BAR = 10.0
"""An error bar is the difference between two steps; the true error is often a few times larger."""

KINK = 1e-3
"""One-sided derivatives that differ by more than this share are two derivatives: no smooth function curves that much
within the step."""

EVERY_ELEMENT_UP_TO = 64
"""Arguments up to this size are differentiated element by element; larger ones along dense random directions."""

SECOND_EVERY_ELEMENT_UP_TO = 16
"""The same for second derivatives, where each difference costs four calls of backward."""

DIRECTIONS = 6
"""Dense random directions for each larger argument."""

SMALLEST_SHARE = 1e-6
"""An error below this share of the gradient's norm is not seen in a dense projection."""

LOWER = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes below float64 that are tried, and whose rounding a float64 gradient must not show."""


def has_room(largest: float, dtype: torch.dtype) -> bool:
    """Whether a dtype holds results of this size, and sums and products on the way to them; not for NaN."""
    return largest * ROOM_FOR_PRODUCTS < torch.finfo(real_dtype(dtype)).max


def for_gradients(dtype: torch.dtype) -> Tolerance:
    """The tolerance for gradients computed in `dtype`."""
    return GRADIENTS[real_dtype(dtype)]


def for_patterns(dtypes: Iterable[torch.dtype]) -> Tolerance:
    """The tolerance for patterns in a gradient of a call in these dtypes."""
    return PATTERNS[precision_of(dtypes)[0]]


def shown_within(dtypes: Iterable[torch.dtype]) -> Tolerance:
    """The tolerance of the lines that show a fault, where the arguments are of these dtypes."""
    return SHOWN[precision_of(dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex)[0]]


def for_values(dtype: torch.dtype) -> Tolerance:
    """The tolerance for outputs computed in `dtype`."""
    return VALUES[real_dtype(dtype)]


def precision_of(dtypes: Iterable[torch.dtype]) -> tuple[torch.dtype, Precision]:
    """The coarsest of some floating dtypes, and its precision: a call with several rounds to each of them."""
    real = [real_dtype(dtype) for dtype in dtypes]
    coarsest = max(real, key=lambda dtype: PRECISIONS[dtype].unit, default=torch.float64)
    return coarsest, PRECISIONS[coarsest]


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real part; float64 for dtypes that the tables don't have."""
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}
    found = real.get(dtype, dtype)
    return found if found in GRADIENTS else torch.float64
