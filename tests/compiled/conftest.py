"""Each test of compiled code starts and ends without any."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    """Forget what is compiled; torch's tracer instantiates a Function, which torch's Function warns of."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)  # inductor imports what uses it
        # So does its tracer look at .grad of what is no leaf, where a graph is broken.
        warnings.filterwarnings("ignore", ".*attribute of a Tensor that is not a leaf", UserWarning)
        yield
    torch._dynamo.reset()
