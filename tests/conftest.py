"""What every test starts from: one seed, one thread, and no global switch of torch left by the test before."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Seed torch before each test, and find its global switches after it as they were before."""
    # Tests of the parts without torch don't pay for its import.
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    torch.manual_seed(0)
    before = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
    yield
    after = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
    if after != before:
        torch.set_grad_enabled(before[0])
        torch.set_default_dtype(before[1])
        torch.set_autocast_enabled("cpu", before[2])
        pytest.fail(f"the test left (grad mode, default dtype, autocast) as {after}; they were {before}")
