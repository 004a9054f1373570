"""What hooks never see, and what is kept for nothing: ctx, closures, small views of large storages."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

import pullback


class OnCtx(pullback.Function):
    """Keeps its input as an attribute, in a list, and in a closure."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.sign = x.sign()
        ctx.cache = [{"sine": x.sin()}]
        ctx.rule = functools.partial(_rule(x.cos()), scale=2.0)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ctx.rule(grad) * ctx.sign


def _rule(cosine: Tensor) -> Any:
    def rule(grad: Tensor, scale: float) -> Tensor:
        return grad * cosine * scale

    return rule


def test_tensors_on_ctx_are_named_with_their_path() -> None:
    """Attributes, containers in them, and functions that captured a tensor: each is found and named as such."""
    x = torch.randn(5, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = OnCtx.apply(x)
    found = {entry.argument: (entry.how, entry.bytes) for entry in ledger.entries}
    assert found == {
        "ctx.sign": ("ctx", 20),
        "ctx.cache[0]['sine']": ("ctx", 20),
        "ctx.rule.func.cosine": ("closure", 20),
    }
    assert ledger.out_of_sight == ledger.entries
    assert "where no hook, checkpoint or offload sees it" in str(ledger)
    assert "PB303" in str(ledger)
    assert y.requires_grad


def test_what_a_backward_captured_is_found() -> None:
    """A Function that is defined where it is used captures what is there, in no node's sight but the class's."""

    def doubled(x: Tensor, weight: Tensor) -> Tensor:
        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * weight

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad * weight

        return Doubled.apply(x)

    x = torch.randn(5, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = doubled(x, x.detach().exp())
    (entry,) = ledger.entries
    assert (str(entry.first), entry.how, entry.bytes) == ("Doubled.forward.weight", "closure", 20)
    assert y.requires_grad


def test_what_lies_on_ctx_outlives_backward() -> None:
    """After backward saved tensors are gone, and what lies on ctx is what still counts."""
    x = torch.randn(5, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = OnCtx.apply(x.exp()).exp()
        y.sum().backward()
    assert {entry.how for entry in ledger.entries} == {"ctx", "closure"}
    assert ledger.total == 60


def test_an_input_on_ctx_is_named_though_it_costs_nothing() -> None:
    """What is alive anyway isn't charged, but that it is out of sight is said."""

    class Holds(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x = x
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    x, w = torch.randn(5), torch.randn(5, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = Holds.apply(w * 2) + Holds.apply(x)
    assert [entry.argument for entry in ledger.entries] == ["ctx.x"]
    with pullback.saved_memory() as ledger:
        z = w * x
    assert ledger.out_of_sight == ()
    assert (y + z).requires_grad


def test_a_tensor_on_ctx_keeps_the_graph_behind_it() -> None:
    """What is reached through an attribute alone counts as well."""

    class Carries(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, other: Any) -> Tensor:
            ctx.other = other
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * 2, None

    x = torch.randn(5, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = Carries.apply(x, [x.exp().sin()])
    assert ledger.by_operation() == {"ExpBackward0": 20, "Carries": 20}
    assert y.requires_grad


def test_a_small_view_that_keeps_a_large_storage_is_named() -> None:
    """A slice keeps all of its storage; the ledger says how much of it is kept for nothing."""
    x = torch.randn(1000, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = (x * 2)[:6].sin()
    (entry,) = ledger.entries
    assert (entry.bytes, entry.first.bytes, entry.pinned, entry.pins) == (4000, 24, 3976, True)
    assert ledger.pinned == (entry,)
    assert "kept for 24 B: SinBackward0.self" in str(ledger)
    assert "PB305" in str(ledger)
    assert y.requires_grad


def test_parts_that_make_up_a_storage_pin_nothing() -> None:
    """Three thirds of one storage are all of it; the same third saved twice is one third."""
    x = torch.randn(2, 30, requires_grad=True)
    with pullback.saved_memory() as ledger:
        a, b, c = (x * 2).chunk(3, -1)
        y = a.sin() + b.sin() + c.sin()
    (entry,) = ledger.entries
    assert (entry.pinned, entry.pins) == (0, False)
    with pullback.saved_memory() as ledger:
        a, _, _ = (x * 2).chunk(3, -1)
        y = a.sin() + a.cos() + a.T.cos().T
    (entry,) = ledger.entries
    assert (entry.bytes, entry.pinned, entry.pins) == (240, 160, True)
    assert y.requires_grad


def test_an_expanded_tensor_needs_its_storage_alone() -> None:
    """An axis of stride 0 repeats the same elements, which count once."""
    x, w = torch.randn(4, 1, requires_grad=True), torch.randn(4, 100, requires_grad=True)
    with pullback.saved_memory() as ledger:
        y = (x * 2).expand(4, 100).mul(w)
    (entry,) = ledger.entries
    assert (entry.bytes, entry.first.bytes, entry.shape, entry.pins) == (16, 16, (4, 100), False)
    assert y.requires_grad
