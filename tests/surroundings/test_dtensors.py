"""F15: tensors that are spread over processes are right at second order, like any other."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

import pullback

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)


@pytest.fixture(scope="module", name="spread")
def _spread() -> Iterator[Any]:
    """Return what spreads a tensor over the processes of a group, which here are one."""
    placed = pytest.importorskip("torch.distributed.tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        mesh = placed.init_device_mesh("cpu", (1,))
    yield lambda tensor: placed.distribute_tensor(tensor, mesh, [placed.Shard(0)]).requires_grad_()
    distributed.destroy_process_group()


class Exponential(pullback.Function):
    """y = exp(x), from an intermediate that only a replay of forward can connect."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        half = (x / 2).exp()
        ctx.save_for_backward(x, half)
        return half * half

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        _, half = ctx.saved_tensors
        return half * half * g


class Cube(pullback.Function):
    """y = x³, with its double_backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 6 * x * gg


@pytest.mark.parametrize(("cls", "second"), [(Exponential, torch.exp), (Cube, lambda x: 6 * x)])
def test_second_order(spread: Any, cls: Any, second: Any) -> None:
    """F8, F15: the first call and those after it, through a replay and through double_backward."""
    for start in (0.1, 0.7):
        values = torch.linspace(start, 1, 12).view(4, 3)
        x = spread(values)
        (gradient,) = torch.autograd.grad(cls.apply(x).sum(), x, create_graph=True)
        (found,) = torch.autograd.grad(gradient.sum(), x)
        torch.testing.assert_close(found.full_tensor(), second(values))
