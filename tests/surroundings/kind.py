"""What a kind of Function to be put into surroundings is, and what is demanded of it there.

A kind makes a function of leaves, which applies a class that no test has used before. Surroundings are functions of
such functions; what comes out is compared with the same surroundings of the formula, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import outputs_of, score

Called = Callable[..., Any]
"""A function of leaves: a tensor comes out, or a tuple of them."""


@dataclass(frozen=True)
class Kind:
    """One kind of Function.

    Attributes:
        name: What it shows.
        make: Makes the function that applies a new class, on this base.
        formula: The same in plain PyTorch.
        leaves: How many leaves it takes.
        on_torch: Whether the same source is right on torch's own Function, to first order.
        once: Whether its node can be run once only, so that no second derivative may lead through it again.
    """

    name: str
    make: Callable[[Any], Called]
    formula: Called
    leaves: int = 1
    on_torch: bool = True
    once: bool = False

    def function(self, base: Any = pullback.Function) -> Called:
        """Make the function anew."""
        return self.make(base)

    def draw(self, seed: int = 0) -> list[Tensor]:
        """Draw leaves between 0.3 and 1.3, where no kind has a kink."""
        generator = torch.Generator().manual_seed(seed)
        shapes = [(4,)] * self.leaves
        return [
            torch.rand(shape, dtype=torch.float64, generator=generator).add_(0.3).requires_grad_() for shape in shapes
        ]


KINDS: dict[str, Kind] = {}


def kind(formula: Called, leaves: int = 1, **attributes: bool) -> Callable[[Callable[[Any], Called]], Any]:
    """Put what makes a function into `KINDS` under its own name."""

    def decorate(make: Callable[[Any], Called]) -> Any:
        KINDS[make.__name__] = Kind(make.__name__, make, formula, leaves, **attributes)
        return make

    return decorate


# -- What is compared --------------------------------------------------------------------------------------------------

Around = Callable[[Called], Called]
"""Surroundings: of a function, the function within them."""


def derivatives(
    function: Called, leaves: Sequence[Tensor], order: int = 2, *, once: bool = False
) -> list[list[Tensor]]:
    """Return the values, the gradients of a score of them, and the gradients of a score of those, up to `order`.

    With `once` the first score is linear, so that the way to the second derivative leads through no node again.
    """
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(7)
    outputs = outputs_of(function(*leaves))
    found = [[output.detach().clone() for output in outputs]]
    total = outputs[0].sum() if once else score(outputs, generator)
    for level in range(order):
        create = level < order - 1
        gradients = torch.autograd.grad(total, leaves, create_graph=create, allow_unused=True, materialize_grads=True)
        found.append([gradient.detach() for gradient in gradients])
        if create:
            total = score(gradients, generator)
    return found


def assert_same(got: Sequence[Sequence[Tensor]], expected: Sequence[Sequence[Tensor]]) -> None:
    """Require the same numbers up to float64's rounding, order by order."""
    for order, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            torch.testing.assert_close(
                one, other, rtol=1e-10, atol=1e-12, msg=lambda text, at=(order, place): f"order, place {at}: {text}"
            )


def assert_right(kind: Kind, around: Around, order: int = 2, *, times: int = 2) -> None:
    """Require that a kind gives in these surroundings what its formula gives outside of any.

    The first call of a class, which is watched, and the calls after it run by different code: so several are made.
    """
    function = around(kind.function())
    for seed in range(times):
        expected = derivatives(kind.formula, kind.draw(seed), order, once=kind.once)
        assert_same(derivatives(function, kind.draw(seed), order, once=kind.once), expected)
