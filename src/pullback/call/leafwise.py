"""A Function of nests as a Function of their leaves.

All that looks at a call (layouts, replays, transforms) knows flat Functions: tensors and plain objects in, tensors out.
For each structure of a call a class is made whose methods take and return leaves and call the author's with nests.

NOTE [flags of nests]: ``ctx.needs_input_grad`` has one entry for each leaf, as everything beneath reads it. While a
method of the author runs it has one for each argument.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.autograd.function import Function as TorchFunction

from pullback.call.layout import OUTPUTS
from pullback.call.matching import UnlikeError, described, like
from pullback.call.nest_gradients import leaf_gradients, leaf_results, unlike_tangent
from pullback.call.nests import Nest
from pullback.call.outputs import cotangents, flat_outputs, flattened, leaves_like, nest_of
from pullback.call.structure import Structure
from pullback.define.definition import DESCRIBED, Definition
from pullback.define.parameters import backward_misfit, leaves_misfit
from pullback.errors import TransformError


class _Silent:
    """First among the bases of a generated class: the author's __init_subclass__ isn't told of it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


def leafwise_class(author: type[TorchFunction], definition: Definition, structure: Structure) -> type[TorchFunction]:
    """The Function of the leaves of calls of `author` that have this structure.

    Args:
        author: The author's class.
        definition: What is written there.
        structure: The structure of a call.
    """
    methods = Methods(author, definition, structure)
    made = {name: staticmethod(method) for name, method in methods.present()}
    body = {"__module__": author.__module__, "__qualname__": author.__qualname__, "__doc__": author.__doc__, **made}
    meta: Any = type(author)
    cls: type[TorchFunction] = meta(author.__name__, (_Silent, author), body)
    declared = structure.owners([definition.is_nondiff(name) for name in structure.names])
    positional = inspect.Parameter.POSITIONAL_ONLY
    described = replace(
        definition,
        parameters=(*structure.paths, "arguments"),
        variadic=False,
        signature=inspect.Signature([inspect.Parameter(f"_pb_{k}", positional) for k in range(1 + len(declared))]),
        style="ctx",
        forward=methods.forward,
        backward=definition.backward and methods.backward,
        double_backward=definition.double_backward and methods.double_backward,
        reference=made["reference"].__func__ if definition.reference else None,
        surrogate=made["surrogate"].__func__ if definition.surrogate else None,
        expected_backward=None,  # a question of the checker's, which calls the author's own
        nondiff_argnames=tuple(path for path, without in zip(structure.paths, declared, strict=True) if without),
        samples=None,
    )
    setattr(cls, DESCRIBED, described)
    return cls


