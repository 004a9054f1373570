"""F3: an error about higher orders leads to the user's own line; no frame of pullback is in its traceback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import pullback
from pullback.errors import HigherOrderError, PullbackError
from tests.tracebacks import files, is_pullbacks
from tests.transforms.derivatives import Draw


class CutOff(pullback.Function):
    """PB206: a saved intermediate, and no replay."""

    replayable = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x * 2)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class Opaque(pullback.Function):
    """PB207: NumPy in both methods."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.square(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.from_numpy(2 * ctx.saved_tensors[0].detach().numpy() * g.detach().numpy())


class Once(CutOff):
    """PB207: declared to be differentiable once."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class Detached(Opaque):
    """PB207: a reference that autograd can't follow."""

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return x.detach() ** 2


CASES = {"cut off": CutOff, "opaque": Opaque, "once": Once, "reference": Detached}


@pytest.mark.parametrize("how", ["grad", "backward"])
@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_no_frame_of_pullback(function: Any, how: str, draw: Draw) -> None:
    """F3: raised by a guard in the graph, the error still begins at the line that asked for the derivative."""
    x = draw.leaf(3)
    (gradient,) = torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)
    differentiate = {"grad": lambda: torch.autograd.grad(gradient.sum(), x), "backward": gradient.sum().backward}
    with pytest.raises(HigherOrderError) as caught:
        differentiate[how]()
    assert files(caught.value)[0] == __file__
    assert not any(map(is_pullbacks, files(caught.value)))


def test_an_error_that_is_raised_again(draw: Draw) -> None:
    """F3: with the graph kept, each time gives an error of its own, as clean as the first."""
    x = draw.leaf(3)
    (gradient,) = torch.autograd.grad(Opaque.apply(x).sum(), x, create_graph=True)
    caught: list[PullbackError] = []
    for _ in range(2):
        with pytest.raises(HigherOrderError) as again:
            torch.autograd.grad(gradient.sum(), x, retain_graph=True)
        caught.append(again.value)
    assert caught[0] is not caught[1]
    assert str(caught[0]) == str(caught[1])
    assert not any(map(is_pullbacks, files(caught[1])))
