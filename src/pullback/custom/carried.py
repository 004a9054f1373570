"""A rule for tangents in code that ``torch.compile`` traces, where backward can't call autograd to transpose it.

NOTE [carried]: the rule runs beside the function, on tangents that carry the gradients of the arguments: t = carried(x)
has any values, and its gradient is x's. The rule's tangent J t is a computation of the graph like others, so what is
traced has its transpose; the result takes its values from the function and its gradient from J t. Primals are cut off,
as the derivative of J isn't part of the first derivative, and there is no second one through compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction
from torch.nn import Module

from pullback.call.dependence import is_smooth
from pullback.custom.nests import apart, together
from pullback.custom.tangents import completed, leaves_like
from pullback.transforms.func.primitive import somewhere


class _Carried(TorchFunction):
    """(value, carrier) ↦ value, as if it were the carrier: the cotangent of the result is that of the carrier."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, carrier: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return None, grad_output


_carry: Any = _Carried.apply


def carries(primals: Any) -> bool:
    """Whether a rule can be run on `primals` in this way: where something is tracked, and there is no module."""
    tensors, others, _ = apart(primals)
    return _tracked(tensors) != [] and not any([isinstance(other, Module) for other in others])


def carried(name: str, run: Callable[[Any, Any], tuple[Any, Any]], primals: Any) -> Any:
    """The function's result at `primals`, whose gradient is the transpose of the rule's tangent.

    Args:
        name: The function's name, for errors.
        run: The rule: takes primals and tangents, returns the result and its tangent.
        primals: The arguments, a nest without modules.
    """
    tensors, others, shape = apart(primals)
    every: list[Tensor | None] = [None] * len(tensors)
    for index in _tracked(tensors):
        every[index] = _carry(somewhere(tensors[index].detach()), tensors[index])
    cut = together([tensor.detach() for tensor in tensors], others, shape)
    result, tangent = run(cut, completed(every, tensors, others, shape))
    values, rest, form = apart(result)
    leaves = []
    for value, own in zip(values, leaves_like(name, tangent, result), strict=True):
        follows = own is not None and own.requires_grad and is_smooth(value)
        leaves.append(_carry(value.detach(), own) if follows else value.detach())
    return together(leaves, rest, form)


def _tracked(tensors: list[Tensor]) -> list[int]:
    if not torch.is_grad_enabled():
        return []
    return [index for index, tensor in enumerate(tensors) if tensor.requires_grad and is_smooth(tensor)]
