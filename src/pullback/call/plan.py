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
from pullback.call.layout import ATTRIBUTE, NOT_KEPT, Call, Layout, read_layout
from pullback.call.literals import literals_of
from pullback.call.node import Differentiate, node_class
from pullback.call.steady import Steering, flag_key, steady_forward
from pullback.call.surroundings import rng_state, same_rng_state
from pullback.define.definition import Definition, describe
from pullback.torch_private import FunctionMeta, bound_apply, marked_dirty, tensors_to_save

_WATCHED_CALLS = 16  # first calls of new layouts that are watched; a class with more of them is taken as it was seen

# Arguments that may steer forward into another branch, whose intermediates vary with other arguments.
_FLAG_TYPES = (bool, int, str, type(None))

# Values that a node may keep alive without anybody noticing.
_SMALL_TYPES = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Size)


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
        read: The arguments that Python numbers, read from tensors in some call, vary with.
    """

    def __init__(self, cls: type[TorchFunction], differentiate: Differentiate) -> None:
        self.cls = cls
        self.definition: Definition = describe(cls)
        self.method = "vjp" if cls.vjp is not TorchFunction.vjp else "backward"
        self.default: Call | None = None
        self._layouts: dict[tuple[object, ...], Layout] = {}
        self._by_flags: dict[tuple[object, ...], Layout] = {}
        self._flags: tuple[int, ...] = ()
        self._measures: tuple[int, ...] = ()
        self._small: tuple[int, ...] = ()
        self._watches = _WATCHED_CALLS
        self._random = False
        self.read: frozenset[int] = frozenset()
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
        return given or bool(self.read) or (self.default is not None and self.default.layout.cuts)

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

    def _watch(self, ctx: Any, arguments: tuple[Any, ...]) -> Any:
        """Run forward; learn its layout, where there is something to learn and it can be watched."""
        if not any(ctx.needs_input_grad):  # an author may save nothing where no gradient is due
            return self.run_forward(ctx, arguments)
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        if self._watches <= 0 or not all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors):
            output = self.run_forward(ctx, arguments)
            self._differs(ctx, arguments, output)
            return output
        versions = [tensor._version for tensor in tensors if not tensor.is_inference()]
        before = rng_state()
        with Dependence(arguments, self.literals) as watched:
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
        self._random |= layout.random
        self.read |= layout.read
        if self.default is None:
            self.default = Call(layout)
            self._flags = tuple(index for index in layout.plain if type(arguments[index]) in _FLAG_TYPES)
            self._measures = tuple(index for index in layout.plain if type(arguments[index]) is float)
            self._small = tuple(index for index in layout.plain if isinstance(arguments[index], _SMALL_TYPES))
        # The default stands for every call that carries nothing of its own, so it never changes once it is set.
        # Only values that a class may keep for good: another object in a flag's place is watched until that ends.
        small = all(type(arguments[index]) in _FLAG_TYPES for index in self._flags if index < len(arguments))
        if small and len(arguments) == self.default.layout.arity:
            self._by_flags[flag_key(self._flags, self._measures, arguments)] = layout
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
        )
        return steady_forward(self.cls, self.definition, layout, steering)

    def _differs(self, ctx: Any, arguments: tuple[Any, ...], output: Any, rng: Any = None) -> None:
        """The call saved otherwise than the default layout says: give it a layout of its own."""
        if not any(ctx.needs_input_grad):
            return
        layout = read_layout(ctx.__dict__, tensors_to_save(ctx) or (), arguments, output)
        known = self._layouts.get(layout.key)
        if known is None and self._watches > 0:
            self._twin.forward = staticmethod(self._watched)
        self._remember(ctx, known or layout, arguments, rng)

    def _watched(self, ctx: Any, *arguments: Any) -> Any:
        return self._watch(ctx, arguments)

    def _remember(self, ctx: Any, layout: Layout, arguments: tuple[Any, ...], rng: Any) -> None:
        kept = layout.plain if self.remembers else self._small
        plain = tuple([arguments[index] if index in kept else NOT_KEPT for index in layout.plain])
        setattr(ctx, ATTRIBUTE, (layout, plain, rng))