class Methods:
    """The methods of a leafwise class, each of which calls the author's of the same name."""

    def __init__(self, author: type[TorchFunction], definition: Definition, structure: Structure) -> None:
        self.author: Any = author
        self.definition = definition
        self.structure = structure

    def present(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """The methods that the author has written, by name."""
        yield "forward", self.forward
        if self.definition.style == "setup_context":  # forward runs it
            yield "setup_context", TorchFunction.setup_context
        yield self.definition.method, self.backward
        for name in ("jvp", "vmap"):
            if getattr(self.author, name) is not getattr(TorchFunction, name):
                yield name, getattr(self, name)
        if self.definition.double_backward is not None:
            yield "double_backward", self.double_backward
        for name in ("reference", "surrogate"):
            if getattr(self.definition, name) is not None:
                yield name, functools.partial(self.companion, name)

    def forward(self, ctx: Any, *leaves: Any) -> Any:
        """Run the author's forward, in either style, and put down on ctx how its outputs belong together."""
        arguments = self.structure.arguments(leaves[:-1], leaves[-1])
        positional, keywords = self.structure.split(arguments)
        with self._flags(ctx):
            if self.definition.style == "ctx":
                output = self.author.forward(ctx, *positional, **keywords)
            else:
                output = self.author.forward(*positional, **keywords)
                self.author.setup_context(ctx, arguments, output)
        untracked = [value for value, nest in zip(arguments, self.structure.nests, strict=True) if nest is None]
        return flat_outputs(ctx, output, untracked)

    def arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The author's arguments, by position and by keyword, that have these leaves."""
        return self.structure.split(self.structure.nested(leaves))

    def backward(self, ctx: Any, *grads: Any) -> Any:
        """Run the author's backward on the cotangents of what forward returned."""
        needs = tuple(ctx.needs_input_grad)
        given = cotangents(ctx, tuple(grads[0]) if self.definition.boxed else grads)
        if self.definition.boxed:
            grads[0].clear()  # the author's own list may be emptied as backward goes; this one must not keep it alive
        with self._flags(ctx):
            try:
                author = getattr(self.author, self.definition.method)
                returned = author(ctx, list(given)) if self.definition.boxed else author(ctx, *given)
            except TypeError as error:
                misfit = backward_misfit(self.definition, self.definition.method, len(given))
                if misfit is None:
                    raise
                raise misfit from error
        return (*leaf_gradients(self.definition, self.structure, needs, returned), None)

    def double_backward(self, ctx: Any, *grad_grads: Any) -> Any:
        """Run the author's double_backward, which takes leaves and knows outputs as nests."""
        count = len(ctx.grad_outputs)
        seen = [gradient for gradient, own in zip(grad_grads, self.structure.seen, strict=False) if own]
        outputs = getattr(ctx, OUTPUTS, None)
        with self._flags(ctx):
            ctx.grad_outputs = cotangents(ctx, tuple(ctx.grad_outputs))
            try:
                returned = self.author.double_backward(ctx, *seen)
            except TypeError as error:
                paths = [path for path, own in zip(self.structure.paths, self.structure.seen, strict=True) if own]
                misfit = leaves_misfit(self.definition, paths)
                if misfit is None:
                    raise
                raise misfit from error
        results = leaf_results(self.definition, self.structure, outputs, count, returned)
        return (*results, None) if isinstance(results, tuple) else results

    def companion(self, name: str, *leaves: Any) -> Any:
        """Run the author's reference or surrogate."""
        positional, keywords = self.structure.split(self.structure.nested(leaves))
        return flattened(getattr(self.author, name)(*positional, **keywords))

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        """Run the author's jvp on the tangents of its arguments."""
        with self._flags(ctx):
            returned = self.author.jvp(ctx, *self.structure.nested(tangents, values=True))
        try:
            leaves = leaves_like(ctx, returned, "tangent")
        except UnlikeError as error:
            raise unlike_tangent(self.definition, error) from None
        return leaves if len(leaves) > 1 or isinstance(returned, tuple) else leaves[0]

    def vmap(self, info: Any, in_dims: Sequence[Any], *leaves: Any) -> Any:
        """Run the author's vmap on batches of its arguments."""
        dims = self.structure.nested(tuple(in_dims), values=True)
        positional, keywords = self.structure.split(self.structure.nested(leaves))
        returned = self.author.vmap(info, dims, *positional, **keywords)
        found = nest_of(returned[0]) if isinstance(returned, tuple) and len(returned) == 2 else None
        if found is None:
            return returned
        output, out_dims = returned
        spread = _spread(found[0], out_dims)
        if spread is None:
            raise TransformError(
                "PB509",
                f"{self.definition.name}.vmap returned batch dimensions that aren't like its outputs.",
                expected=f"{described(found[0])}, each entry an int or None, or one int for all",
                got=repr(out_dims),
                remedy="Return (output, out_dims), out_dims in the structure of output.",
            )
        return flattened(output), (*spread, None)

    @contextlib.contextmanager
    def _flags(self, ctx: Any) -> Iterator[None]:
        """NOTE [flags of nests]."""
        flags = ctx.needs_input_grad
        ctx.needs_input_grad = self.structure.any_of(flags)
        try:
            yield
        finally:
            ctx.needs_input_grad = flags


def _spread(nest: Nest | None, dims: Any) -> list[int | None] | None:
    """The batch dimension of each leaf, where one stands for all beneath; None where `dims` isn't like `nest`."""
    if dims is None or isinstance(dims, int):
        return [dims] * (1 if nest is None else nest.size)
    children = None if nest is None else like(nest, dims)
    if nest is None or children is None:
        return None
    spread: list[int | None] = []
    for part, child in zip(nest.parts, children, strict=True):
        inner = _spread(part, child)
        if inner is None:
            return None
        spread += inner
    return spread
