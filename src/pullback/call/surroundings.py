"""The random and autocast state around a call of forward, brought back for a replay.

NOTE [autocast of a replay]: whether forward ran under autocast isn't asked on every call, which would cost 3% of it.
It shows in what forward saved: a replay under another setting saves something else, so the settings are tried in turn
until one gives what was saved.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
from collections.abc import Iterator

import torch

RngState = tuple[torch.Tensor, tuple[tuple[int, torch.Tensor], ...]]

Autocast = tuple[tuple[str, torch.dtype], ...]
"""Each type of device for which autocast is on, with the dtype that operations are cast to; nothing where it is off."""

AUTOCAST_KINDS = tuple(kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(kind))
"""The types of devices whose autocast is looked at."""


def rng_state() -> RngState:
    """The state of the CPU's random number generator and, where CUDA is in use, of each device's."""
    devices: tuple[tuple[int, torch.Tensor], ...] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices = tuple((index, torch.cuda.get_rng_state(index)) for index in range(torch.cuda.device_count()))
    return torch.get_rng_state(), devices


def autocast_now() -> Autocast:
    """The state of autocast here."""
    on = [kind for kind in AUTOCAST_KINDS if torch.is_autocast_enabled(kind)]
    return tuple([(kind, torch.get_autocast_dtype(kind)) for kind in on])


def autocast_settings() -> tuple[Autocast, ...]:
    """The settings that forward may have run under: off, or on with a dtype."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return ((), *(tuple((kind, dtype) for kind in kinds) for dtype in (torch.bfloat16, torch.float16)))


def under_autocast(autocast: Autocast) -> contextlib.AbstractContextManager[None]:
    """Run a block under this state of autocast. Nothing is put into autocast's table of cast weights."""
    kept = [kind for kind, _ in autocast]
    others = [kind for kind in AUTOCAST_KINDS if kind not in kept and torch.is_autocast_enabled(kind)]
    if not autocast and not others:
        return contextlib.nullcontext()  # as nearly always: a generator takes longer to enter
    return _entered((*autocast, *[(kind, None) for kind in others]))


@contextlib.contextmanager
def _entered(settings: tuple[tuple[str, torch.dtype | None], ...]) -> Iterator[None]:
    """Run a block with autocast on for some types of devices, and off for those without a dtype."""
    if not settings:
        yield
        return
    kind, dtype = settings[0]
    # Dynamo knows autocast in a with statement alone, not on an ExitStack.
    with torch.autocast(kind, dtype=dtype, enabled=dtype is not None, cache_enabled=False), _entered(settings[1:]):
        yield


def same_rng_state(one: RngState, other: RngState) -> bool:
    """Whether nothing was drawn between the two."""
    pairs = zip(one[1], other[1], strict=False)
    return _same_bytes(one[0], other[0]) and all(_same_bytes(a[1], b[1]) for a, b in pairs)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    # Not by an operation: the modes that run around a call would see it, and that of fake tensors refuses it.
    return ctypes.string_at(one.data_ptr(), one.numel()) == ctypes.string_at(other.data_ptr(), other.numel())


@contextlib.contextmanager
def restored(rng: RngState | None, autocast: Autocast) -> Iterator[None]:
    """Run a block with the random state `rng`, if one is given, under this state of autocast."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(under_autocast(autocast))
        if rng is not None:
            stack.enter_context(_rng(rng))
            stack.enter_context(_undisturbed())
        yield


def drawing_again(rng: RngState | None) -> contextlib.AbstractContextManager[None]:
    """Run a block that draws what was drawn from the state `rng` on; for None, one that draws nothing."""
    return contextlib.nullcontext() if rng is None else _rng(rng)


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
