"""In which dtype a matrix product runs fast: not every CPU multiplies low precision in hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def _multiplied_by_cpu() -> frozenset[torch.dtype]:
    """The lower dtypes that this CPU has instructions for, as far as torch can tell."""
    told: Callable[[], Mapping[str, Any]] | None = getattr(torch.cpu, "get_capabilities", None)  # not in each torch
    if told is None or not torch.backends.mkldnn.is_available():
        return frozenset()
    capabilities = told()
    return frozenset({torch.bfloat16} if any(map(capabilities.get, ("amx_bf16", "avx512_bf16", "bf16"))) else ())


MULTIPLIED_BY_CPU = _multiplied_by_cpu()
"""What is multiplied as it is on the CPU. Anything lower than float32 beside it goes through float32: without
instructions of its own, its products run at a tenth of the speed or less."""


def multiplied_in(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype in which to multiply matrices of `dtype`."""
    low = dtype in (torch.bfloat16, torch.float16)
    return torch.float32 if low and device.type == "cpu" and dtype not in MULTIPLIED_BY_CPU else dtype
