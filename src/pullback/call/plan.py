"""How calls of one class run: PyTorch's C++ ``apply`` beneath, and beside it only what its guards need.

Each class gets, when it is first applied, a twin that PyTorch's C++ ``apply`` runs on: the twin's forward calls the
author's and verifies what it saved (NOTE [layouts]); the node that it makes calls the author's backward. Under
``torch.compile`` Dynamo reads the author's own class and never sees the twin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction
from torch.autograd.function import FunctionMeta

from pullback.call.dependence import Dependence
from pullback.call.frames import without_own_frames
from pullback.call.gradients import by_position, explained
from pullback.call.layout import ATTRIBUTE, CONSTANTS, UNMATERIALIZED, Call, Layout, read_layout
from pullback.call.surroundings import autocast_settings, rng_state, same_rng_state
from pullback.define.definition import Definition, describe
from pullback.errors import PullbackError
from pullback.torch_private import any_autocast_enabled, bound_apply, marked_dirty, tensors_to_save

Differentiate = Callable[["Plan", Any, tuple[Any, ...]], tuple[Any, ...]]

_WATCHED_CALLS = 16  # first calls of new layouts that are watched; a class with more of them is taken as it was seen
_PLAIN_TYPES = (bool, int, str, type(None))


class Plan:
    """One class, ready to be called.

    Args:
        cls: The author's class.
        differentiate: What gives the gradients when they are to be differentiated themselves.

    Attributes:
        definition: What the author wrote.
        call: The C++ ``apply`` of the twin.
        default: What a call is like that carries no `Call` of its own; None before the first call.
        opaque: The arguments whose gradient was seen to be opaque.
    """

    def __init__(self, cls: type[TorchFunction], differentiate: Differentiate) -> None:
        self.cls = cls
        self.definition: Definition = describe(cls)
        self.default: Call | None = None
        self.opaque: set[int] = set()
        self._layouts: dict[tuple[object, ...], Layout] = {}
        self._patterns: set[tuple[object, ...]] = set()
        self._watches = _WATCHED_CALLS
        self._random = False
        self._twin = FunctionMeta(
            cls.__name__,
            (TorchFunction,),
            {
                "forward": staticmethod(self._watched),
                "clear_saved_tensors_on_access": cls.clear_saved_tensors_on_access,
                "boxed_grads_call": cls.boxed_grads_call,
                "__module__": cls.__module__,
                "__qualname__": cls.__qualname__,
            },
        )
        node = _node_class(self, differentiate)
        self._twin._backward_cls = node  # type: ignore[attr-defined]
        cls._backward_cls = node  # type: ignore[attr-defined]
        self.call = bound_apply(self._twin)

    @property
    def remembers(self) -> bool:
        """Whether calls keep what it takes to run forward or its reference again."""
        given = self.definition.reference is not None or self.definition.surrogate is not None
        return given or (self.default is not None and self.default.layout.cuts)

    def call_of(self, ctx: Any) -> Call:
        """What is known of the call that made the node `ctx`."""
        call: Call | None = ctx.__dict__.get(ATTRIBUTE, self.default)
        return call if call is not None else Call(Layout())

    def origin(self, entry: Any) -> str:
        """What a saved tensor is, in words: ``argument x``, ``output 0``, ``an intermediate``."""
        if entry.origin == "argument":
            return f"argument {self.definition.argument_name(entry.index)}"
        if entry.origin == "output":
            return f"output {entry.index}"
        return "a declared constant" if entry.origin == "constant" else "an intermediate"

    def origins(self, ctx: Any) -> list[str]:
        """What each saved tensor of the node `ctx` is, in words."""
        return [self.origin(entry) for entry in self.call_of(ctx).layout.saved]

    def run_forward(self, ctx: Any, arguments: tuple[Any, ...]) -> Any:
        """Run the author's forward, in either style, as PyTorch would."""
        if self.definition.style == "ctx":
            return self.cls.forward(ctx, *arguments)
        output = self.cls.forward(*arguments)
        self.cls.setup_context(ctx, arguments, output)
        return output

    def _watched(self, ctx: Any, *arguments: Any) -> Any:
        """Run forward and learn its layout."""
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if not any(ctx.needs_input_grad):  # an author may save nothing where no gradient is due: nothing to learn
            return self.run_forward(ctx, arguments)
        versions = [tensor._version for tensor in tensors if not tensor.is_inference()]
        before = rng_state()
        watched = None
        if all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors):
            with Dependence(arguments) as watched:
                output = self.run_forward(ctx, arguments)
        else:
            output = self.run_forward(ctx, arguments)
        layout = read_layout(
            ctx.__dict__,
            tensors_to_save(ctx) or (),
            arguments,
            output,
            watched,
            writes=bool(marked_dirty(ctx))
            or versions != [tensor._version for tensor in tensors if not tensor.is_inference()],
            random=not same_rng_state(before, rng_state()),
        )
        self._learn(layout, arguments)
        self._remember(ctx, layout, arguments, before if layout.random else None)
        return output

    def _learn(self, layout: Layout, arguments: tuple[Any, ...]) -> None:
        self._watches -= 1
        self._layouts.setdefault(layout.key, layout)
        self._patterns.add(_pattern(layout.plain, arguments))
        self._random |= layout.random
        if self.default is None:
            self.default = Call(layout)
        # The default stands for every call that carries nothing of its own, so it never changes once it is set.
        self._twin.forward = staticmethod(self._remembering() if self.remembers else self._verifying())  # type: ignore[method-assign]

    def _verifying(self) -> Callable[..., Any]:
        """forward for a class that leaves nothing cut off: compares what was saved with the layout, no more."""
        assert self.default is not None
        cls, differs = self.cls, self._differs
        saved = self.default.layout.saved
        count = len(saved)
        pairs = tuple((k, entry.index) for k, entry in enumerate(saved) if entry.origin == "argument")
        if count == 1 and pairs:
            only = pairs[0][1]

            def agrees(found: Any, arguments: tuple[Any, ...]) -> bool:
                return found is not None and found[0] is arguments[only] and len(found) == 1
        else:

            def agrees(found: Any, arguments: tuple[Any, ...]) -> bool:
                if found is None:
                    return count == 0
                if len(found) != count:
                    return False
                for position, index in pairs:
                    if found[position] is not arguments[index]:
                        return False
                return True

        if self.definition.style == "ctx":

            def forward(ctx: Any, *arguments: Any) -> Any:
                output = cls.forward(ctx, *arguments)
                if not agrees(ctx.to_save, arguments):
                    differs(ctx, arguments, output)
                return output
        else:

            def forward(ctx: Any, *arguments: Any) -> Any:
                output = cls.forward(*arguments)
                cls.setup_context(ctx, arguments, output)
                if not agrees(ctx.to_save, arguments):
                    differs(ctx, arguments, output)
                return output

        return forward

    def _remembering(self) -> Callable[..., Any]:
        """forward for a class whose forward or reference may have to run again."""
        assert self.default is not None
        layout = self.default.layout
        agrees = _same_origins(layout)

        def forward(ctx: Any, *arguments: Any) -> Any:
            if layout.plain and layout.cuts and self._watches > 0:
                if _pattern(layout.plain, arguments) not in self._patterns:
                    return self._watched(ctx, *arguments)
            before = rng_state() if self._random else None
            output = self.run_forward(ctx, arguments)
            if not agrees(ctx.to_save, arguments):
                self._differs(ctx, arguments, output, before)
            elif layout.plain or before is not None or any_autocast_enabled():
                self._remember(ctx, layout, arguments, before)
            return output

        return forward

    def _differs(self, ctx: Any, arguments: tuple[Any, ...], output: Any, rng: Any = None) -> None:
        """The call saved otherwise than the default layout says: give it a layout of its own."""
        if not any(ctx.needs_input_grad):
            return
        layout = read_layout(ctx.__dict__, tensors_to_save(ctx) or (), arguments, output)
        known = self._layouts.get(layout.key)
        if known is None and self._watches > 0:
            self._twin.forward = staticmethod(self._watched)  # type: ignore[method-assign]
        self._remember(ctx, known or layout, arguments, rng)

    def _remember(self, ctx: Any, layout: Layout, arguments: tuple[Any, ...], rng: Any) -> None:
        default = self.default
        same = default is not None and layout == default.layout
        autocast = autocast_settings() if any_autocast_enabled() else None
        if same and rng is None and autocast is None and not (layout.plain and self.remembers):
            return
        plain = tuple(arguments[index] for index in layout.plain)
        setattr(ctx, ATTRIBUTE, Call(layout, plain, autocast, rng))


