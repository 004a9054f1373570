"""Derivatives of every order, of a Function and of its formula, taken in the same way and compared in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Formula = Callable[..., Any]


@dataclass
class Draw:
    """Random tensors from one seed, which the name of a failing test shows.

    Attributes:
        seed: The seed.
    """

    seed: int

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def constant(self, *shape: int, low: float = 0.3, high: float = 1.3, dtype: torch.dtype = torch.float64) -> Tensor:
        """Draw a tensor that requires no grad, by default away from the kink at 0."""
        if dtype.is_complex:
            real = torch.float32 if dtype is torch.complex64 else torch.float64
            parts = (self.constant(*shape, low=low, high=high, dtype=real) for _ in range(2))
            return torch.complex(*parts)
        return torch.rand(shape, generator=self._generator, dtype=torch.float64).mul(high - low).add(low).to(dtype)

    def leaf(self, *shape: int, low: float = 0.3, high: float = 1.3, dtype: torch.dtype = torch.float64) -> Tensor:
        """Draw a leaf that requires grad."""
        return self.constant(*shape, low=low, high=high, dtype=dtype).requires_grad_()

    def inner(self, *shape: int) -> Tensor:
        """Draw a tensor inside a graph: what it was computed from is kept, so that a leaf is at the graph's end."""
        return self.leaf(*shape) * 1.5 - 0.1


def outputs_of(result: Any) -> list[Tensor]:
    """Return the outputs that can be differentiated, one by one."""
    outputs = result if isinstance(result, tuple) else (result,)
    return [output for output in outputs if isinstance(output, Tensor) and output.requires_grad]


def score(tensors: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Return a number that depends on every element, in a way that isn't linear."""
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tensors:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        weights = torch.rand(real.shape, generator=generator, dtype=torch.float64) + 0.5
        total = total + (real * weights).sum() + (real.square() * weights).sum() / 2
    return total


def tower(function: Formula, leaves: Sequence[Tensor], order: int) -> list[list[Tensor]]:
    """Return gradients, gradients of a penalty on them, and so on, up to `order`."""
    generator = torch.Generator().manual_seed(7)
    penalised = score(outputs_of(function(*leaves)), generator)
    found = []
    for _ in range(order):
        gradients = torch.autograd.grad(penalised, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        found.append([gradient.detach() for gradient in gradients])
        penalised = score(gradients, generator)
        if not penalised.requires_grad:
            penalised = penalised + sum(leaf.sum() * 0 for leaf in leaves).real
    return found


def assert_exact(function: Formula, formula: Formula, leaves: Sequence[Tensor], order: int = 3) -> None:
    """Require that all derivatives up to `order` are those of the plain formula."""
    expected = tower(formula, leaves, order)
    got = tower(function, leaves, order)
    for level, (ours, theirs) in enumerate(zip(got, expected, strict=True), start=1):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            torch.testing.assert_close(
                one, other, rtol=1e-9, atol=1e-11, msg=lambda text, k=level, p=place: f"order {k}, leaf {p}: {text}"
            )


def penalty(output: Tensor, *inputs: Tensor) -> Tensor:
    """Return a gradient penalty: the sum of squares of the gradients of the sum of `output`."""
    gradients = torch.autograd.grad(output.sum(), inputs, create_graph=True)
    return sum((gradient.square().sum() for gradient in gradients), torch.zeros((), dtype=torch.float64))


def second_derivatives(function: Formula, leaf: Tensor) -> Tensor:
    """Return the gradient of a gradient penalty."""
    return torch.autograd.grad(penalty(function(leaf), leaf), leaf)[0]
