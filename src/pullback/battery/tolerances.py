"""How far two numbers may lie apart: the one place with tolerances, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
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
"""Gradients against a float64 truth, by the dtype in which they were computed."""

VALUES: Mapping[torch.dtype, Tolerance] = MappingProxyType(
    {
        torch.float64: Tolerance(1e-7, 1e-9, "as for gradients"),
        torch.float32: Tolerance(1e-3, 1e-4, "as for gradients"),
        torch.float16: Tolerance(2e-2, 1e-2, "one rounding fewer than a gradient has"),
        torch.bfloat16: Tolerance(8e-2, 4e-2, "one rounding fewer than a gradient has"),
    }
)
"""Outputs against the reference in float64, by the dtype in which they were computed."""

ROUNDED = Tolerance(
    4e-9, 4e-9, "rounding to float32 on the way costs about 3e-8; asked only where backward is seen to compute in it"
)
"""Gradients in float64 against sharp finite differences, or the oracle's, where a lower dtype was seen in backward."""

SAME = Tolerance(1e-9, 1e-11, "one program on the same values in float64: only the order of its sums may differ")
"""Gradients of the same call in another setting: another subset, layout, or part of a linear combination."""

LINEAR = Tolerance(
    1e-5, 1e-6, "what isn't linear differs by its own size; rounding to float32 on the way is PB214's to find"
)
"""What comes back for a combination of cotangents against the combination of what comes back for each."""

DIFFERENCES = Tolerance(1e-5, 1e-7, "a finite difference in float64, beside the error bar that comes with it")
"""Gradients against finite differences."""

SECOND = Tolerance(1e-5, 1e-6, "finite differences of a gradient, which has roundings of its own")
"""Second derivatives against finite differences of the first."""

CONTINUOUS = Tolerance(1e-3, 1e-3, "a gradient that changes by more than this over the smallest step has jumped")
"""The gradient of a surrogate beside a point against that at the point itself."""

SENSITIVITY = 32.0
"""Two results at a badly conditioned point may differ by this many times the change that one rounding of the argument
makes there: each is the exact result for an argument that is off by a few roundings."""

SPECIAL = Tolerance(1e-3, 1e-6, "faults at special points are gross, and a kernel may compute in float32 unseen")
"""Gradients at zeros and at very large values against finite differences there."""

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


def for_gradients(dtype: torch.dtype) -> Tolerance:
    """The tolerance for gradients computed in `dtype`."""
    return GRADIENTS[real_dtype(dtype)]


def for_values(dtype: torch.dtype) -> Tolerance:
    """The tolerance for outputs computed in `dtype`."""
    return VALUES[real_dtype(dtype)]


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the real part; float64 for dtypes that the tables don't have."""
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}
    found = real.get(dtype, dtype)
    return found if found in GRADIENTS else torch.float64
