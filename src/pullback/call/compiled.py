"""Calls that ``torch.compile`` traces, as those of one class that Dynamo knows how to take into its graph.

NOTE [compiled calls]: of a class whose metaclass is exactly PyTorch's, Dynamo never runs ``apply``: it traces the
class's forward and backward, and knows nothing of nests, keyword-only arguments or gradients by name.
`pullback.Function` has a metaclass of its own, so Dynamo runs its ``apply`` and comes here. Here everything is plain
Python that Dynamo can follow; it ends in `_Call.apply`, which Dynamo takes as PyTorch's own, with the author's
methods behind it. The guards on second derivatives aren't there: PyTorch refuses to differentiate compiled code twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.function import Function as TorchFunction
from torch.autograd.function import FunctionCtx

from pullback.call.cast_calls import lost
from pullback.call.casting import cast_arguments, casts, declared_now, under_declared
from pullback.call.constants import declared_constants
from pullback.call.gradients import by_position
from pullback.call.leafwise import Methods
from pullback.call.matching import like
from pullback.call.nests import Nest
from pullback.call.outputs import cotangents, flat_outputs, nested
from pullback.call.router import apart
from pullback.call.structure import Given
from pullback.call.traced import TRACED, Facts, prepared
from pullback.errors import CallError
from pullback.torch_private import dual_level, transforms_active

_NO_GRADIENTS = (None, None)
"""The gradients of the arguments that come before the author's."""

_LEADING = len(_NO_GRADIENTS)


