"""The deep equilibrium layer: it learns, its gradients are those through the steps, and it keeps none of the steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from examples import deep_equilibrium as example

ROOT = Path(__file__).resolve().parents[2]


def test_it_prints_loss_difference_and_bytes() -> None:
    """Run as a program, it prints a loss that falls, gradients that agree, and the bytes that weren't saved."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "examples/deep_equilibrium.py"]
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    loss, difference, kept = result.stdout.splitlines()
    losses = [float(part) for part in loss.removeprefix("loss every 30 steps: ").partition(";")[0].split(", ")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 50
    assert float(difference.split()[-3]) < 1e-12
    assert kept.startswith("bytes kept for backward: 8192 instead of ")


def test_every_parameter_gets_its_gradient() -> None:
    """The module's parameters get gradients through the implicit function theorem, and all of them change."""
    layer = example.DeepEquilibrium(5, 8, 2)
    before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer(x).square().mean().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert set(before) == {"cell.recurrent", "cell.input", "cell.bias", "head"}
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        assert not torch.equal(parameter, before[name])


def test_second_derivatives() -> None:
    """The gradient of a gradient penalty is the one through the steps."""
    results = []
    for solve in (example.equilibrium, example.unrolled):
        cell = example.Cell(3, 4)
        x = torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        (gradient,) = torch.autograd.grad(solve(cell, x).square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(gradient.square().sum(), [*cell.parameters(), x]))
    assert example.largest_difference(*results) < 1e-9
