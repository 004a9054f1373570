"""The node of a call: what the engine runs in the backward pass, and what forward calls ctx."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.call.casting import around_backward, declares, decorated_wrongly
from pullback.call.constants import NONE, declared_constants
from pullback.call.frames import without_own_frames
from pullback.call.gradients import by_position, explained
from pullback.call.layout import CONSTANTS, UNMATERIALIZED
from pullback.errors import PullbackError

if TYPE_CHECKING:
    from pullback.call.plan import Plan

Differentiate = Callable[["Plan", Any, tuple[Any, ...]], tuple[Any, ...]]
"""Gives the gradients of a node where they are to be differentiated themselves."""


def node_class(plan: Plan, differentiate: Differentiate) -> type:
    """The class of the nodes that `plan` makes: PyTorch's own, which runs the author's backward, with guards."""
    base: type = plan.cls._backward_cls
    body = {
        "__module__": base.__module__,
        "pullback_plan": plan,
        "apply": _apply(plan, differentiate),
        "save_for_backward": _save_for_backward,
        "set_materialize_grads": _set_materialize_grads,
    }
    if plan.definition.boxed:
        # The engine calls apply_boxed with one list, which backward may empty as it goes.
        body["apply_boxed"] = body.pop("apply")
    return type(base.__name__, (base,), body)


def _apply(plan: Plan, differentiate: Differentiate) -> Callable[..., Any]:
    cls, definition, method = plan.cls, plan.definition, plan.definition.method
    uses_names, contiguous = bool(definition.nondiff_argnames), definition.contiguous_grads
    grad_enabled = torch.is_grad_enabled

    def apply(self: Any, *grads: Any) -> Any:
        try:
            if contiguous:
                grads = _contiguous(grads)
            if grad_enabled():
                return differentiate(plan, self, grads)
            gradients = getattr(cls, method)(self, *grads)
            if gradients.__class__ is Tensor:
                if len(self.needs_input_grad) == 1 and not uses_names:
                    return gradients
            elif gradients.__class__ is tuple and len(gradients) == len(self.needs_input_grad) and not uses_names:
                for gradient in gradients:
                    if gradient is not None and gradient.__class__ is not Tensor:
                        break
                else:
                    return gradients
            return by_position(definition, self.needs_input_grad, gradients)
        except PullbackError as error:
            error.__traceback__ = without_own_frames(error.__traceback__)
            raise
        except Exception as error:
            better = decorated_wrongly(definition, error) or explained(
                definition, method, self, grads, error, plan.origins(self)
            )
            if better is error:
                del better  # or this frame and the error would keep each other alive
                raise
            traceback = error.__traceback__ = without_own_frames(error.__traceback__)
            try:
                raise better from error
            except PullbackError:
                better.__traceback__ = traceback
                raise

    if not declares(definition):
        return apply

    def apply_as_declared(self: Any, *grads: Any) -> Any:
        with around_backward(definition, self.__dict__):
            return apply(self, *grads)

    return apply_as_declared


def _save_for_backward(self: Any, *tensors: Any, constants: Any = NONE) -> None:
    if constants is not NONE:
        tensors = (*tensors, *_with_constants(self, constants))
    self.to_save = tensors


def _with_constants(ctx: Any, constants: Any) -> tuple[Any, ...]:
    try:
        declared = declared_constants(constants, type(ctx).pullback_plan.definition.name)
    except PullbackError as error:
        error.__traceback__ = None
        raise
    if declared:
        setattr(ctx, CONSTANTS, tuple(map(id, declared)))
    return declared


# What Python says of a keyword that doesn't exist names the method as authors know it.
_save_for_backward.__qualname__ = "ctx.save_for_backward"


def _set_materialize_grads(self: Any, value: bool) -> None:
    self.materialize_grads = value
    setattr(self, UNMATERIALIZED, not value)


def _contiguous(grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """The cotangents, each contiguous; boxed ones stay in their list, which backward may empty as it goes."""
    for boxed in grads:
        if isinstance(boxed, list):
            boxed[:] = _contiguous(tuple(boxed))
    return tuple(grad.contiguous() if isinstance(grad, Tensor) else grad for grad in grads)