def compiled(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call of `cls` in code that is being traced."""
    declared = (cls.cast_inputs, cls.keep_autocast, cls.nondiff_argnames)  # read here, so that they're guarded
    facts = prepared(cls, tuple([type(value) for value in args]), declared)
    if transforms_active() or dual_level() >= 0:
        return getattr(cls, TRACED).refused(cls, *args, **kwargs)
    if facts.flat and not kwargs:
        return nested(_Call.apply(_Flat(cls, facts), facts, *_each_once(args)))
    definition = getattr(cls, TRACED).definition
    cast = definition.cast_inputs if casts(definition) else None
    found = apart(definition, args, kwargs, every_tensor=cast is not None)
    if found is None:
        raise TypeError(f"{definition.name}.forward doesn't take these arguments.")
    structure, leaves, _ = found
    given = leaves
    leaves = _each_once(leaves if cast is None else cast_arguments(cast, leaves))
    copied = [leaf is not old for leaf, old in zip(leaves, given, strict=True)] if cast is not None else []
    if structure is None:
        names = tuple([definition.argument_name(index) for index in range(len(leaves))])
        call: Any = _Flat(cls, facts)
    else:
        names = structure.paths
        call, leaves = _Nested(cls, definition, structure), [*leaves, Given()]
    call.copies = [name if copy else None for name, copy in zip(names, copied, strict=False)]
    return nested(_Call.apply(call, facts, *leaves))


def _each_once(leaves: Sequence[Any]) -> list[Any]:
    """The leaves, a tensor that comes again as a view of it: Dynamo refuses the same tensor twice."""
    found: list[Any] = []
    for leaf in leaves:
        again = isinstance(leaf, Tensor) and any([leaf is other for other in found])
        found.append(leaf.view_as(leaf) if again else leaf)
    return found


def _each_another(author: Any, outputs: Any) -> Any:
    """The outputs of a call.

    Raises:
        CallError: PB515, a tensor comes twice among them, of which Dynamo loses count.
    """
    tensors = [output for output in outputs if isinstance(output, Tensor)] if isinstance(outputs, tuple) else []
    for place, tensor in enumerate(tensors):
        if any([tensor is other for other in tensors[:place]]):
            raise CallError("PB515", f"{author.__name__}.forward returns a tensor twice, which can't be compiled.")
    return outputs


class _Context(FunctionCtx):
    """The ctx that the author's methods get: Dynamo's own, without the arguments that come before the author's."""

    def __init__(self, ctx: Any, author: Any) -> None:
        object.__setattr__(self, "pullback_ctx", ctx)
        object.__setattr__(self, "pullback_author", author)
        object.__setattr__(self, "needs_input_grad", ctx.needs_input_grad[_LEADING:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pullback_ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "needs_input_grad":
            object.__setattr__(self, name, value)
        else:
            setattr(self.pullback_ctx, name, value)

    def save_for_backward(self, *tensors: Any, constants: Any = ()) -> None:
        """Save tensors; what is declared constant, is for second derivatives, of which there are none here."""
        if not isinstance(constants, tuple) or constants:
            tensors = (*tensors, *declared_constants(constants, self.pullback_author.__name__))
        self.pullback_ctx.save_for_backward(*tensors)

    def mark_dirty(self, *tensors: Any) -> None:
        """As in PyTorch."""
        self.pullback_ctx.mark_dirty(*tensors)

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """As in PyTorch."""
        self.pullback_ctx.mark_non_differentiable(*tensors)


class _Flat:
    """A call without nests among its arguments."""

    def __init__(self, author: Any, facts: Facts) -> None:
        self.author = author
        self.facts = facts

    def forward(self, ctx: Any, *arguments: Any) -> Any:
        """Run the author's forward, in either style."""
        if self.facts.style == "ctx":
            output = self.author.forward(ctx, *arguments)
        else:
            output = self.author.forward(*arguments)
            self.author.setup_context(ctx, arguments, output)
        plain = type(output) is tuple and all([isinstance(entry, Tensor) for entry in output])
        return output if plain or isinstance(output, Tensor) else flat_outputs(ctx, output, arguments)

    def arguments(self, leaves: Any) -> Any:
        """The arguments of the call, by position and by keyword."""
        return leaves, {}

    def backward(self, ctx: Any, *grads: Any) -> Any:
        """Run the author's backward."""
        given = cotangents(ctx, tuple(grads[0]) if self.facts.boxed else grads)
        author = getattr(self.author, self.facts.method)
        returned = author(ctx, list(given)) if self.facts.boxed else author(ctx, *given)
        plain = isinstance(returned, tuple) and len(returned) == len(ctx.needs_input_grad) and not self.facts.names
        if plain and all([gradient is None or isinstance(gradient, Tensor) for gradient in returned]):
            return returned
        return by_position(getattr(self.author, TRACED).definition, ctx.needs_input_grad, returned)


class _Nested(Methods):
    """A call with nests among its arguments, which are built anew of their leaves."""

    def forward(self, ctx: Any, *leaves: Any) -> Any:
        """Run the author's forward.

        Raises:
            CallError: PB515, it wrote to a container, which the caller wouldn't see.
        """
        values = self.structure.nested(leaves[:-1])
        outputs = super().forward(ctx, *leaves[:-1], Given(values))
        given = iter(leaves[:-1])
        for name, nest, value in zip(self.structure.names, self.structure.nests, values, strict=True):
            if not _unchanged(nest, value, given):
                raise CallError(
                    "PB515", f"{self.definition.name}.forward writes to {name}, a container: compiled code loses that."
                )
        return outputs


def _unchanged(nest: Nest | None, value: Any, leaves: Iterator[Any]) -> bool:
    """Whether a container still holds the leaves that it was built of; what is taken from `leaves` belongs to it."""
    if nest is None:
        leaf = next(leaves)
        if isinstance(leaf, Tensor) or isinstance(value, Tensor):
            return value is leaf
        return not isinstance(leaf, (int, float, str)) or bool(value == leaf)
    if nest.is_module:
        return all([next(leaves) is not None for _ in nest.parts])
    children = like(nest, value)
    return children is not None and all(
        [_unchanged(part, child, leaves) for part, child in zip(nest.parts, children, strict=True)]
    )


class _Call(TorchFunction):
    """What Dynamo sees: a Function of a call, of facts about it, and of the call's arguments."""

    @classmethod
    def apply(cls, call: Any, _: Facts, *leaves: Any) -> Any:
        """Where Dynamo, which never comes here, has broken its graph and left the call to Python."""
        positional, keywords = call.arguments(leaves)
        return getattr(call.author, TRACED).apply(call.author, *positional, **keywords)

    @staticmethod
    def forward(*arguments: Any) -> Any:
        """Run the author's forward."""
        ctx, call, facts, *leaves = arguments
        ctx.call, ctx.facts = call, facts
        if not facts.declares:  # apart from the rest, since whatever traced code reads is guarded at each call
            return _each_another(call.author, call.forward(_Context(ctx, call.author), *leaves))
        definition = getattr(call.author, TRACED).definition
        ctx.autocast = declared_now(definition)
        with under_declared(ctx.autocast):
            outputs = call.forward(_Context(ctx, call.author), *leaves)
        for name, leaf in zip(call.copies, leaves, strict=False):
            if name is not None and any([leaf is dirty for dirty in ctx.dirty_tensors or ()]):
                raise lost(definition, name)
        return _each_another(call.author, outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Run the author's backward."""
        call = ctx.call
        given = (list(grads),) if ctx.facts.boxed else grads
        if not ctx.facts.declares:
            return (*_NO_GRADIENTS, *call.backward(_Context(ctx, call.author), *given))
        with under_declared(ctx.autocast):
            return (*_NO_GRADIENTS, *call.backward(_Context(ctx, call.author), *given))
