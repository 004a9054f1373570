"""What operations ask of their arguments before they compute: tensors, and numbers within bounds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pullback.errors import OperationError


def check_tensors(name: str, optional: tuple[str, ...] = (), **given: Any) -> None:
    """Refuse what is no tensor.

    Args:
        name: What the user called.
        optional: The arguments that may be None.
        **given: The arguments, by name.

    Raises:
        OperationError: PB130, naming the first argument that is none.
    """
    for argument, value in given.items():
        if not isinstance(value, Tensor) and (value is not None or argument not in optional):
            raise OperationError(
                "PB130",
                f"{name}: `{argument}` is no tensor.",
                expected="a torch.Tensor" + (", or None" if argument in optional else ""),
                got=type(value).__name__,
                remedy=f"Make one of it, as by torch.as_tensor({argument}).",
            )


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether it is a real number from low to high, as Python or NumPy have them; a tensor is none, and NaN isn't."""
    if isinstance(value, Tensor):
        return False
    try:
        return bool(low <= value <= high)
    except (TypeError, ValueError):  # what has no order, or an array of them
        return False


def is_index(value: Any) -> bool:
    """Whether it is an integer of 64 bits, as Python or NumPy have them; a tensor is none."""
    return (isinstance(value, int) or hasattr(value, "__index__")) and is_number(value, -(2**63), 2**63 - 1)


def check_eps(name: str, eps: Any) -> None:
    """Refuse what can't be added to a variance.

    Raises:
        OperationError: PB130, eps isn't a number.
    """
    if not is_number(eps):
        raise OperationError(
            "PB130",
            f"{name}: `eps` is no number.",
            expected="a Python number, such as 1e-5",
            got=repr(eps),
            remedy="Give a tensor's value as eps.item(); it has no gradient.",
        )


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for a device; some, such as meta, have none."""
    kind = device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
