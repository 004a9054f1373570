"""How calls of one class run: PyTorch's C++ ``apply`` beneath, and beside it only what its guards need.

Each class gets, when it is first applied, a twin that PyTorch's C++ ``apply`` runs on: the twin's forward calls the
author's and verifies what it saved (NOTE [layouts]); the node that it makes calls the author's backward. Under
``torch.compile`` Dynamo reads the author's own class and never sees the twin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.call.dependence import Dependence
from pullback.call.layout import ATTRIBUTE, Call, Layout, read_layout
from pullback.call.literals import literals_of
from pullback.call.node import Differentiate, node_class
from pullback.call.steady import steady_forward
from pullback.call.surroundings import rng_state, same_rng_state
from pullback.define.definition import Definition, describe
from pullback.torch_private import FunctionMeta, bound_apply, marked_dirty, tensors_to_save

_WATCHED_CALLS = 16  # first calls of new layouts that are watched; a class with more of them is taken as it was seen
_UNSEEN = object()
_PLAIN_TYPES = (bool, int, str, type(None))


class Plan:
    """One class, ready to be called.

    Args:
        cls: The author's class.
        differentiate: What gives the gradients when they are to be differentiated themselves.

    Attributes:
        definition: What the author wrote.
        method: The name under which the author wrote backward: ``backward`` or ``vjp``.
        call: The C++ ``apply`` of the twin.
        default: What a call is like that carries no `Call` of its own; None before the first call.
    """

    def __init__(self, cls: type[TorchFunction], differentiate: Differentiate) -> None:
        self.cls = cls
        self.definition: Definition = describe(cls)
        self.method = "vjp" if cls.vjp is not TorchFunction.vjp else "backward"
        self.default: Call | None = None
        self._layouts: dict[tuple[object, ...], Layout] = {}
        self._patterns: set[tuple[object, ...]] = set()
        self._watches = _WATCHED_CALLS
        self._random = False
        self._flagged = False
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
        node = node_class(self, differentiate)
        self._twin._backward_cls = node
        cls._backward_cls = node
        self.call = bound_apply(self._twin)

    @functools.cached_property
    def literals(self) -> frozenset[float]:
        """The numbers that stand in the source of forward and setup_context."""
        return literals_of(self.cls.forward, self.cls.setup_context)

    @property
    def remembers(self) -> bool:
        """Whether calls keep what it takes to run forward or its reference again."""
        given = self.definition.reference is not None or self.definition.surrogate is not None
        return given or (self.default is not None and self.default.layout.cuts)

    def describes(self, cls: type[TorchFunction]) -> bool:
        """Whether the methods of `cls` are still those that it had when it was first applied."""
        now, then = describe(cls), self.definition
        return (now.forward, now.backward, now.style) == (then.forward, then.backward, then.style)

    def call_of(self, ctx: Any) -> Call:
        """What is known of the call that made the node `ctx`."""
        remembered = ctx.__dict__.get(ATTRIBUTE)
        return Call(*remembered) if remembered is not None else self.default or Call(Layout())

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
            with Dependence(arguments, self.literals) as watched:
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
        self._flagged |= any(type(arguments[index]) in _PLAIN_TYPES for index in layout.plain)
        if self.default is None:
            self.default = Call(layout)
        # The default stands for every call that carries nothing of its own, so it never changes once it is set.
        self._twin.forward = staticmethod(self._steady(self.default.layout))

    def _steady(self, layout: Layout) -> Callable[..., Any]:
        """forward for the calls to come: runs the author's, and verifies that `layout` holds."""
        if self._flagged or (self.remembers and (layout.plain or self._random)):
            return self._remembering(layout)
        return steady_forward(self.cls, self.definition, layout, self._differs)

    def _remembering(self, layout: Layout) -> Callable[..., Any]:
        """forward for a class that flags may steer, or that may have to run again with values that aren't tensors."""
        pairs = tuple((k, entry.index) for k, entry in enumerate(layout.saved) if entry.origin == "argument")
        plain, last = layout.plain, [_UNSEEN] * len(layout.plain)

        def forward(ctx: Any, *arguments: Any) -> Any:
            if len(arguments) == layout.arity:
                # Another flag may steer forward into another branch, whose intermediates vary with other arguments.
                for place, index in enumerate(plain):
                    if arguments[index] is not last[place]:
                        last[:] = [arguments[k] for k in plain]
                        if self._watches > 0 and _pattern(plain, arguments) not in self._patterns:
                            return self._watched(ctx, *arguments)
                        break
            before = rng_state() if self._random else None
            output = self.run_forward(ctx, arguments)
            saved = ctx.to_save or ()
            if len(saved) == len(layout.saved) and len(arguments) == layout.arity:
                if all(saved[position] is arguments[index] for position, index in pairs):
                    self._remember(ctx, layout, arguments, before)
                    return output
            self._differs(ctx, arguments, output, before)
            return output

        return forward

    def _differs(self, ctx: Any, arguments: tuple[Any, ...], output: Any, rng: Any = None) -> None:
        """The call saved otherwise than the default layout says: give it a layout of its own."""
        if not any(ctx.needs_input_grad):
            return
        layout = read_layout(ctx.__dict__, tensors_to_save(ctx) or (), arguments, output)
        known = self._layouts.get(layout.key)
        if known is None and self._watches > 0:
            self._twin.forward = staticmethod(self._watched)
        self._remember(ctx, known or layout, arguments, rng)

    def _remember(self, ctx: Any, layout: Layout, arguments: tuple[Any, ...], rng: Any) -> None:
        default = self.default
        same = default is not None and layout == default.layout
        if same and rng is None and not (layout.plain and self.remembers):
            return
        setattr(ctx, ATTRIBUTE, (layout, tuple([arguments[index] for index in layout.plain]), rng))


def _pattern(plain: tuple[int, ...], arguments: tuple[Any, ...]) -> tuple[object, ...]:
    """What of the plain arguments may steer forward into another branch: flags and modes, not measures."""
    values = (arguments[index] for index in plain)
    return tuple(value if type(value) in _PLAIN_TYPES else type(value) for value in values)
