"""What the tests of higher orders draw from."""

from __future__ import annotations

import pytest

from tests.transforms.derivatives import Draw


@pytest.fixture(params=[11], ids=lambda seed: f"seed={seed}")
def draw(request: pytest.FixtureRequest) -> Draw:
    """Draw random tensors from a seed that the test's name shows."""
    return Draw(request.param)
