"""The conditions that a call runs under and that its rerun has to find again: random state, autocast, defaults."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Generator, Tensor
from torch.backends.cuda import cudnn_sdp_enabled, flash_sdp_enabled, math_sdp_enabled, mem_efficient_sdp_enabled
from torch.nn.attention import SDPBackend, sdpa_kernel

from pullback.call.surroundings import AUTOCAST_KINDS, autocast_now
from pullback.torch_private import function_modes

_KINDS = tuple(kind for kind in (torch.cuda, getattr(torch, "xpu", None)) if kind is not None)
"""The kinds of devices that have generators of their own, which are there once the first tensor is."""

_ATTENTION = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
    SDPBackend.CUDNN_ATTENTION,
)

States: TypeAlias = tuple[tuple[Generator, Tensor], ...]
"""Generators, each with its state."""

_latest: dict[int, tuple[Tensor, bytes]] = {}
"""The state that each generator was last seen in, by its number: as a tensor, and its bytes."""


def generator_states() -> States:
    """The state of the CPU's random number generator and of each device's that is in use.

    Those that are the same are one tensor: calls that draw nothing, and have nothing drawn between them, share 5,056
    bytes.
    """
    generators = [torch.default_generator]
    for kind in _KINDS:
        if kind.is_initialized():
            generators += kind.default_generators
    return tuple([(generator, _state(number, generator)) for number, generator in enumerate(generators)])


def _state(number: int, generator: Generator) -> Tensor:
    state = generator.get_state()
    # Not compared by an operation: the modes that run around a call would see it, and that of fake tensors refuses it.
    data = ctypes.string_at(state.data_ptr(), state.numel())
    seen = _latest.get(number)
    if seen is not None and seen[1] == data:
        return seen[0]
    _latest[number] = state, data
    return state


class Conditions:
    """What a call finds around it, other than its arguments."""

    __slots__ = ("attention", "autocast", "caches", "device", "dtype", "generators")

    def __init__(self) -> None:
        self.generators = generator_states()
        self.autocast = autocast_now()
        self.caches = torch.is_autocast_cache_enabled()
        self.dtype = torch.get_default_dtype()
        self.device = _default_device()
        self.attention = _attention()

    def restore(self, stack: contextlib.ExitStack) -> None:
        """Bring these conditions back, and with `stack` those of now."""
        stack.callback(_set, [(generator, generator.get_state()) for generator, _ in self.generators])
        _set(self.generators)
        if self.autocast or autocast_now():
            dtypes = dict(self.autocast)
            for kind in AUTOCAST_KINDS:
                on = kind in dtypes
                if on or torch.is_autocast_enabled(kind):
                    entered = torch.autocast(kind, dtypes.get(kind), enabled=on, cache_enabled=self.caches)
                    stack.enter_context(entered)
        if _attention() != self.attention:
            allowed = [kind for kind, on in zip(_ATTENTION, self.attention, strict=True) if on]
            stack.enter_context(sdpa_kernel(allowed))
        if torch.get_default_dtype() is not self.dtype:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(self.dtype)
        if _default_device() != self.device:
            stack.enter_context(self.device or torch.device("cpu"))


def _default_device() -> torch.device | None:
    # It is a mode; asking PyTorch for it takes a hundred times longer than to see that there is no mode.
    return torch.get_default_device() if function_modes() else None


def _attention() -> tuple[bool, ...]:
    """Which of PyTorch's forms of attention are allowed: they save different things."""
    return flash_sdp_enabled(), mem_efficient_sdp_enabled(), math_sdp_enabled(), cudnn_sdp_enabled()


def _set(states: Iterable[tuple[Generator, Tensor]]) -> None:
    for generator, state in states:
        generator.set_state(state)
