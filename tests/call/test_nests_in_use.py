"""F15: nests under checkpoint, saved-tensor hooks, several threads, retained graphs and deep copies."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pullback
from tests.call.nests import KINDS, formula, function, numbers
from tests.function.kinds import leaf

DICT, NAMED = KINDS["dict"], KINDS["named tuple"]


def leaves() -> tuple[Tensor, Tensor]:
    """Draw the two tensors of a container."""
    return leaf(3, seed=1), leaf(3, seed=2)


def due() -> tuple[Tensor, ...]:
    """Return the gradients that the formula has."""
    a, b = leaves()
    return torch.autograd.grad(numbers(NAMED.take(formula(DICT, NAMED, DICT.make(a, b), 2.0))), (a, b))


def check(got: tuple[Tensor, ...]) -> None:
    """Compare gradients with the formula's."""
    for one, other in zip(got, due(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    """F15: what is run again in the backward pass has the same nests."""
    made = function(DICT, NAMED, saving="an intermediate")
    for _ in range(3):
        a, b = leaves()

        def block(a: Tensor, b: Tensor) -> Tensor:
            return numbers(NAMED.take(made.apply(DICT.make(a, b), 2.0)))

        loss = checkpoint(block, a, b, use_reentrant=reentrant)
        assert isinstance(loss, Tensor)
        loss.backward()
        assert a.grad is not None
        assert b.grad is not None
        check((a.grad, b.grad))


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
def test_saved_tensor_hooks(create_graph: bool) -> None:
    """F15: leaves that are saved pass through the hooks like other tensors."""
    made, packed = function(DICT, NAMED, saving="an intermediate"), []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.shape)
        return tensor.detach().clone()

    for _ in range(3):
        packed.clear()
        a, b = leaves()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = made.apply(DICT.make(a, b), 2.0)
        assert len(packed) == 3
        check(torch.autograd.grad(numbers(NAMED.take(out)), (a, b), create_graph=create_graph))


def test_a_retained_graph() -> None:
    """F15: backward may run twice."""
    made = function(DICT, NAMED)
    for _ in range(2):
        a, b = leaves()
        loss = numbers(NAMED.take(made.apply(DICT.make(a, b), 2.0)))
        check(torch.autograd.grad(loss, (a, b), retain_graph=True))
        check(torch.autograd.grad(loss, (a, b)))


def test_first_calls_in_several_threads() -> None:
    """F15: threads that meet a structure for the first time at once don't get in each other's way."""
    made, failures = function(DICT, NAMED, saving="an intermediate"), []
    barrier = threading.Barrier(6)

    def work() -> None:
        try:
            barrier.wait()
            for _ in range(5):
                a, b = leaves()
                check(torch.autograd.grad(numbers(NAMED.take(made.apply(DICT.make(a, b), 2.0))), (a, b)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_network_that_is_copied() -> None:
    """F15: a module that passes its own layers to a Function can be deep-copied, and the copy trains its own."""

    class Run(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:
            ctx.save_for_backward(x, layer.weight)
            return layer(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return g @ w, {"weight": g.t() @ x, "bias": g.sum(0)}

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return Run.apply(x, self.layer)

    network, x = Network(), leaf(4, 3)
    network(x).sum().backward()
    other = copy.deepcopy(network)
    other.zero_grad()
    other(x).sum().backward()
    assert other.layer.weight.grad is not None
    assert torch.equal(other.layer.weight.grad, network.layer.weight.grad)
    assert other.layer.weight is not network.layer.weight


def test_autocast_around_nests() -> None:
    """F1: custom_fwd and custom_bwd of torch.amp see to the tensors in containers as they do in PyTorch."""

    class Product(pullback.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, n: Any) -> Any:
            ctx.save_for_backward(*n)
            return [n[0] @ n[1]]

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Any) -> Any:
            a, b = ctx.saved_tensors
            return [g[0] @ b.t(), a.t() @ g[0]]

    for _ in range(2):
        a, b = (leaf(3, 3, dtype=torch.float32, seed=seed) for seed in (1, 2))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (y,) = Product.apply([a, b])
        assert y.dtype is torch.float32
        ga, _ = torch.autograd.grad(y.sum(), (a, b))
        torch.testing.assert_close(ga, torch.ones(3, 3) @ b.t())
