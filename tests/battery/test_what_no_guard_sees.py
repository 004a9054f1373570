"""What a guard at run time can't see, and an experiment can: the promises of docs/design.md."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import pullback

WORKSPACE = torch.empty(3, dtype=torch.float64)


class CutsOffSaved(pullback.Function):
    """sin, whose backward detaches the saved argument, as relu's mask might."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].detach().cos()

    @staticmethod
    def samples() -> Iterator[tuple[Tensor]]:
        yield (torch.rand(3, dtype=torch.float64, requires_grad=True),)


class SharesAWorkspace(pullback.Function):
    """exp by a kernel that writes to memory that was there before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        WORKSPACE.numpy()[:] = x.detach().exp().numpy()
        ctx.y = WORKSPACE
        return WORKSPACE.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.y

    samples = CutsOffSaved.samples


def test_a_backward_that_cuts_off_a_saved_tensor() -> None:
    """Its second derivative is lost without an error, and check says so."""
    assert [finding.rule for finding in pullback.check(CutsOffSaved).findings] == ["PB207"]


def test_a_kernel_that_writes_to_a_workspace() -> None:
    """The next call overwrites what this one's backward reads, and check says so."""
    assert [finding.rule for finding in pullback.check(SharesAWorkspace).findings] == ["PB504"]
