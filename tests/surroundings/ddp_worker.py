"""One of the two processes of test_distributed: trains modules that use Functions, and writes down their gradients.

Run as a program: ``python -m tests.surroundings.ddp_worker RANK FILE OUT``, where FILE is where the two meet.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import pullback

WORLD = 2


class Scale(pullback.Function):
    """x w with an intermediate saved: a flat Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        e = x.exp()
        ctx.save_for_backward(x, w, e)
        return e * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        _, w, e = ctx.saved_tensors
        return g * e * w, (g * e).sum(0)


class Affine(pullback.Function):
    """x wᵀ + b, of a nest by keyword, returned in one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *, p: dict[str, Tensor]) -> dict[str, Tensor]:
        ctx.save_for_backward(x, p["w"])
        return {"y": x @ p["w"].t() + p["b"]}

    @staticmethod
    def backward(ctx: Any, g: dict[str, Tensor]) -> Any:
        x, w = ctx.saved_tensors
        return {"x": g["y"] @ w, "p": {"w": g["y"].t() @ x, "b": g["y"].sum(0)}}


class Through(pullback.Function):
    """A layer that is an argument: a module as a nest of its parameters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:
        ctx.save_for_backward(x, layer.weight)
        return layer(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w, {"weight": g.t() @ x, "bias": g.sum(0)}


@pullback.custom_vjp
def squared(x: Tensor, w: Tensor) -> Tensor:
    """x² w."""
    return x**2 * w


squared.defvjp(lambda x, w: (x**2 * w, (x, w)), lambda kept, g: (2 * g * kept[0] * kept[1], (g * kept[0] ** 2).sum(0)))


class Model(nn.Module):
    """Uses all of them, by formulas or by Functions."""

    def __init__(self, *, plain: bool = False, reentrant: bool | None = None) -> None:
        """Make the parameters, of which one is used by the first process alone where `unused` is passed to forward."""
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def made(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.rand(shape, generator=generator, dtype=torch.float64) / 2)

        self.scale, self.w, self.b, self.square, self.rarely = made(3), made(3, 3), made(3), made(3), made(3)
        self.layer = nn.Linear(3, 3, dtype=torch.float64)
        with torch.no_grad():
            self.layer.weight.copy_(made(3, 3))
            self.layer.bias.copy_(made(3))
        self.plain, self.reentrant = plain, reentrant

    def forward(self, x: Tensor, unused: bool = False) -> Tensor:
        """Run the layers."""
        first = self.first if self.reentrant is None else self.checkpointed
        x = first(x)
        x = self.layer(x) if self.plain else Through.apply(x, self.layer)
        x = x**2 * self.square if self.plain else squared(x, self.square)
        if not unused:
            x = x.exp() * self.rarely if self.plain else Scale.apply(x, self.rarely)
        return x

    def checkpointed(self, x: Tensor) -> Tensor:
        """The first part in a checkpoint."""
        # The reentrant kind connects what it returns by its argument alone.
        result: Tensor = checkpoint(self.first, x.requires_grad_(), use_reentrant=self.reentrant)
        return result

    def first(self, x: Tensor) -> Tensor:
        """The first two layers."""
        if self.plain:
            return x.exp() * self.scale @ self.w.t() + self.b
        y: Tensor = Affine.apply(Scale.apply(x, self.scale), p={"w": self.w, "b": self.b})["y"]
        return y


def batch(rank: int, step: int) -> Tensor:
    """What a process trains on in a step."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.rand(4, 3, generator=generator, dtype=torch.float64)


def collected(model: nn.Module) -> list[Any]:
    """The gradients of all parameters."""
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def steps(model: Any, rank: int, count: int = 3, **call: Any) -> list[Any]:
    """The gradients of some steps."""
    found = []
    for step in range(count):
        model.zero_grad()
        model(batch(rank, step), **call).sum().backward()
        found.append(collected(model))
    return found


def accumulated(model: Any, rank: int) -> list[Any]:
    """The gradients of a step that was accumulated over two batches, of which one wasn't synchronised."""
    model.zero_grad()
    for step, synchronised in ((0, False), (1, True)):
        with contextlib.nullcontext() if synchronised else model.no_sync():
            model(batch(rank, step)).sum().backward()
    return [collected(model)]


def sharded(rank: int) -> list[Any]:
    """The gradients of steps of a fully sharded module."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    model = Model()
    fully_shard(model)
    found = []
    for step in range(2):
        model.zero_grad()
        model(batch(rank, step)).sum().backward()
        found.append([p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()])
    return found


def main(rank: int, meeting: str, out: str) -> None:
    """Train in every way, and save what came."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    ddp = DistributedDataParallel
    ways: dict[str, Callable[[], list[Any]]] = {
        "plain": lambda: steps(ddp(Model()), rank),
        "static graph": lambda: steps(ddp(Model(), static_graph=True), rank),
        "views of buckets": lambda: steps(ddp(Model(), gradient_as_bucket_view=True, bucket_cap_mb=1), rank),
        "unused parameters": lambda: steps(ddp(Model(), find_unused_parameters=True), rank, unused=True),
        "unused in one process": lambda: steps(ddp(Model(), find_unused_parameters=True), rank, unused=rank == 1),
        "no_sync": lambda: accumulated(ddp(Model()), rank),
        "checkpoint": lambda: steps(ddp(Model(reentrant=False)), rank),
        "reentrant checkpoint": lambda: steps(ddp(Model(reentrant=True), static_graph=True), rank),
        "fully_shard": lambda: sharded(rank),
    }
    found: dict[str, Any] = {}
    for name, way in ways.items():
        try:
            found[name] = way()
        except Exception as error:
            found[name] = repr(error)
        dist.barrier()
    torch.save(found, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
