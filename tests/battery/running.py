"""Runs one probe of the battery on one function, as the battery does."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pullback.battery import battery
from pullback.battery.check import make_subject
from pullback.battery.probe import Probe
from pullback.finding import Finding, Outcome


def run_probe(probe: Probe, function: Any, *samples: object, **options: Any) -> tuple[Outcome, tuple[Finding, ...]]:
    """The outcome and the findings of one probe on `function`."""
    ((_, outcome, findings),) = battery.run(make_subject(function, *samples, **options), [probe])
    return outcome, findings


def leaf(*shape: int) -> Tensor:
    """A float64 leaf that requires grad, its elements well away from 0."""
    return torch.rand(*shape, dtype=torch.float64).add_(0.25).requires_grad_()


def rules(findings: tuple[Finding, ...]) -> list[str]:
    """The codes of some findings."""
    return [finding.rule for finding in findings]


class Square(Function):
    """x², as it should be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g
