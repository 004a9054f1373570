"""What the tests of higher orders and of torch.func draw from, and what the first forward mode of a process needs."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.transforms.derivatives import Draw


@pytest.fixture(params=[11], ids=lambda seed: f"seed={seed}")
def draw(request: pytest.FixtureRequest) -> Draw:
    """Draw random tensors from a seed that the test's name shows."""
    return Draw(request.param)


@pytest.fixture(scope="session", autouse=True)
def _forward_mode_is_loaded() -> None:
    """Load torch's own rules for forward mode, whose import warns of what torch itself uses there."""
    one = torch.ones(())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.func.jvp(torch.sin, (one,), (one,))
