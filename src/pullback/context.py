"""The type to annotate `ctx` with: what an author finds on it, and nothing of how PyTorch builds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Context(Protocol):
    """`ctx`, as `forward`, `setup_context`, `backward` and `double_backward` see it.

    It is for annotations alone: PyTorch's own class leaves out half of what authors use, and returns nothing typed.
    Any other attribute may be set and read too, a misspelt one as well. Annotate with a subclass that lists yours to
    have their types checked.

    Attributes:
        needs_input_grad: One flag for each argument of `forward`: whether its gradient is wanted.
        saved_tensors: What was saved, in order. Each read unpacks them anew.
        grad_outputs: In `double_backward`, the cotangents that `backward` received.
    """

    needs_input_grad: tuple[bool, ...]

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """What `save_for_backward` was given, in order."""

    @property
    def grad_outputs(self) -> tuple[Tensor, ...]:
        """In `double_backward`, the cotangents that `backward` received."""

    def save_for_backward(self, *tensors: Tensor | None, constants: Sequence[Tensor] = ()) -> None:
        """Keep tensors for `backward`; those that don't vary with the arguments may be declared as constants."""

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `jvp`."""

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say which arguments `forward` changed in place."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which outputs have no gradient."""

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether the gradient of an unused output arrives as zeros (the default) or as `None`."""

    def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None: ...
