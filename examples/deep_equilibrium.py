"""A deep equilibrium layer: its output is the z with z = cell(z, x), and it is trained without its steps being kept.

A layer that applies one cell until nothing changes is as deep as it likes. Differentiated through its steps it would
keep every one of them. At the equilibrium that isn't needed: from z = f(z, x, θ) follows

    dz = A dz + B dx + C dθ    with A = ∂f/∂z, B = ∂f/∂x, C = ∂f/∂θ at the equilibrium,

so that for a cotangent g of z the gradients are Bᵀ w and Cᵀ w, where w = g + Aᵀ w is an equilibrium again. Source: Bai,
Kolter, Koltun, "Deep Equilibrium Models", 2019.

``python examples/deep_equilibrium.py`` trains such a layer, compares its gradients with those through the steps, and
says how many bytes weren't kept. ``pullback check examples/deep_equilibrium.py`` proves the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

import pullback

STEPS = 80


class Cell(nn.Module):
    """tanh(W z + U x + b), with W scaled so that its norm is below 1, and the steps converge."""

    def __init__(self, inputs: int, width: int, *, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.recurrent = nn.Parameter(_drawn(generator, width, width))
        self.input = nn.Parameter(_drawn(generator, width, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(width, dtype=torch.float64))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        scaled = self.recurrent * (0.7 / (1 + torch.linalg.matrix_norm(self.recurrent)))
        return torch.tanh(z @ scaled.T + x @ self.input.T + self.bias)


class DeepEquilibrium(nn.Module):
    """The equilibrium of a cell, and a linear map behind it."""

    def __init__(self, inputs: int, width: int, outputs: int, *, seed: int = 0) -> None:
        super().__init__()
        self.cell = Cell(inputs, width, seed=seed)
        self.head = nn.Parameter(_drawn(torch.Generator().manual_seed(seed + 1), outputs, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return equilibrium(self.cell, x) @ self.head.T


def settled(step: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Apply `step` until nothing changes: its norm is below 0.7, and 0.7 to the power of 80 is 4e-13."""
    z = start
    for _ in range(STEPS):
        z = step(z)
    return z


@pullback.custom_vjp
def equilibrium(cell: nn.Module, x: Tensor) -> Tensor:
    """The z with z = cell(z, x). The cell's parameters get their gradients, as it is an argument."""
    start = torch.zeros(len(x), len(cell.bias), dtype=x.dtype)
    return settled(lambda z: cell(z, x), start)


def _fwd(cell: nn.Module, x: Tensor) -> Any:
    z = equilibrium(cell, x)
    return z, (cell, x, z)


def _bwd(residuals: Any, g: Tensor) -> Any:
    cell, x, z = residuals
    parameters = dict(cell.named_parameters())
    _, pull = vjp(lambda p, x, z: functional_call(cell, p, (z, x)), parameters, x, z)
    w = settled(lambda w: g + pull(w)[2], g)
    return pull(w)[:2]


equilibrium.defvjp(_fwd, _bwd)


def unrolled(cell: nn.Module, x: Tensor) -> Tensor:
    """The same equilibrium, to be differentiated through all its steps."""
    return equilibrium.fn(cell, x)


@pullback.samples_for(equilibrium)
def _() -> Iterator[Any]:
    x = _drawn(torch.Generator().manual_seed(2), 1, 2)
    yield pullback.Sample((Cell(2, 3), x), vary=("layout",))


def gradients(solve: Callable[[nn.Module, Tensor], Tensor], cell: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a cell's parameters and of x."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(solve(cell, x).square().sum(), [*cell.parameters(), x])


def largest_difference(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> float:
    """The largest difference between two sets of gradients, relative to the largest gradient."""
    pairs = list(zip(one, other, strict=True))
    scale = max(float(b.abs().max()) for _, b in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs) / scale


def bytes_kept(solve: Callable[[nn.Module, Tensor], Tensor], cell: nn.Module, x: Tensor) -> int:
    """How many bytes a call keeps for its backward pass, beside the parameters and x."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*cell.parameters(), x)}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = solve(cell, x)
    total = sum(kept.values())
    del result  # until here the storages lived, so that no two had the same address
    return total


def train(steps: int = 150, *, batch: int = 64) -> list[float]:
    """Teach a layer what another one knows; returns the loss at each step."""
    teacher, student = DeepEquilibrium(5, 16, 2, seed=10), DeepEquilibrium(5, 16, 2, seed=20)
    x = _drawn(torch.Generator().manual_seed(4), batch, 5)
    with torch.no_grad():
        target = teacher(x)
    optimiser = torch.optim.Adam(student.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = (student(x) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def _drawn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def lines() -> Iterator[str]:
    """What the program prints."""
    losses = train()
    every = [f"{losses[index]:.5f}" for index in range(0, len(losses), 30)]
    yield f"loss every 30 steps: {', '.join(every)}; at the end {losses[-1]:.2e}"
    cell, x = Cell(5, 16), _drawn(torch.Generator().manual_seed(5), 64, 5)
    difference = largest_difference(gradients(equilibrium, cell, x), gradients(unrolled, cell, x))
    yield f"gradients differ from those through the steps by {difference:.1e} at most"
    implicit, through = bytes_kept(equilibrium, cell, x), bytes_kept(unrolled, cell, x)
    yield f"bytes kept for backward: {implicit} instead of {through}; {through - implicit} are not saved"


if __name__ == "__main__":
    for line in lines():
        print(line)