def _pattern(plain: tuple[int, ...], arguments: tuple[Any, ...]) -> tuple[object, ...]:
    """What of the plain arguments may steer forward into another branch: flags and modes, not measures."""
    values = (arguments[index] for index in plain)
    return tuple(value if type(value) in _PLAIN_TYPES else type(value) for value in values)


def _same_origins(layout: Layout) -> Callable[[Any, tuple[Any, ...]], bool]:
    """Whether each saved tensor is the argument that it is in `layout`, and none of the others is an argument."""
    origins = tuple(entry.index if entry.origin == "argument" else None for entry in layout.saved)
    arity = layout.arity

    def agrees(found: Any, arguments: tuple[Any, ...]) -> bool:
        found = found or ()
        if len(found) != len(origins) or len(arguments) != arity:
            return False
        for tensor, origin in zip(found, origins, strict=True):
            if origin is None:
                for argument in arguments:
                    if tensor is argument:
                        return False
            elif tensor is not arguments[origin]:
                return False
        return True

    return agrees


def _node_class(plan: Plan, differentiate: Differentiate) -> type:
    """The class of the nodes that `plan` makes: runs the author's backward, with guards."""
    cls, definition = plan.cls, plan.definition
    method = (
        "vjp" if definition.backward is not None and definition.backward == getattr(cls, "vjp", None) else "backward"
    )
    uses_names = bool(definition.nondiff_argnames)
    grad_enabled = torch.is_grad_enabled

    def apply(self: Any, *grads: Any) -> Any:
        try:
            if grad_enabled():
                return differentiate(plan, self, grads)
            gradients = getattr(cls, method)(self, *grads)
            if gradients.__class__ is tuple and len(gradients) == len(self.needs_input_grad) and not uses_names:
                for gradient in gradients:
                    if gradient is not None and gradient.__class__ is not Tensor:
                        break
                else:
                    return gradients
            return by_position(definition, self.needs_input_grad, gradients)
        except Exception as error:
            better = explained(definition, self, error, plan.origins(self))
            if isinstance(better, PullbackError):
                better.__traceback__ = without_own_frames(error.__traceback__)
            if better is error:
                raise
            raise better from error

    def apply_contiguous(self: Any, *grads: Any) -> Any:
        return apply(self, *(None if grad is None else grad.contiguous() for grad in grads))

    def save_for_backward(self: Any, *tensors: Any, constants: tuple[Any, ...] = ()) -> None:
        if constants:
            setattr(self, CONSTANTS, len(constants))
            tensors = (*tensors, *constants)
        self.to_save = tensors

    def set_materialize_grads(self: Any, value: bool) -> None:
        self.materialize_grads = value
        setattr(self, UNMATERIALIZED, not value)

    base = cls._backward_cls  # type: ignore[attr-defined]
    body = {
        "apply": apply_contiguous if definition.contiguous_grads else apply,
        "save_for_backward": save_for_backward,
        "set_materialize_grads": set_materialize_grads,
    }
    if cls.boxed_grads_call:
        # The engine calls apply_boxed with one list, which backward may empty as it goes.
        body["apply_boxed"] = body.pop("apply")
    return type(base.__name__, (base,), body)
