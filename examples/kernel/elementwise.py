"""What stays as it is in Python for another elementwise operation, as elementwise.h does in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TAKEN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def wide(x: Tensor) -> torch.dtype:
    """Return the dtype to compute in, that of the kernels.

    Raises:
        TypeError: The tensor's own is none that kernels take: of an integer's result only the whole part would be left.
    """
    if x.dtype not in TAKEN:
        raise TypeError(
            f"the operation takes float64, float32, bfloat16 and float16 tensors, and one of {x.dtype} came"
        )
    return torch.promote_types(x.dtype, torch.float32)


def batched(operator: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, int]]:
    """Return the vmap rule of an operator on tensors of one shape: the batch is one more dimension, in front."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        def move(argument: Any, dim: int | None) -> Any:
            if not isinstance(argument, Tensor):
                return argument
            # One that is the same for the whole batch is repeated, without a copy.
            return argument.expand(info.batch_size, *argument.shape) if dim is None else argument.movedim(dim, 0)

        return operator(*map(move, arguments, in_dims)), 0

    return rule
