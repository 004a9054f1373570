"""What recompute asks of a call's surroundings."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pullback import torch_private as private


def _counts_modes() -> bool:
    before = private.function_modes()
    with torch.device("meta"):
        return private.function_modes() == before + 1


PROBES: tuple[tuple[str, Callable[[], bool]], ...] = (("torch._C._len_torch_function_stack", _counts_modes),)
"""Names, and the trial of what they do."""
