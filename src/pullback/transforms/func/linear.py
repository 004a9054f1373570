"""Whether a map is linear, as a vector-Jacobian product has to be: its transpose says nothing otherwise.

NOTE [linear]: three things are looked at. A linear map ū ↦ Jᵀū has the same transpose at every point: at ū, and at its
sizes in the other order with the other signs, which tells what depends on signs or on order. It takes 64 ū to 64 times
what it takes ū to, exactly, as 64 is a power of two; that tells what clips or normalises. And ⟨Jᵀū, t⟩ is ⟨ū, J t⟩;
where it isn't, a part of the map is cut off from the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.call.dependence import is_smooth
from pullback.transforms.func.hooks import vjp

_ROUGHLY = 1 / 16  # a rule may solve for what it returns, to a tolerance
_FAR = 64.0
_NOISE = 4096.0  # roundings: a map may cancel numbers that are a thousand times larger


@dataclass(frozen=True)
class LinearMap:
    """A map that is to be linear, at one point.

    Attributes:
        function: The map.
        point: Where it was taken.
        values: What it gave there.
        along: The cotangents that its transpose was given.
        transposed: What that gave.
    """

    function: Callable[..., tuple[Tensor, ...]]
    point: Sequence[Tensor]
    values: Sequence[Tensor]
    along: Sequence[Tensor]
    transposed: Sequence[Tensor]

    def comparisons(self) -> list[tuple[Tensor, Tensor]]:
        """Pairs of vectors that are nearly the same, if the map is linear (NOTE [linear])."""
        _, pull = vjp(self.function, *map(_elsewhere, self.point))
        pairs = [*zip(self.transposed, pull(tuple(self.along)), strict=True)]
        with torch.no_grad():
            far = self.function(*(_FAR * entry for entry in self.point))
        pairs += [(_FAR * value, other) for value, other in zip(self.values, far, strict=True)]
        vectors = [(_flat(one), _flat(other)) for one, other in pairs]
        return [*vectors, (inner(self.values, self.along), inner(self.point, self.transposed))]


def _elsewhere(tensor: Tensor) -> Tensor:
    """The sizes in the other order, each with the other sign of what is there."""
    return -tensor.sgn() * tensor.flatten().flip(0).abs().view(tensor.shape)


def _flat(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).flatten()


def inner(ones: Iterable[Tensor | None], others: Iterable[Tensor | None]) -> Tensor:
    """The inner product that gradients are taken by, twice: with what rounding may make of it added, and taken away."""
    pairs = [(a, b) for a, b in zip(ones, others, strict=True) if a is not None and b is not None and is_smooth(b)]
    products = [(a.conj() * b).real.double() for a, b in pairs]
    zero = torch.zeros((), dtype=torch.float64, device=products[0].device if products else None)
    total = sum((product.sum() for product in products), zero)
    size = sum((product.abs().sum() for product in products), zero)
    noise = sum((_NOISE * torch.finfo(a.dtype).eps * (a.abs().sum() * b.abs().sum()).double() for a, b in pairs), zero)
    return torch.stack([total, size, noise])


def nearly(one: Tensor, other: Tensor) -> bool:
    """Whether two vectors, or batches of them, agree to some digits; what isn't finite says nothing."""
    if not one.shape[-1]:
        return True
    size = torch.maximum(one.abs(), other.abs())
    near = (one - other).abs() <= _ROUGHLY * size + _ROUGHLY / 2 * size.amax(-1, keepdim=True)
    return bool((near.all(-1) | ~torch.isfinite(one + other).all(-1)).all())


def nearly_inner(one: Tensor, other: Tensor) -> bool:
    """Whether two results of `inner`, or batches of them, agree but for rounding."""
    allowed = _ROUGHLY * torch.maximum(one, other)[..., 1] + torch.maximum(one, other)[..., 2]
    near = (one - other)[..., 0].abs() <= allowed
    return bool((near | ~torch.isfinite(one + other).all(-1)).all())
