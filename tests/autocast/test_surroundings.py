"""F14, F15: what declares something of autocast, inside of checkpoints, saved-tensor hooks and threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.autocast.functions import STYLES, Seen, autocast, leaf, same_bits

DECLARED: dict[str, dict[str, Any]] = {
    "cast_inputs": {"cast_inputs": torch.float32},
    "keep_autocast": {"keep_autocast": True},
    "keep_autocast, off": {"keep_autocast": True},
}

as_declared = pytest.mark.parametrize("declared", DECLARED)
in_both_styles = pytest.mark.parametrize("write", STYLES.values(), ids=STYLES)


def gradients(function: Any, around: Any, *, enabled: bool, seen: Seen) -> tuple[list[Any], Seen]:
    """Return the gradients of a call that `around` makes, and what its methods saw, in the order of first times."""
    seen.clear()
    x, w = leaf(4, 5, dtype=torch.bfloat16), leaf(5, 3, dtype=torch.bfloat16)
    with autocast(enabled=enabled):
        y = around(function, x, w)
    with autocast(enabled=not enabled):
        y.float().square().sum().backward()
    return [y.detach(), x.grad, w.grad], list(dict.fromkeys(seen))


def directly(function: Any, x: Tensor, w: Tensor) -> Tensor:
    """Call it."""
    called: Tensor = function.apply(x, w, 2.0)
    return called


def in_checkpoint(function: Any, x: Tensor, w: Tensor) -> Tensor:
    """Call it inside of a checkpoint."""
    called: Tensor = checkpoint(function.apply, x, w, 2.0, use_reentrant=False)
    return called


def in_reentrant_checkpoint(function: Any, x: Tensor, w: Tensor) -> Tensor:
    """Call it inside of a reentrant checkpoint."""
    called: Tensor = checkpoint(function.apply, x, w, 2.0, use_reentrant=True)
    return called


def offloaded(function: Any, x: Tensor, w: Tensor) -> Tensor:
    """Call it with hooks that keep copies of what it saves."""
    with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, lambda t: t):
        return directly(function, x, w)


@as_declared
@in_both_styles
@pytest.mark.parametrize("around", [in_checkpoint, in_reentrant_checkpoint, offloaded])
def test_gradients_and_states(write: Any, declared: str, around: Any) -> None:
    """F15: the gradients are those of a direct call, and every method sees the autocast that it sees there."""
    seen: Seen = []
    function = write(seen, **DECLARED[declared])
    enabled = not declared.endswith("off")
    for _ in range(2):
        plainly, states = gradients(function, directly, enabled=enabled, seen=seen)
        found, same_states = gradients(function, around, enabled=enabled, seen=seen)
        same_bits(found, plainly)
        assert {*same_states} == {*states}


@in_both_styles
def test_threads(write: Any) -> None:
    """F15: autocast belongs to a thread; calls of one class under different states don't get in each other's way."""
    functions = [write(cast_inputs=torch.float32), write(keep_autocast=True)]
    dtypes = (None, torch.bfloat16, torch.float16)
    failures: list[BaseException] = []

    def work(dtype: torch.dtype | None) -> None:
        try:
            for _ in range(30):
                for function in functions:
                    x, w = leaf(4, 5), leaf(5, 3)
                    with autocast(dtype or torch.bfloat16, enabled=dtype is not None):
                        y = function.apply(x, w, 2.0)
                    casts = function is functions[0]
                    assert y.dtype == (torch.float32 if casts or dtype is None else dtype)
                    y.sum().backward()
                    assert x.grad is not None
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(dtype,)) for dtype in dtypes * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
