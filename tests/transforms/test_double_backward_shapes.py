"""F7: what double_backward returns has the shapes of what it is the gradient of, or is broadcast from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import GradientError
from tests.tracebacks import files, is_pullbacks
from tests.transforms.derivatives import Draw, assert_exact, penalty

Returned = tuple[Tensor | None, Tensor | None, Tensor | None]
Change = Callable[[Tensor, Tensor, Tensor], Returned]


def scale(change: Change) -> Any:
    """Make x * w for one number w, whose double_backward returns what `change` makes of the right gradients."""

    class Scale(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return g * w, (g * x).sum_to_size(w.shape)

        @staticmethod
        def double_backward(ctx: Any, ggx: Tensor, ggw: Tensor | None) -> Returned:
            x, w = ctx.saved_tensors
            (g,) = ctx.grad_outputs
            ggw = torch.zeros_like(w) if ggw is None else ggw
            return change(ggx * w + ggw * x, g * ggw, (g * ggx).sum_to_size(w.shape))

    return Scale


WRONG: dict[str, tuple[Change, str, tuple[int, ...], tuple[int, ...]]] = {
    "grad_output": (lambda for_g, for_x, for_w: (for_g.sum(), for_x, for_w), "grad_output 0", (2, 3), ()),
    "twice as long": (lambda for_g, for_x, for_w: (for_g, torch.cat([for_x] * 2), for_w), "x", (2, 3), (4, 3)),
    "transposed": (lambda for_g, for_x, for_w: (for_g, for_x.t(), for_w), "x", (2, 3), (3, 2)),
    "a row": (lambda for_g, for_x, for_w: (for_g, for_x[0], for_w), "x", (2, 3), (3,)),
    "a number": (lambda for_g, for_x, for_w: (for_g, for_x, for_w.sum()), "w", (1,), ()),
}


@pytest.mark.parametrize("create_graph", [False, True], ids=["second order", "to be differentiated"])
@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_a_gradient_of_another_shape(case: tuple[Any, ...], create_graph: bool, draw: Draw) -> None:
    """F7: PB220 names class and argument or grad_output, and both shapes, in place of the engine's index."""
    change, what, due, came = case
    x, w = draw.leaf(2, 3), draw.leaf(1)
    found = penalty(scale(change).apply(x, w), x, w)
    with pytest.raises(GradientError) as caught:
        torch.autograd.grad(found, (x, w), create_graph=create_graph)
    assert str(caught.value).splitlines() == [
        f"PB220 Scale.double_backward returned a gradient of another shape for {what}.",
        f"  expected: a tensor of shape {due}, as {what} has, or one that can be summed to it",
        f"  got: shape {came}",
        f"  remedy: Return the gradient for {what} in its shape.",
    ]
    assert isinstance(caught.value, RuntimeError)
    assert not any(map(is_pullbacks, files(caught.value)))


def test_broadcast_gradients_are_summed(draw: Draw) -> None:
    """F7: the engine sums what was broadcast, as it does for backward, and so does the third order."""

    def unsummed(for_g: Tensor, for_x: Tensor, for_w: Tensor) -> Returned:
        return for_g, for_x, torch.cat([for_w.expand(1, 1), torch.zeros(3, 1, dtype=for_w.dtype)])

    assert_exact(scale(unsummed).apply, lambda x, w: x * w, [draw.leaf(2, 3), draw.leaf(1)])


def test_a_gradient_that_nobody_asked_for(draw: Draw) -> None:
    """F7: what is returned for an argument without gradient goes nowhere, whatever its shape."""
    x, w = draw.leaf(2, 3), draw.leaf(1).detach()
    function = scale(lambda for_g, for_x, for_w: (for_g, for_x, torch.ones(7)))
    assert_exact(lambda x: function.apply(x, w), lambda x: x * w, [x], order=2)
