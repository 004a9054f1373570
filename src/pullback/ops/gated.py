"""What the gates have in common: they multiply one tensor by an activation of another, which may be broadcast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.errors import OperationError
from pullback.ops.arguments import check_tensors
from pullback.ops.scratch import may_write


def check_gated(name: str, gate: Tensor, up: Tensor) -> None:
    """Raise where the arguments of a gate can't be multiplied, or have no derivative.

    Raises:
        OperationError: PB130, the shapes don't broadcast, or an argument isn't a tensor of floating-point numbers.
    """
    check_tensors(name, gate=gate, up=up)
    if not (gate.is_floating_point() and up.is_floating_point()):
        raise OperationError(
            "PB130",
            f"{name}: gate and up are multiplied as floating-point numbers.",
            expected="two floating-point tensors",
            got=f"gate of {gate.dtype}, up of {up.dtype}",
            remedy="Convert them, with .float() for instance.",
        )
    if gate.shape == up.shape:
        return
    try:
        torch.broadcast_shapes(gate.shape, up.shape)
    except RuntimeError:
        raise OperationError(
            "PB130",
            f"{name}: gate and up can't be broadcast together.",
            expected="equal sizes along each axis, counted from the last, or 1",
            got=f"gate {tuple(gate.shape)}, up {tuple(up.shape)}",
            remedy="Give both the same shape; the two halves of one projection come from .chunk(2, dim=-1).",
        ) from None


def activation_gradient(operator: Any, g: Tensor, gate: Tensor, **options: Any) -> Tensor:
    """Return g times the derivative of an activation at gate, summed to gate's shape.

    Args:
        operator: PyTorch's operator for the gradient, such as ``torch.ops.aten.silu_backward``.
        g: The cotangent of the activation, broadcast; a tensor of no further use, in which the result may lie.
        gate: Where the activation was taken.
        **options: The activation's.
    """
    at = gate.expand_as(g).to(g.dtype)  # not all of these operators take two dtypes
    in_place = may_write(g)
    gradient: Tensor = operator.grad_input(g, at, **options, grad_input=g) if in_place else operator(g, at, **options)
    return gradient.sum_to_size(gate.shape)
