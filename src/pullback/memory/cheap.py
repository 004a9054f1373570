"""What can be computed again at little cost, from what the graph keeps anyway?

A tensor is cheap if the operation that made it is in the tables below, and all that this operation read is there: kept
by some node, a leaf, or cheap itself, kept or not. So a product of two activations is cheap where what went into the
activations is kept, and relu of a norm is where the norm's input is; the output of a matrix product never is.

NOTE [what an operation read]: its edges lead to what requires grad. Of the rest the graph shows only what the operation
saved. What it doesn't show might be a tensor that nothing keeps, so then nothing is claimed: of ``x + c`` it doesn't
show whether c is a tensor or a number.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.memory.entry import CLOSURE, CTX
from pullback.memory.graph import Edge, Graph, Kept
from pullback.memory.names import argument_names, function_name
from pullback.torch_private import author_of, leaf_behind

_ACTIVATION = "an activation, elementwise"
_ARITHMETIC = "elementwise arithmetic"
_NORM = "a norm, one pass over its input"
_SOFTMAX = "a softmax, one pass over its input"
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
    **dict.fromkeys(("Softmax", "LogSoftmax"), _SOFTMAX),
    **dict.fromkeys(("Clone", "ToCopy"), _COPY),
}
"""By the name of the ``grad_fn``, without ``Backward0``: why computing it again is cheap."""

OWN: Mapping[str, str] = {
    **dict.fromkeys(("SwiGLU", "GeGLU", "ClippedReLU"), _ACTIVATION),
    **dict.fromkeys(("RMSNorm", "LayerNorm"), _NORM),
    **dict.fromkeys(("DropoutAdd", "Rope"), _ARITHMETIC),
}
"""The same for the Functions in `pullback.ops`, by the name of the class."""

_READ: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("Mul", "Div", "Maximum", "Minimum"), ("self", "other")),
    "Addcmul": ("self", "tensor1", "tensor2"),
    "Lerp": ("self", "end", "weight"),
    "Pow": ("self", "exponent"),
    "NativeLayerNorm": ("input", "weight", "bias"),
    "NativeGroupNorm": ("input", "weight"),
    "NativeBatchNorm": ("input", "weight"),
    "FusedRmsNorm": ("input", "weight"),
}
"""Under which names an operation saves what its edges don't lead to, in the order of the edges."""

_NORMS = ("NativeLayerNorm", "NativeGroupNorm", "NativeBatchNorm", "FusedRmsNorm")
"""Operations that needn't be given a weight and a bias."""

_VIEWS = frozenset(
    ("View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Unsqueeze", "Squeeze", "Alias", "Detach")
)
"""Views of all of the same memory."""

_PARTS = frozenset(("Slice", "Select", "Split", "SplitWithSizes", "Unbind", "Narrow", "Expand"))
"""Views of a part of it, or of more than there is."""

_DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")
_SAMPLE = 1024
_DEEPEST = 16
"""How many operations after one another still are little cost."""


