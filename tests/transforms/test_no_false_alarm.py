"""F8, F9: what only looks like a lost derivative gives autograd's numbers in every situation, and never raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import Draw, assert_exact, penalty
from tests.transforms.situations import Situation, each_situation, outcome

TABLE = torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)


class Relu(pullback.Function):
    """Not differentiable at 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] > 0)


class ClippedReLU(pullback.Function):
    """Flat outside an interval whose end is a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.top = 0.8
        return x.clamp(0, ctx.top)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where((x > 0) & (x < ctx.top), g, 0)


class Linear3(pullback.Function):
    """Linear: its gradient has nothing to be differentiated by but the cotangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 3


class SavedMask(pullback.Function):
    """A bool mask is saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x > 0.8)
        return x * (x > 0.8)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class FloatMask(pullback.Function):
    """The mask is a float tensor, scaled, and the argument isn't saved."""

    replayable = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = (x > 0.8).to(x.dtype) * 2.0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class Sign(pullback.Function):
    """The sign is a float tensor, and flat."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        s = x.sign()
        ctx.save_for_backward(s)
        return x * s

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class Sorted(pullback.Function):
    """Indices are saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        values, order = x.sort()
        ctx.save_for_backward(order)
        return values

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.zeros_like(g).scatter(0, ctx.saved_tensors[0], g)


class Literal(pullback.Function):
    """A tensor is written out in forward, and another one comes from outside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.filter = torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)
        ctx.table = TABLE
        ctx.save_for_backward(TABLE.to(x.dtype) * 2)
        return x * ctx.filter * TABLE * (TABLE * 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.filter * ctx.table * ctx.saved_tensors[0]


class Constants(pullback.Function):
    """An intermediate from NumPy is declared constant, which it is."""

    replayable = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = torch.from_numpy((x.detach().numpy() > 0.8).astype("float64"))
        ctx.save_for_backward(x, constants=(mask,))
        return x * x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, mask = ctx.saved_tensors
        return 2 * x * g * mask


class Unused(pullback.Function):
    """An intermediate is saved, and what backward returns doesn't depend on it."""

    replayable = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.exp())
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, _ = ctx.saved_tensors
        return 2 * x * g


class Zeros(pullback.Function):
    """A gradient of zeros that is made of nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.zeros_like(g)


class Chained(pullback.Function):
    """An intermediate is saved beside its argument, under the guard of needs_input_grad."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.sin()
        ctx.save_for_backward(x, y)
        return y * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor | None:
        x, y = ctx.saved_tensors
        return 2 * y * x.cos() * g if ctx.needs_input_grad[0] else None


RIGHT: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "relu": (Relu, torch.relu),
    "clipped_relu": (ClippedReLU, lambda x: x.clamp(0, 0.8)),
    "linear": (Linear3, lambda x: x * 3),
    "bool_mask": (SavedMask, lambda x: x * (x > 0.8)),
    "float_mask": (FloatMask, lambda x: x * (x > 0.8) * 2.0),
    "sign": (Sign, torch.abs),
    "indices": (Sorted, lambda x: x.sort()[0]),
    "literals_and_tables": (Literal, lambda x: x * torch.tensor([1.0, 2.0, 3.0]) * TABLE * TABLE * 2),
    "declared_constants": (Constants, lambda x: x * x * (x > 0.8)),
    "unused": (Unused, torch.square),
    "zeros": (Zeros, torch.round),
    "chained": (Chained, lambda x: x.sin() ** 2),
}


def linear_in_x(situation: Situation) -> bool:
    """Tell whether the penalty depends on x even where the operation is linear."""
    return situation.__name__ in ("other_paths", "other_paths_inside", "weighted_cotangent", "at_zero")


@each_situation
@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_autograds_numbers(case: tuple[Any, Callable[[Tensor], Tensor]], situation: Situation, draw: Draw) -> None:
    """F8, F9: nothing is lost, so nothing is raised, leaf or not, with other paths or without."""
    written, formula = case
    function = type(
        written.__name__, (written,), {}
    )  # anew, so that no test finds what another one's calls have taught

    class Curved:
        """The operation followed by a square, so that there is a second derivative to ask for."""

        @staticmethod
        def apply(x: Tensor) -> Tensor:
            return (function.apply(x) ** 2) * x

    if situation.__name__ == "at_zero" and case[0] in (Sign, Relu, ClippedReLU):
        assert outcome(situation, function, lambda x: formula(x), draw) == "exact"
        return
    assert outcome(situation, Curved, lambda x: (formula(x) ** 2) * x, draw) == "exact"


def test_a_linear_gradient_has_no_graph(draw: Draw) -> None:
    """F8: the gradient of a linear Function under create_graph rightly requires no grad, as in PyTorch."""
    x = draw.leaf(3)
    (gradient,) = torch.autograd.grad(Linear3.apply(x).sum(), x, create_graph=True)
    assert not gradient.requires_grad


def test_constant_arguments_kept_in_any_form(draw: Draw) -> None:
    """F8: an argument that requires no grad may be saved reshaped, cast or computed with: it is a constant."""

    class Weighted(pullback.Function):
        replayable = False

        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.weights = {"cast": w.double(), "root": w.double().sqrt()}
            ctx.save_for_backward(x, w.reshape(-1).double() * 2)
            return x * x * w.reshape(-1).double() ** 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            x, twice = ctx.saved_tensors
            return x * twice * ctx.weights["root"] ** 2 * g, None

    w = draw.constant(1, 3, dtype=torch.float32)
    assert_exact(lambda x: Weighted.apply(x * 1.5, w), lambda x: (x * 1.5) ** 2 * w[0].double() ** 2, [draw.leaf(3)])


def test_the_same_argument_as_constant_and_not(draw: Draw) -> None:
    """F8: an argument that was a constant in the first calls is followed once it requires grad."""

    class Product(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w, w.exp())
            return x * x * w.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, _, e = ctx.saved_tensors
            return 2 * x * e * g, x * x * e * g

    x, w = draw.leaf(3), draw.leaf(3)
    assert_exact(lambda x: Product.apply(x, w.detach()), lambda x: x * x * w.detach().exp(), [x])
    assert_exact(Product.apply, lambda x, w: x * x * w.exp(), [x, w])
    assert_exact(lambda w: Product.apply(x.detach(), w), lambda w: x.detach() ** 2 * w.exp(), [w])


def test_captured_parameters(draw: Draw) -> None:
    """F8: a tensor from outside that requires grad has its own graph, and is no intermediate."""
    weight = draw.leaf(3)

    class Captured(pullback.Function):
        replayable = False

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.weight = weight
            return x * x * weight

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * ctx.weight * g

    x = draw.leaf(3)
    found = penalty(Captured.apply(x), x)
    torch.testing.assert_close(torch.autograd.grad(found, x)[0], torch.autograd.grad(penalty(x * x * weight, x), x)[0])
