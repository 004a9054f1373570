"""When an operation may write into a tensor that it has just made, rather than make another.

A new tensor of some megabytes costs more than the arithmetic that fills it: the system maps its pages one by one. So
a temporary that has done its work becomes the result. Not where something follows each step, though: autograd and a
compiler need a tensor for each, and where a batch is run as one, by torch.func or by the ``is_grads_batched`` of
``torch.autograd.grad``, the temporary may lack the axis of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.torch_private import transforms_active
from pullback.transforms.graph import is_batched


def may_write(*given: Tensor) -> bool:
    """Whether nothing follows the steps of a forward or backward but the operation itself.

    Args:
        *given: The cotangents; all else that is computed with can be a batch only under torch.func.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or transforms_active():
        return False
    return not any(map(is_batched, given))


def shaped(fresh: Tensor, shape: torch.Size) -> Tensor:
    """Return `fresh`, a tensor that nobody else has, in another shape; where it can be, not as a view.

    PyTorch refuses to change a view in place that a Function returned, as in ``loss /= steps``.
    """
    if fresh.shape == shape:
        return fresh
    if torch.compiler.is_compiling():
        return fresh.view(shape).clone()  # which a compiler fuses with what made it
    return fresh.resize_(shape) if fresh.is_contiguous() and may_write() else fresh.view(shape)


def times(fresh: Tensor, factor: Tensor) -> Tensor:
    """Return fresh · factor, in the memory of `fresh` where it fits and may be written."""
    fits = fresh.shape == factor.shape and fresh.dtype == factor.dtype and fresh.device == factor.device
    return fresh.mul_(factor) if fits and may_write(factor) else fresh * factor
