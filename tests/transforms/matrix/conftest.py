"""What the first forward mode of a process needs."""

from __future__ import annotations

import warnings

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _forward_mode_is_loaded() -> None:
    """Load torch's own rules for forward mode, whose import warns of what torch itself uses there."""
    one = torch.ones(())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.func.jvp(torch.sin, (one,), (one,))