class Recomputed:
    """Tells what is cheap among the tensors that a graph keeps.

    Args:
        graph: The graph.
        storages: For each tensor that it keeps the identity of its storage; None where it shows none.
    """

    def __init__(self, graph: Graph, storages: Iterable[int | None]) -> None:
        self._followers = graph.followers
        self._kept: dict[Edge, set[int]] = {}
        self._constants: dict[Any, set[str]] = {}
        self._known: dict[Edge, bool] = {}
        for one, storage in zip(graph.kept, storages, strict=True):
            if one.edge is None:
                self._constants.setdefault(one.node, set()).add(one.argument)
            elif storage is not None:
                self._kept.setdefault(source(one.edge), set()).add(storage)

    def how(self, kept: Sequence[Kept], storage: int, module_kinds: Sequence[str]) -> str:
        """How one piece of memory can be computed again cheaply; empty where it can't.

        Args:
            kept: The tensors in it.
            storage: The identity of its storage.
            module_kinds: For each the class of the module that was running.
        """
        if any(one.how in (CTX, CLOSURE) for one in kept):  # which no rerun frees
            return ""
        for one, kind in zip(kept, module_kinds, strict=True):
            if _is_mask(one, kind):
                if self.added(one.node) or self._has_read(one.node, storage, _DEEPEST):
                    return MASK
            elif one.edge is not None:
                made = source(one.edge)
                if self._reason(made) and self._has_read(made[0], storage, _DEEPEST):
                    return f"{operation_of(made[0])}: {self._reason(made)}"
        return ""

    def keeps(self, edge: Edge, storage: int) -> bool:
        """Whether what leaves the graph at `edge` is kept in another storage than this, or is a leaf."""
        return leaf_behind(edge[0]) is not None or bool(self._kept.get(source(edge), set()) - {storage})

    def steps(self, edge: Edge, depth: int = _DEEPEST) -> list[Any]:
        """The nodes whose operations are done again for what is cheap at `edge`, in the order of forward."""
        node, _ = source(edge)
        nodes: list[Any] = []
        for before in node.next_functions if depth else ():
            if before[0] is not None and leaf_behind(before[0]) is None and source(before) not in self._kept:
                nodes += [one for one in self.steps(before, depth - 1) if one not in nodes]
        return [*nodes, node]

    def added(self, node: Any) -> bool:
        """Whether the next thing that is done with a node's result is that it is added to something."""
        following = set(self._followers.get(node, ()))
        return len(following) == 1 and base_name(following.pop()) == "Add"

    def _reason(self, edge: Edge) -> str:
        node, output = edge
        if output:
            return ""
        cls = author_of(node)
        if cls is None:
            return CHEAP.get(base_name(node), "")
        return OWN.get(cls.__name__, "") if cls.__module__.startswith("pullback.ops.") else ""

    def _has_read(self, node: Any, storage: int | None, depth: int) -> bool:
        """Whether all that a node read is there; what `storage` has doesn't count."""
        edges = node.next_functions
        unknown = [place for place, (following, _) in enumerate(edges) if following is None]
        if unknown and not self._has_constants(node, unknown):
            return False
        return all(self._is_there(edge, storage, depth) for edge in edges if edge[0] is not None)

    def _is_there(self, edge: Edge, storage: int | None, depth: int) -> bool:
        if leaf_behind(edge[0]) is not None:
            return True
        made = source(edge)
        kept = self._kept.get(made)
        if kept is not None:
            return bool(kept - {storage})
        if made not in self._known:
            node = made[0]
            cheap = depth > 0 and bool(base_name(node) in _PARTS or self._reason(made))
            self._known[made] = cheap and self._has_read(node, storage, depth - 1)
        return self._known[made]

    def _has_constants(self, node: Any, places: Sequence[int]) -> bool:
        saved = self._constants.get(node, set())
        if author_of(node) is not None:
            return len(places) <= len(saved & set(argument_names(node)))
        name = base_name(node)
        names = _READ.get(name, ())
        for place in places:
            if place >= len(names):
                # Of a group or batch norm's bias only the weight beside it tells that there is none.
                if name not in _NORMS or getattr(node, "_saved_weight", None) is not None:
                    return False
            elif names[place] not in saved and (name not in _NORMS or _given(node, names[place])):
                return False
        return True


def _given(node: Any, argument: str) -> bool:
    return getattr(node, f"_saved_{argument}", argument) is not None


def operation_of(node: Any) -> str:
    """What to call a node's operation."""
    return type(node).__name__ if author_of(node) is None else function_name(node)


def base_name(node: Any) -> str:
    """``Mul`` of ``MulBackward0``; a Function of Python's that is called Mul has nodes of class ``MulBackward``."""
    return _without_number(type(node).__name__)


@functools.cache
def _without_number(name: str) -> str:
    return re.sub(r"Backward\d+$", "", name)


def source(edge: Edge) -> Edge:
    """The place in the graph that a tensor is a view of, as far as it is one of all of its memory."""
    node, output = edge
    while base_name(node) in _VIEWS:
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
    return module_kind in _DROPOUTS or _looks_like_a_mask(one.tensor)


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
