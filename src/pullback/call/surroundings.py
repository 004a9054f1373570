"""The random and autocast state around a call of forward, to be taken down and brought back for a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

RngState = tuple[torch.Tensor, tuple[tuple[int, torch.Tensor], ...]]
Autocast = tuple[tuple[str, bool, torch.dtype], ...]


def rng_state() -> RngState:
    """The state of the CPU's random number generator and, where CUDA is in use, of each device's."""
    devices: tuple[tuple[int, torch.Tensor], ...] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices = tuple((index, torch.cuda.get_rng_state(index)) for index in range(torch.cuda.device_count()))
    return torch.get_rng_state(), devices


def same_rng_state(one: RngState, other: RngState) -> bool:
    """Whether nothing was drawn between the two."""
    pairs = zip(one[1], other[1], strict=False)
    return torch.equal(one[0], other[0]) and all(torch.equal(a[1], b[1]) for a, b in pairs)


def autocast_settings() -> Autocast:
    """For each device type in use: its name, whether autocast is on, and its dtype."""
    kinds = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    return tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds)


@contextlib.contextmanager
def restored(rng: RngState | None, autocast: Autocast | None) -> Iterator[None]:
    """Run a block as forward ran: with its random state, if one is given, and its autocast settings (None: all off)."""
    settings = autocast or tuple((kind, False, dtype) for kind, _, dtype in autocast_settings())
    with contextlib.ExitStack() as stack:
        for kind, enabled, dtype in settings:
            if enabled or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
        if rng is not None:
            stack.enter_context(_rng(rng))
        yield


@contextlib.contextmanager
def _rng(state: RngState) -> Iterator[None]:
    now = rng_state()
    _set(state)
    try:
        yield
    finally:
        _set(now)


def _set(state: Any) -> None:
    cpu, devices = state
    torch.set_rng_state(cpu)
    for index, device_state in devices:
        torch.cuda.set_rng_state(device_state, index)
