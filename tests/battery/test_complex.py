"""The conjugate convention: a gradient is that of a real loss by real and imaginary parts, x.grad = dL/da + i dL/db."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.battery.check import check


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Complex normal numbers that require grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.complex128).requires_grad_()


def made(forward: Callable[..., Tensor], backward: Callable[..., Any], reference: bool) -> type[pullback.Function]:
    """A Function of z with a backward of its own, with a reference or without."""

    class Made(pullback.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            ctx.save_for_backward(z)
            return forward(z)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return backward(g, *ctx.saved_tensors)

    if reference:
        return type("Made", (Made,), {"reference": staticmethod(lambda z: forward(z))})
    return Made


# forward, the right backward, and wrong ones. f holomorphic: gz = g conj(f'(z)). |z|²: dL = g (2 a da + 2 b db), so
# gz = 2 g z. conj(z): gz = conj(g). Real part: gz = g. z |z|: with r = |z|, gz = g r + Re(g conj(z)) z / r.
CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., Any], dict[str, Callable[..., Any]]]] = {
    "holomorphic": (
        lambda z: z**3,
        lambda g, z: g * (3 * z**2).conj(),
        {"without the conjugate": lambda g, z: g * 3 * z**2, "all conjugated": lambda g, z: g.conj() * 3 * z**2},
    ),
    "squared size": (
        lambda z: (z * z.conj()).real,
        lambda g, z: 2 * g * z,
        {"conjugated": lambda g, z: 2 * g * z.conj(), "one factor alone": lambda g, z: g * z},
    ),
    "conjugate": (
        lambda z: z.conj() * 2,
        lambda g, z: 2 * g.conj(),
        {"as if holomorphic": lambda g, z: 2 * g},
    ),
    "real part": (
        lambda z: z.real * 2,
        lambda g, z: 2 * g.to(z.dtype),
        {"imaginary": lambda g, z: 2j * g},
    ),
    "not holomorphic": (
        lambda z: z * z.abs(),
        lambda g, z: g * z.abs() + (g * z.conj()).real * z / z.abs(),
        {"as if the size were constant": lambda g, z: g * z.abs(), "g conjugated": lambda g, z: g.conj() * z.abs()
         + (g.conj() * z.conj()).real * z / z.abs()},
    ),
}  # fmt: skip
WRONG = [(case, name) for case, (_, _, wrong) in CASES.items() for name in wrong]


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_conjugate_convention_passes(case: str, reference: bool) -> None:
    """Holomorphic or not, from complex to complex and to real numbers."""
    forward, right, _ = CASES[case]
    report = check(made(forward, right, reference), (drawn(5),), (drawn(5, seed=1),), skip=("compiled", "threads"))
    assert [finding for finding in report.findings if finding.severity.value == "error"] == [], str(report)


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(("case", "name"), WRONG)
def test_a_wrong_conjugate_is_found(case: str, name: str, reference: bool) -> None:
    """A factor that isn't conjugated, one that is and shouldn't be, and a term that only complex numbers have."""
    forward, _, wrong = CASES[case]
    report = check(made(forward, wrong[name], reference), (drawn(5),), only=("first_order",))
    assert [finding.rule for finding in report.findings] == ["PB203"]
