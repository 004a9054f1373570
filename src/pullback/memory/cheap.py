"""What can be computed again at little cost, from what the graph keeps anyway?

A tensor is cheap if the operation that made it is in the table below, and all that this operation read is kept: by some
node, as a leaf, or as a tensor that is cheap itself. So a product of two activations is cheap where what went into the
activations is kept; the output of a matrix product never is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from pullback.memory.graph import Edge, Kept
from pullback.torch_private import leaf_behind

_ACTIVATION = "an activation, elementwise"
_ARITHMETIC = "elementwise arithmetic"
_NORM = "a norm, one pass over its input"
_COPY = "a copy, or a cast"
MASK = "a dropout mask, drawn again from the state of the generator"

CHEAP: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("Silu", "Gelu", "Relu", "LeakyRelu", "Elu", "Celu", "Hardswish", "Hardsigmoid", "Hardtanh", "Mish"),
            *("Softplus", "LogSigmoid", "Sigmoid", "Tanh", "Softshrink", "Hardshrink", "Threshold", "Glu"),
        ),
        _ACTIVATION,
    ),
    **dict.fromkeys(
        (
            *("Add", "Sub", "Rsub", "Mul", "Div", "Neg", "Abs", "Pow", "Sqrt", "Rsqrt", "Reciprocal", "Exp"),
            *("Log", "Log1P", "Sin", "Cos", "Erf", "Clamp", "ClampMin", "ClampMax", "Where", "MaskedFill", "Addcmul"),
            *("Lerp", "Maximum", "Minimum"),
        ),
        _ARITHMETIC,
    ),
    **dict.fromkeys(("NativeLayerNorm", "NativeGroupNorm", "NativeBatchNorm", "FusedRmsNorm"), _NORM),
    **dict.fromkeys(("Clone", "ToCopy"), _COPY),
}
"""By the name of the ``grad_fn``, without ``Backward0``: why computing it again is cheap."""

_VIEWS = frozenset(
    ("View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Unsqueeze", "Squeeze", "Alias", "Detach")
)
"""Other views of all of the same memory."""

_SAMPLE = 1024


class Recomputed:
    """Tells what is cheap among the tensors that a graph keeps.

    Args:
        kept: All of them.
        storages: For each of them the identity of its storage; None where it shows none.
    """

    def __init__(self, kept: Iterable[Kept], storages: Iterable[int | None]) -> None:
        self._kept: dict[Edge, set[int]] = {}
        self._constants: dict[Any, int] = {}
        for one, storage in zip(kept, storages, strict=True):
            if storage is None:
                continue
            if one.edge is not None:
                self._kept.setdefault(_source(one.edge), set()).add(storage)
            elif not one.tensor.requires_grad:
                self._constants[one.node] = self._constants.get(one.node, 0) + 1

    def how(self, one: Kept, storage: int, module_kind: str) -> str:
        """How a kept tensor can be computed again cheaply; empty where it can't."""
        if one.edge is None:
            return MASK if _is_mask(one, module_kind) else ""
        node, output = _source(one.edge)
        reason = CHEAP.get(_base_name(node), "")
        if not reason or output or not self._has_inputs(node, storage):
            return ""
        return f"{type(node).__name__}: {reason}"

    def _has_inputs(self, node: Any, storage: int) -> bool:
        constants = 0
        for following, number in node.next_functions:
            if following is None:
                constants += 1
            elif leaf_behind(following) is None and not self._kept.get(_source((following, number)), set()) - {storage}:
                return False
        return constants <= self._constants.get(node, 0)


def _base_name(node: Any) -> str:
    return _without_number(type(node).__name__)


@functools.cache
def _without_number(name: str) -> str:
    """``Mul`` of ``MulBackward0``; a Function of Python's that is called Mul has nodes of class ``MulBackward``."""
    return re.sub(r"Backward\d+$", "", name)


def _source(edge: Edge) -> Edge:
    """The place in the graph that a tensor is a view of, as far as it is one of all of its memory."""
    node, output = edge
    while _base_name(node) in _VIEWS:
        following, number = node.next_functions[0]
        if following is None:
            break
        node, output = following, number
    return node, output


def _is_mask(one: Kept, module_kind: str) -> bool:
    """Whether this is what dropout multiplied by, which nothing in the graph says."""
    if one.operation.startswith("NativeDropoutBackward"):
        return one.argument == "result1"
    if not one.operation.startswith("MulBackward") or one.tensor.requires_grad:
        return False
    return "Dropout" in module_kind or _looks_like_a_mask(one.tensor)


def _looks_like_a_mask(tensor: Tensor) -> bool:
    """Whether the first elements are all 0 or one number above 1. Asked on the CPU only, as it reads them."""
    if tensor.device.type != "cpu" or type(tensor) is not Tensor or not tensor.is_floating_point():
        return False
    if not tensor.is_contiguous() or tensor.numel() < 16:
        return False
    with torch.no_grad():
        head = tensor.view(-1)[:_SAMPLE]
        scale = head.max()
        both = bool((head == 0).any()) and float(scale) > 1
        return both and bool(((head == 0) | (head == scale)).all())
