"""The global generators that a forward may draw from: torch's, Python's and NumPy's, seeded and put back together."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def own_seed(seed: int, purpose: str) -> int:
    """A seed for one purpose: the same in every run with `seed`, another for another purpose."""
    return zlib.crc32(f"{seed} {purpose}".encode())


def reseed(seed: int, device: torch.device | None = None) -> None:
    """Put every global generator into the state that `seed` gives."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


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
