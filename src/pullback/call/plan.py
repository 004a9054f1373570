"""How calls of one class run: PyTorch's C++ ``apply`` beneath, and beside it only what its guards need.

Each class gets, when it is first applied, a twin that PyTorch's C++ ``apply`` runs on: the twin's forward calls the
author's and verifies what it saved (NOTE [layouts]); the node that it makes calls the author's backward. Under
``torch.compile`` Dynamo reads the author's own class and never sees the twin.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.call.casting import keep_state, keeping
from pullback.call.dependence import Dependence, has_values
from pullback.call.layout import ATTRIBUTE, NOT_KEPT, UNMATERIALIZED, Call, Layout, merged, read_layout
from pullback.call.literals import literals_of
from pullback.call.node import Differentiate, node_class
from pullback.call.outputs import flat_outputs, nest_of
from pullback.call.steady import UNLIKE, Steering, flag_key, returned_types, steady_forward
from pullback.call.structure import Given, Structure
from pullback.call.surroundings import rng_state, same_rng_state
from pullback.define.definition import Definition, describe
from pullback.torch_private import (
    FunctionMeta,
    bound_apply,
    clears_on_access,
    marked_dirty,
    move_context,
    tensors_to_save,
    version_of,
)

_WATCHED_CALLS = 16  # first calls of new layouts that are watched; a class with more of them is taken as it was seen

# Arguments that may steer forward into another branch, whose intermediates vary with other arguments.
_FLAG_TYPES = (bool, int, str, type(None))

# Values that a node may keep alive without anybody noticing.
_SMALL_TYPES = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Size)

_LEARNING = threading.RLock()
"""Held where a plan learns from a call, so that what several threads have seen at once is one layout's, not a mix."""


def _learn_anew() -> None:
    """Make the lock again in a process that was forked off while another thread held it, and has no such thread."""
    global _LEARNING
    _LEARNING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_learn_anew)


class ReturnedNest(BaseException):
    """forward has returned a nest to a flat call. Raised through PyTorch's ``apply``; no author is to catch it.

    Args:
        plan: The plan of the flat call.
        ctx: What forward has left for backward; no node was made of it.
        arguments: The arguments.
        output: What forward returned.
        layout: Where the saved tensors come from, if the call was watched.
        rng: The random state before forward, if it was taken down.
    """

    def __init__(
        self, plan: Plan, ctx: Any, arguments: tuple[Any, ...], output: Any, layout: Layout | None, rng: Any
    ) -> None:
        super().__init__()
        self.plan, self.ctx, self.arguments = plan, ctx, arguments
        self.output, self.layout, self.rng = output, layout, rng

    def without_frames(self) -> ReturnedNest:
        """The same without the frames that it went through, which would keep the call alive."""
        self.__traceback__ = None
        return self


