"""Stand-ins for ctx: what forward or backward sees when it is run outside a call of ``apply``.

They hold no node: a graph that keeps one alive keeps no more than the saved tensors and attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.function import FunctionCtx

from pullback.call.constants import NONE, declared_constants
from pullback.call.layout import CONSTANTS, UNMATERIALIZED


class ForwardStandIn(FunctionCtx):
    """ctx for a run of forward that makes no node; it keeps what forward saves and says.

    Args:
        needs_input_grad: One flag for each argument.
    """

    OWN = frozenset({"needs_input_grad", "to_save", "saved_for_forward", "dirty_tensors", "non_differentiable"})
    """Its attributes that the author didn't put there, beside those of `pullback.call.layout`."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs_input_grad)
        self.to_save: tuple[Any, ...] = ()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What forward has saved so far."""
        return self.to_save

    def save_for_backward(self, *tensors: Any, constants: Any = NONE) -> None:
        """Keep what forward saves; declared constants come last, as on a real call."""
        declared = NONE if constants is NONE else declared_constants(constants, "forward")
        self.to_save = (*tensors, *declared)
        if declared:
            setattr(self, CONSTANTS, tuple(map(id, declared)))

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep what forward saves for jvp."""
        self.saved_for_forward = tensors

    def mark_dirty(self, *args: Any) -> None:
        """Keep which arguments forward says that it changed."""
        self.dirty_tensors = args

    def set_materialize_grads(self, value: bool) -> None:
        """Keep whether undefined gradients stay None."""
        setattr(self, UNMATERIALIZED, not value)


class BackwardStandIn(FunctionCtx):
    """ctx for a run of backward or double_backward on saved tensors of our choosing.

    Args:
        node: The real ctx, for whatever else the author reads of it; None where it must not be kept alive.
        saved_tensors: What ``ctx.saved_tensors`` gives.
        needs_input_grad: One flag for each argument of forward.
        attributes: The attributes that forward left on ctx.
        grad_outputs: What ``ctx.grad_outputs`` gives in double_backward.
    """

    def __init__(
        self,
        node: Any,
        saved_tensors: Sequence[Tensor | None],
        needs_input_grad: Sequence[bool],
        attributes: Mapping[str, Any],
        grad_outputs: Sequence[Tensor | None] | None = None,
    ) -> None:
        self.__dict__.update(attributes)
        self.__dict__["_pullback_node"] = node
        self.saved_tensors = tuple(saved_tensors)
        self.needs_input_grad = tuple(needs_input_grad)
        if grad_outputs is not None:
            self.grad_outputs = tuple(grad_outputs)

    @property
    def saved_variables(self) -> tuple[Tensor | None, ...]:
        """PyTorch's old name of `saved_tensors`."""
        return self.saved_tensors

    def __getattr__(self, name: str) -> Any:
        node = self.__dict__.get("_pullback_node")
        if node is None or name.startswith("__"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(node, name)
