"""Inner products that are to agree: ⟨ū, J t⟩ and ⟨Jᵀū, t⟩ of a linear map and its transpose."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pullback.call.dependence import is_smooth

_ROUGHLY = 1 / 16  # a rule may solve for what it returns, to a tolerance


def inner(ones: Iterable[Tensor | None], others: Iterable[Tensor | None]) -> Tensor:
    """The inner product that gradients are taken by, and beside it the size of what was added up."""
    pairs = [(a, b) for a, b in zip(ones, others, strict=True) if a is not None and b is not None and is_smooth(b)]
    products = [(a.conj() * b).real.double() for a, b in pairs]
    zero = torch.zeros((), dtype=torch.float64, device=products[0].device if products else None)
    return torch.stack([sum((p.sum() for p in products), zero), sum((p.abs().sum() for p in products), zero)])


def nearly(one: Tensor, other: Tensor) -> bool:
    """Whether two results of `inner`, or batches of them, agree; what isn't finite says nothing."""
    near = (one - other)[..., 0].abs() <= _ROUGHLY * torch.maximum(one, other)[..., 1]
    return bool((near | ~torch.isfinite(one + other).all(-1)).all())
