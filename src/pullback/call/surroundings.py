"""The random and autocast state around a call of forward, brought back for a replay.

NOTE [autocast of a replay]: whether forward ran under autocast isn't asked on every call, which would cost 3% of it.
It shows in what forward saved: a replay under another setting saves something else, so the settings are tried in turn
until one gives what was saved.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch

RngState = tuple[torch.Tensor, tuple[tuple[int, torch.Tensor], ...]]

AUTOCAST_SETTINGS = (None, torch.bfloat16, torch.float16)
"""The settings that forward may have run under: off, or on with a dtype."""


def rng_state() -> RngState:
    """The state of the CPU's random number generator and, where CUDA is in use, of each device's."""
    devices: tuple[tuple[int, torch.Tensor], ...] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices = tuple((index, torch.cuda.get_rng_state(index)) for index in range(torch.cuda.device_count()))
    return torch.get_rng_state(), devices


def autocast_dtype() -> torch.dtype | None:
    """The dtype that operations are cast to here, None outside of autocast."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return next((torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)), None)


def same_rng_state(one: RngState, other: RngState) -> bool:
    """Whether nothing was drawn between the two."""
    pairs = zip(one[1], other[1], strict=False)
    return torch.equal(one[0], other[0]) and all(torch.equal(a[1], b[1]) for a, b in pairs)


@contextlib.contextmanager
def restored(rng: RngState | None, autocast: torch.dtype | None) -> Iterator[None]:
    """Run a block with the random state `rng`, if one is given, under autocast to a dtype, or, for None, without."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            if autocast is not None:
                stack.enter_context(torch.autocast(kind, dtype=autocast, cache_enabled=False))
            elif torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if rng is not None:
            stack.enter_context(_rng(rng))
            stack.enter_context(_undisturbed())
        yield


@contextlib.contextmanager
def _rng(state: RngState) -> Iterator[None]:
    now = rng_state()
    set_rng_state(state)
    try:
        yield
    finally:
        set_rng_state(now)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave the generators of Python and NumPy as they are; what forward drew from them isn't known."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(before[0])
        if numpy:
            numpy.random.set_state(before[1])


def set_rng_state(state: RngState) -> None:
    """Bring back a state of the random number generators."""
    cpu, devices = state
    torch.set_rng_state(cpu)
    for index, device_state in devices:
        torch.cuda.set_rng_state(device_state, index)