class Plan:
    """One class, ready to be called.

    Args:
        cls: The author's class.
        differentiate: What gives the gradients when they are to be differentiated themselves.

    Attributes:
        definition: What the author wrote.
        node: The class of its nodes.
        call: The C++ ``apply`` of the twin.
        default: What a call is like that carries no `Call` of its own; None before the first call.
        read: The arguments that Python numbers, read from tensors in some call, vary with.
        differentiate: The same.
        leafwise: For a class of nests: the plans of its calls' leaves, by the structure of the call.
        remembers: Whether calls keep what it takes to run forward or its reference again.
        returns_nests: Whether a call has returned a nest, so that outputs are to be taken apart.
    """

    def __init__(self, cls: type[TorchFunction], differentiate: Differentiate) -> None:
        self.cls = cls
        self.differentiate = differentiate
        self.leafwise: dict[Structure, Plan] = {}
        self.returns_nests = False
        self.definition: Definition = describe(cls)
        self.remembers = self.definition.reference is not None or self.definition.surrogate is not None
        self.default: Call | None = None
        self._layouts: dict[tuple[object, ...], Layout] = {}
        self._merged: dict[tuple[object, ...], Layout] = {}
        self._by_flags: dict[tuple[object, ...], Layout] = {}
        self._flags: tuple[int, ...] = ()
        self._measures: tuple[int, ...] = ()
        self._small: tuple[int, ...] = ()
        self._watches = _WATCHED_CALLS
        self._random = False
        self._returned: type | tuple[type, ...] | None = None
        self.read: frozenset[int] = frozenset()
        self.node = node_class(self, differentiate)
        self._twin = self._twin_with(self._watched)
        self.call = bound_apply(self._twin)
        # Last: from here on other threads find it. One that has made a plan of its own goes on with that.
        cls._backward_cls = self.node

    def _twin_with(self, forward: Callable[..., Any]) -> Any:
        """A class whose C++ ``apply`` runs `forward` and makes nodes of this plan."""
        body = {
            "forward": staticmethod(forward),
            "clear_saved_tensors_on_access": clears_on_access(self.cls),
            "boxed_grads_call": self.definition.boxed,
            "__module__": self.cls.__module__,
            "__qualname__": self.cls.__qualname__,
        }
        twin = FunctionMeta(self.cls.__name__, (TorchFunction,), body)
        twin._backward_cls = self.node
        return twin

    @functools.cached_property
    def literals(self) -> frozenset[float]:
        """The numbers that stand in the source of forward and setup_context."""
        author: Any = self.definition.cls
        return literals_of(author.forward, author.setup_context)

    def describes(self, cls: type[TorchFunction]) -> bool:
        """Whether the methods of `cls` are still those that it had when it was first applied."""
        now, then = describe(cls), self.definition
        return (now.forward, now.backward, now.style) == (then.forward, then.backward, then.style)

    @property
    def is_leafwise(self) -> bool:
        """Whether the class is one of leaves, made for an author's class of nests."""
        return self.cls is not self.definition.cls

    def resume(self, ran: ReturnedNest) -> Any:
        """Make the node of a call whose forward has run already, on a ctx without a node; gives flat outputs."""

        def forward(ctx: Any, *arguments: Any) -> Any:
            move_context(ran.ctx, ctx)
            if ctx.__dict__.get(UNMATERIALIZED, False):
                ctx.set_materialize_grads(False)
            output = flat_outputs(ctx, ran.output, ran.arguments)
            if ran.layout is None:
                self._differs(ctx, arguments, output, ran.rng)
            else:
                end = ran.layout.arity
                layout = replace(ran.layout, arity=end + 1, plain=(*ran.layout.plain, end))
                self._learn(layout, arguments, output)
                self._remember(ctx, layout, arguments, ran.rng)
            return output

        return bound_apply(self._twin_with(forward))(*ran.arguments, Given())

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
        keep_state(self.definition, ctx)
        if self.definition.style == "ctx":
            return self.cls.forward(ctx, *arguments)
        output = self.cls.forward(*arguments)
        self.cls.setup_context(ctx, arguments, output)
        return output

    def _watch(self, ctx: Any, arguments: tuple[Any, ...]) -> Any:
        """Run forward; learn its layout, where there is something to learn and it can be watched."""
        if not any(ctx.needs_input_grad):  # an author may save nothing where no gradient is due
            output = self.run_forward(ctx, arguments)
            self._other(ctx, arguments, output)
            return output
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if self._watches <= 0 or not all(_can_be_watched(tensor) for tensor in tensors):
            before = rng_state()
            output = self.run_forward(ctx, arguments)
            rng = None if same_rng_state(before, rng_state()) else before
            self._other(ctx, arguments, output, rng)
            self._differs(ctx, arguments, output, rng)
            return output
        versions = [*map(version_of, tensors)]
        before = rng_state()
        with Dependence(arguments, self.literals) as watched:
            output = self.run_forward(ctx, arguments)
        nested = self._nest_of(ctx, output)
        layout = read_layout(
            ctx.__dict__,
            tensors_to_save(ctx) or (),
            arguments,
            output if nested is None else tuple(nested),
            watched,
            writes=bool(marked_dirty(ctx)) or versions != [*map(version_of, tensors)],
            random=not same_rng_state(before, rng_state()),
        )
        rng = before if layout.random else None
        if nested is not None:
            raise ReturnedNest(self, ctx, arguments, output, layout, rng)
        self._learn(layout, arguments, output)
        self._remember(ctx, layout, arguments, rng)
        return output

    def _nest_of(self, ctx: Any, output: Any) -> list[Any] | None:
        """The leaves of a nest that the author's forward returned and PyTorch would make something else of."""
        found = None if self.is_leafwise else nest_of(output)
        if found is None:
            return None
        # Where no gradient is due, a container goes through as it is; of a named tuple PyTorch makes a plain one.
        return found[1] if any(ctx.needs_input_grad) or found[0].spreads else None

    def _other(self, ctx: Any, arguments: tuple[Any, ...], output: Any, rng: Any = None) -> None:
        """Stop a call that returned a nest, so that it is gone on with as one of leaves."""
        if self._nest_of(ctx, output) is not None:
            raise ReturnedNest(self, ctx, arguments, output, None, rng)

    def _learn(self, layout: Layout, arguments: tuple[Any, ...], output: Any) -> None:
        with _LEARNING:
            self._take_down(layout, arguments, output)

    def _take_down(self, layout: Layout, arguments: tuple[Any, ...], output: Any) -> None:
        self._watches -= 1
        self._layouts.setdefault(_situation(layout, arguments), layout)
        self._merged[layout.key] = merged(self._merged.get(layout.key, layout), layout)
        self._random |= layout.random
        self.read |= layout.read
        self.remembers |= bool(layout.read) or layout.cuts
        if self.default is None:
            self.default = Call(layout)
            self._flags = tuple(index for index in layout.plain if type(arguments[index]) in _FLAG_TYPES)
            self._measures = tuple(index for index in layout.plain if type(arguments[index]) is float)
            small_types = (*_SMALL_TYPES, torch.nn.Module, Given) if self.is_leafwise else _SMALL_TYPES
            self._small = tuple(index for index in layout.plain if isinstance(arguments[index], small_types))
            self._returned = None if self.is_leafwise else returned_types(output)
        # The default stands for every call that carries nothing of its own, so it never changes once it is set.
        # Only values that a class may keep for good: another object in a flag's place is watched until that ends.
        small = all(type(arguments[index]) in _FLAG_TYPES for index in self._flags if index < len(arguments))
        if small and len(arguments) == self.default.layout.arity:
            key = flag_key(self._flags, self._measures, arguments)
            # Calls with the same flags may save otherwise, as gradients are due or not: the default's way is looked up.
            if layout.key == self.default.layout.key:
                self._by_flags[key] = layout
            else:
                self._by_flags.setdefault(key, UNLIKE)
        self._twin.forward = staticmethod(self._steady(self.default.layout))

    def _steady(self, layout: Layout) -> Callable[..., Any]:
        """forward for the calls to come: runs the author's, and verifies that `layout` holds."""
        steering = Steering(
            watch=self._watch,
            differs=self._differs,
            flags=self._flags,
            measures=self._measures,
            by_flags=self._by_flags,
            kept=layout.plain if self.remembers else self._small,
            rng=rng_state if self._random else None,
            other=self._other,
            returned=self._returned,
        )
        return keeping(self.definition, steady_forward(self.cls, self.definition, layout, steering))

    def _differs(self, ctx: Any, arguments: tuple[Any, ...], output: Any, rng: Any = None) -> None:
        """The call saved otherwise than the default layout says: give it a layout of its own."""
        if not any(ctx.needs_input_grad):
            return
        layout = read_layout(ctx.__dict__, tensors_to_save(ctx) or (), arguments, output)
        known = self._layouts.get(_situation(layout, arguments))
        if known is None and self._watches > 0:
            self._twin.forward = staticmethod(self._watched)
        elif known is None:
            known = self._merged.get(layout.key)
        self._remember(ctx, known or layout, arguments, rng)

    def _watched(self, ctx: Any, *arguments: Any) -> Any:
        return self._watch(ctx, arguments)

    def _remember(self, ctx: Any, layout: Layout, arguments: tuple[Any, ...], rng: Any) -> None:
        # Of a class that was never watched nothing is known, such as what it keeps on ctx.
        kept = layout.plain if self.remembers or layout.cuts or self.default is None else self._small
        plain = tuple([arguments[index] if index in kept else NOT_KEPT for index in layout.plain])
        setattr(ctx, ATTRIBUTE, (layout, plain, rng))


def _situation(layout: Layout, arguments: tuple[Any, ...]) -> tuple[object, ...]:
    """What one call may have in common with another, so that its intermediates vary with the same arguments."""
    plain = [arguments[index] for index in layout.plain]
    steering = [
        value if type(value) in _FLAG_TYPES else value == 0.0 if type(value) is float else NOT_KEPT for value in plain
    ]
    return (layout.key, *steering)


def _can_be_watched(tensor: Tensor) -> bool:
    """Whether what forward does with `tensor` is what it does with others; without values it draws nothing, say."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and has_values(tensor)
