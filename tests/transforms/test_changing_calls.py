"""F8: calls of one class that save otherwise than the calls before: by flag, by data, by layout, at random."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import Draw, assert_exact


class Gate(pullback.Function):
    """x times a gate that is hard or soft, by flag; both are saved in one place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, soft: bool) -> Tensor:
        gate = x.sigmoid() if soft else (x > 0.8).to(x.dtype)
        ctx.save_for_backward(x, gate)
        ctx.soft = soft
        return x * gate

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        x, gate = ctx.saved_tensors
        return (g * (gate + x * gate * (1 - gate)) if ctx.soft else g * gate), None


class DataGate(pullback.Function):
    """The same, by the data."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.soft = bool(x.sum() > 3)
        gate = x.sigmoid() if ctx.soft else (x > 0.8).to(x.dtype)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, gate = ctx.saved_tensors
        return g * (gate + x * gate * (1 - gate)) if ctx.soft else g * gate


@pytest.mark.parametrize("order", [(True, False, True), (False, True, False)], ids=str)
def test_flags_that_steer_forward(order: tuple[bool, ...], draw: Draw) -> None:
    """F8: what one call saved flat, the next one may save curved, and the other way round."""
    function = type("Gate", (Gate,), {})
    for soft in order:
        assert_exact(
            lambda x, soft=soft: function.apply(x, soft),
            lambda x, soft=soft: x * (x.sigmoid() if soft else (x > 0.8)),
            [draw.leaf(5)],
        )


@pytest.mark.parametrize("order", [(True, False, True), (False, True, False)], ids=str)
def test_data_that_steers_forward(order: tuple[bool, ...], draw: Draw) -> None:
    """F8: the same where nothing but the data decides."""
    function = type("DataGate", (DataGate,), {})
    for soft in order:
        leaf = draw.leaf(5, low=0.9, high=1.3) if soft else draw.leaf(5, low=0.0, high=0.5)
        assert_exact(function.apply, lambda x, soft=soft: x * (x.sigmoid() if soft else (x > 0.8)), [leaf])


class Contiguous(pullback.Function):
    """Saves a contiguous copy: the argument itself, or an intermediate; and the second argument cast and reshaped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        whole, factor = x.contiguous(), scale.to(x.dtype).reshape(-1, 1)
        ctx.save_for_backward(whole, factor, scale)
        return whole * whole * factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        whole, factor, _ = ctx.saved_tensors
        return 2 * whole * factor * g, None


def test_copies_that_are_sometimes_the_argument(draw: Draw) -> None:
    """F8: x.contiguous() saves the argument in one call and a copy in another; casts of constants are constants."""
    scale = draw.constant(2, dtype=torch.float32)
    for transposed in (False, True, False, True):
        x = draw.leaf(3, 2) if transposed else draw.leaf(2, 3)
        if transposed:  # what is saved is a copy
            x = x.detach().t().requires_grad_()
        assert_exact(lambda x: Contiguous.apply(x, scale), lambda x: x * x * scale.double().reshape(-1, 1), [x])


class Dropout(pullback.Function):
    """Drops elements in training, with a float mask; saves nothing otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, training: bool) -> Tensor:
        if not training:
            return x.clone()
        mask = (torch.rand_like(x) >= p).to(x.dtype) / (1 - p)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return (g * ctx.saved_tensors[0] if ctx.saved_tensors else g), None, None


@pytest.mark.parametrize("inside", [False, True], ids=["leaf", "inside"])
@pytest.mark.parametrize("order", [(True, False, True), (False, True, False, True)], ids=str)
def test_dropout(order: tuple[bool, ...], inside: bool, draw: Draw) -> None:
    """F8: a random mask is a constant, in training after evaluation and in evaluation after training."""
    function = type("Dropout", (Dropout,), {})
    for training in order:

        def dropped(x: Tensor, training: bool = training) -> Tensor:
            torch.manual_seed(draw.seed)
            return function.apply(x * 1.5 if inside else x, 0.4, training) ** 2

        def formula(x: Tensor, training: bool = training) -> Tensor:
            torch.manual_seed(draw.seed)
            mask = (torch.rand_like(x) >= 0.4).to(x.dtype) / (1 - 0.4) if training else 1
            return ((x * 1.5 if inside else x) * mask) ** 2

        assert_exact(dropped, formula, [draw.leaf(20)])
