"""The shapers of gradients that are linear; their formulas give a value and a gradient by parts that are detached."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.ops.gradients import reverse_gradient, scale_gradient, straight_through, straight_through_round
from tests.ops.kinds import Arguments, Kind, normal


def straight(value: Tensor, surrogate: Tensor) -> Tensor:
    """The value of one, the gradient of the other."""
    return surrogate + (value - surrogate).detach()


def scaled(input: Tensor, scale: float) -> Tensor:
    """The input, with its gradient times scale."""
    return input * scale + (input - input * scale).detach()


def pair(generator: torch.Generator) -> Arguments:
    """Some numbers, and others that get the gradient."""
    return normal(generator, 3, 4, requires_grad=False), normal(generator, 3, 4)


def nothing() -> Tensor:
    """A batch of no elements."""
    return torch.zeros(0, 4).double().requires_grad_()


KINDS = [
    Kind(
        "straight_through",
        straight_through,
        straight,
        pair,
        beyond=lambda *_: 0,
        surrogate=lambda value, surrogate: surrogate,
        empty=lambda: (nothing().detach(), nothing()),
    ),
    Kind(
        "straight_through_round",
        straight_through_round,
        lambda input: straight(input.round(), input),
        lambda generator: (normal(generator, 3, 4),),
        beyond=lambda *_: 0,
        surrogate=lambda input: input,
        empty=lambda: (nothing(),),
    ),
    Kind(
        "reverse_gradient",
        reverse_gradient,
        lambda input, scale=1.0: scaled(input, -scale),
        lambda generator: (normal(generator, 3, 4),),
        beyond=lambda *_: 0,
        empty=lambda: (nothing(),),
        surrogate=lambda input, scale=1.0: -scale * input,
    ),
    Kind(
        "reverse_gradient, scaled",
        reverse_gradient,
        lambda input, scale: scaled(input, -scale),
        lambda generator: (normal(generator, 3, 4), 0.5),
        beyond=lambda *_: 0,
        surrogate=lambda input, scale: -scale * input,
    ),
    Kind(
        "scale_gradient",
        scale_gradient,
        scaled,
        lambda generator: (normal(generator, 3, 4), 0.1),
        beyond=lambda *_: 0,
        surrogate=lambda input, scale: scale * input,
        empty=lambda: (nothing(), 0.1),
    ),
]
