"""The global generators that a forward may draw from: torch's, Python's and NumPy's, seeded and put back together."""

from __future__ import annotations

import functools
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@functools.lru_cache(maxsize=64)
def own_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose: the same in every run with `seed`, another for another purpose."""
    return zlib.crc32(f"{seed} {purpose}".encode())


@functools.lru_cache(maxsize=4)
def _seeded(seed: int) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The states of torch's and of Python's generator: to set them takes half the time of making them anew."""
    return torch.Generator().manual_seed(seed).get_state(), random.Random(seed).getstate()


def reseed(seed: int, device: torch.device | None = None) -> None:
    """Put every global generator into the state that `seed` gives."""
    of_torch, of_python = _seeded(seed)
    torch.default_generator.set_state(of_torch)
    random.setstate(of_python)
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def is_generator(value: object) -> bool:
    """Whether it is a generator that a forward may be given to draw from."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, (torch.Generator, random.Random)) or (
        numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))
    )


def putting_back(generator: Any) -> Callable[[], object]:
    """What puts a generator back into the state that it has now."""
    for read, write in (("get_state", "set_state"), ("getstate", "setstate")):  # torch's and NumPy's old, Python's
        if hasattr(generator, read):
            return functools.partial(getattr(generator, write), getattr(generator, read)())
    return functools.partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)


def states(device: torch.device | None = None) -> tuple[object, ...]:
    """The state of every global generator, to be compared: who draws moves one of them."""
    found: list[object] = [random.getstate(), torch.default_generator.get_state().numpy(force=True).tobytes()]
    if device is not None and device.type == "cuda":
        found.append(torch.cuda.get_rng_state(device).numpy(force=True).tobytes())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        found.append((kind, keys.tobytes(), *rest))
    return tuple(found)


def names_of_states(device: torch.device | None = None) -> tuple[str, ...]:
    """Whose states `states` gives, in its order."""
    cuda = ("torch.cuda",) if device is not None and device.type == "cuda" else ()
    return ("random", "torch", *cuda, *(("numpy.random",) if "numpy" in sys.modules else ()))


@contextmanager
def preserved(device: torch.device | None = None) -> Iterator[None]:
    """Leave every global generator as it was."""
    devices = [device.index or 0] if device is not None and device.type == "cuda" else []
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
