"""What is asked of a statement about PyTorch that the document makes: that it still holds, and stands there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction

import pullback

DOCUMENT = Path(__file__).parents[2] / "docs" / "what-works-where.md"

TOLD_OF = "2.13"
"""The release that the document speaks of."""

each_base = pytest.mark.parametrize("base", [TorchFunction, pullback.Function], ids=["torch", "pullback"])


def statements() -> dict[str, str]:
    """Return the rows of the document's section "Beneath pullback", by what they are about."""
    section = DOCUMENT.read_text("utf-8").partition("\n## Beneath pullback\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): " | ".join(cells[1:]).strip() for cells in rows}


def still(about: str, holds: Any) -> None:
    """Demand that a row of the document holds; on another torch, one that no longer does is skipped, with a reason."""
    assert about in statements(), f"the document has no row about {about}"
    if not holds and not torch.__version__.startswith(f"{TOLD_OF}."):
        pytest.skip(f"torch {torch.__version__} has mended what the document says about {about}")
    assert holds, f"what the document says about {about} isn't so"


def leaf(count: int = 3) -> Tensor:
    """Return a leaf between 0.5 and 1.5."""
    return torch.linspace(0.5, 1.5, count, dtype=torch.float64).requires_grad_()


def tenfold(base: Any) -> Any:
    """Make the sine with ten times its gradient, so that forward's own derivative can be told from it."""

    class Tenfold(base):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 10 * g * x.cos()

    return Tenfold
