"""What a check is called under and what it runs under: gradient mode, inference mode, the default device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def default_device() -> torch.device:
    """Where factory functions put tensors now, whether by ``set_default_device`` or by ``with device:``."""
    return torch.empty(0).device


def under(device: torch.device) -> AbstractContextManager[object]:
    """The default device for forward; nothing to enter for the CPU, which the battery runs under.

    backward needs none: PyTorch lets no default device reach what the engine runs.
    """
    return nullcontext() if device.type == "cpu" else device


@contextmanager
def tracking() -> Iterator[None]:
    """Gradients are tracked, whatever the caller's mode: else nothing would be differentiated, and nothing found."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def neutral() -> Iterator[None]:
    """What every probe runs under: gradients tracked, the battery's own tensors on the CPU, warnings unseen."""
    with tracking(), _on_cpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _on_cpu() -> AbstractContextManager[object]:
    return nullcontext() if default_device().type == "cpu" else torch.device("cpu")
