"""The author's double_backward as a node: the vjp of backward, called when a gradient is differentiated.

With inputs x, outputs y, cotangents g of y and J(x) the Jacobian of forward, backward computes v = J(x)ᵀ g. Its own
cotangent gg, which has the shape of x, is sent back to both things that v depends on: to g as J(x) gg, and to x as the
derivative of ⟨gg, J(x)ᵀ g⟩. double_backward returns the first for each output and the second for each argument.

Short form: for an elementwise function of one tensor, J is diagonal with f'(x), so ⟨gg, J(x)ᵀ g⟩ = Σ gg f'(x) g. The
gradient for x is f''(x) gg g, and for g it is f'(x) gg, which is what backward gives for the cotangent gg. The author
returns f''(x) gg alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction

from pullback.call.casting import around_backward
from pullback.call.frames import without_own_frames
from pullback.call.layout import UNMATERIALIZED
from pullback.define.parameters import double_backward_misfit
from pullback.errors import GradientError, HigherOrderError, PullbackError
from pullback.transforms.connect import connected
from pullback.transforms.graph import applied, has_nonzero
from pullback.transforms.probes import Run
from pullback.transforms.state import State

Grads = tuple[Tensor | None, ...]


@dataclass
class _Recipe:
    """What the node keeps: the call without its tensors, and where each of them is among the node's inputs.

    Attributes:
        state: The call; its tensors are put back when the node runs.
        values: backward's gradients, until forward has returned them.
        inputs: For each argument that needs a gradient and can be had, its place among the saved tensors, or None.
    """

    state: State
    values: Grads
    inputs: dict[int, int | None]


def with_double_backward(state: State, values: Grads) -> Grads:
    """`values`, backward's gradients, differentiable through the author's double_backward.

    Raises:
        HigherOrderError: An argument can't be reached, so what double_backward gives for it would be lost.
    """
    for index in state.missing if not state.covered else ():
        if not _vanishes(state, values, index):
            raise _unreachable(state, index)
    places = {
        index: next((k for k, tensor in enumerate(state.saved) if tensor is given), None)
        for index, given in state.inputs.items()
    }
    bare = replace(state, saved=(), inputs={}, outputs=(), grads=(), edge=(), node=None)
    recipe = _Recipe(bare, values, places)
    tensors = (*state.grads, *state.saved, *state.inputs.values(), *state.outputs)
    made = applied(_Differentiated, recipe, len(state.grads), len(state.saved), *tensors)
    returned = iter(made)
    return tuple(None if value is None else next(returned) for value in values)


class _Differentiated(TorchFunction):
    """backward's gradients as a function of its cotangents and the arguments, with double_backward as its vjp."""

    @staticmethod
    def forward(ctx: Any, recipe: _Recipe, grads: int, saved: int, *tensors: Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        # Only these: a leaf that the author did not save may be changed before the second derivative is asked for.
        ctx.save_for_backward(*tensors[: grads + saved])
        ctx.sizes = (grads, saved, len(tensors))
        ctx.metas = [None if value is None else (value.shape, value.dtype, value.device) for value in recipe.values]
        ctx.recipe = replace(recipe, values=())
        return tuple(value.detach() for value in recipe.values if value is not None)

    @staticmethod
    def backward(ctx: Any, *grad_grads: Tensor | None) -> Any:
        try:
            return _Differentiated._sent_back(ctx, grad_grads)
        except PullbackError as error:
            error.__traceback__ = without_own_frames(error.__traceback__)
            raise

    @staticmethod
    def _sent_back(ctx: Any, grad_grads: tuple[Tensor | None, ...]) -> Any:
        grads, saved, count = ctx.sizes
        recipe: _Recipe = ctx.recipe
        if all(grad is None for grad in grad_grads):
            return (None,) * (3 + count)
        kept = ctx.saved_tensors
        state = replace(
            recipe.state,
            grads=kept[:grads],
            saved=kept[grads:],
            inputs={index: kept[grads + place] for index, place in recipe.inputs.items() if place is not None},
            edge=(ctx, *(node for node, _ in ctx.next_functions if node is not None)),
        )
        received = _per_argument(state, ctx.metas, grad_grads)
        if torch.is_grad_enabled():
            run = Run(sent_back, received, (True,) * grads + state.needs, "double_backward")
            results = connected(state, run)
        else:
            results = sent_back(state, received)
        for_arguments = dict(enumerate(results[grads:]))
        for index, gradient in for_arguments.items():
            if state.needs[index] and index not in recipe.inputs and not _is_zero(gradient):
                raise _unreachable(state, index)
        reached = [for_arguments[index] for index in recipe.inputs]
        rest = count - grads - saved - len(reached)
        return (None, None, None, *results[:grads], *(None,) * saved, *reached, *(None,) * rest)


def _vanishes(state: State, values: Grads, index: int) -> bool:
    """Whether double_backward sends nothing to the argument at `index`, as for an operation that is linear in it.

    It is linear in what it receives, so one cotangent with no structure shows it.
    """
    generator = torch.Generator().manual_seed(0)
    metas = [None if value is None else (value.shape, value.dtype, value.device) for value in values]
    received = [
        None if value is None else torch.rand(value.shape, generator=generator).add_(0.5).to(value) for value in values
    ]
    with torch.no_grad():
        results = sent_back(state, _per_argument(state, metas, [entry for entry in received if entry is not None]))
    return _is_zero(results[len(state.grads) + index])


def _is_zero(gradient: Tensor | None) -> bool:
    return gradient is None or not has_nonzero(gradient)


def _per_argument(state: State, metas: Sequence[Any], grad_grads: Sequence[Tensor | None]) -> Grads:
    """One cotangent for each argument of forward: None for those without a gradient, zeros for undefined ones."""
    given = iter(grad_grads)
    materialize = not state.attributes.get(UNMATERIALIZED, False)
    received: list[Tensor | None] = []
    for needed, meta in zip(state.needs, metas, strict=True):
        grad = None if meta is None else next(given)
        if grad is None and meta is not None and materialize:
            shape, dtype, device = meta
            grad = torch.zeros(shape, dtype=dtype, device=device)
        received.append(grad if needed else None)
    return tuple(received)


def _through_node(state: State) -> Grads:
    """backward's gradients, whose own derivative is double_backward's."""
    values = state.values()
    return with_double_backward(state, values) if torch.is_grad_enabled() else values


def sent_back(
    state: State, grad_grads: Sequence[Tensor | None], through: Callable[[State], Grads] = _through_node
) -> Grads:
    """Run the author's double_backward: one gradient for each grad_output, then one for each argument.

    Args:
        state: The call.
        grad_grads: What it receives: a cotangent for each argument.
        through: Gives backward's gradients, differentiable; the short form is completed with them.
    """
    definition = state.plan.definition
    assert definition.double_backward is not None
    try:
        with around_backward(definition, state.attributes):
            returned = definition.double_backward(state.stand_in(state.grads), *grad_grads)
    except TypeError as error:
        misfit = double_backward_misfit(definition, len(state.needs))
        if misfit is None:
            raise
        raise misfit from error
    outputs, arguments = len(state.grads), len(state.needs)
    if isinstance(returned, Tensor):
        return _from_short_form(state, grad_grads, returned, through)
    if isinstance(returned, dict):
        returned = _from_names(state, returned)
    if not isinstance(returned, tuple):
        raise _unusable(state, type(returned).__name__)
    while len(returned) > outputs + arguments and returned[-1] is None:
        returned = returned[:-1]
    if len(returned) != outputs + arguments:
        raise _unusable(state, f"{len(returned)} entries")
    for entry in returned:
        if entry is not None and not isinstance(entry, Tensor):
            raise _unusable(state, f"an entry of type {type(entry).__name__}")
    _check_shapes(state, returned)
    return returned


def _check_shapes(state: State, returned: Grads) -> None:
    """Raise where an entry can't be summed to the shape of what it is the gradient of, as the engine would do."""
    outputs = len(state.grads)
    due: list[Tensor | None] = [*state.grads, *(state.inputs.get(index) for index in range(len(state.needs)))]
    for place, (entry, like) in enumerate(zip(returned, due, strict=True)):
        if entry is None or like is None or sums_to(entry.shape, like.shape):
            continue
        what = f"grad_output {place}" if place < outputs else state.name(place - outputs)
        raise GradientError(
            "PB220",
            f"{state.plan.definition.name}.double_backward returned a gradient of another shape for {what}.",
            expected=f"a tensor of shape {tuple(like.shape)}, as {what} has, or one that can be summed to it",
            got=f"shape {tuple(entry.shape)}",
            remedy=f"Return the gradient for {what} in its shape.",
        )


def sums_to(shape: torch.Size, due: torch.Size) -> bool:
    """Whether a tensor of `shape` is what broadcasting makes of one of `due`, so that the engine sums it back."""
    trailing = shape[len(shape) - len(due) :]
    return len(shape) >= len(due) and all(a in (1, b) for a, b in zip(due, trailing, strict=True))


def _from_short_form(
    state: State, grad_grads: Sequence[Tensor | None], returned: Tensor, through: Callable[[State], Grads]
) -> Grads:
    differentiable = [index for index, grad in enumerate(grad_grads) if grad is not None]
    grad = state.grads[0] if len(state.grads) == 1 else None
    tensors = state.call.layout.arity - len(state.call.layout.plain)
    legal = (
        len(differentiable) == 1
        and tensors <= 1
        and grad is not None
        and grad.shape == returned.shape
        and not returned.is_complex()
    )
    if not legal:
        raise _unusable(
            state, "one tensor, which is legal for one real tensor argument and one output of its shape only"
        )
    assert grad is not None
    (index,) = differentiable
    # The gradient for g is backward at the cotangent gg; its own derivative is double_backward's again.
    through_backward = through(replace(state, grads=(grad_grads[index],)))
    return (through_backward[index], *(returned * grad if k == index else None for k in range(len(state.needs))))


def _from_names(state: State, named: dict[Any, Any]) -> tuple[Any, ...]:
    names = [state.name(index) for index in range(len(state.needs))]
    unknown = [name for name in named if name not in names and name != "grad_outputs"]
    if unknown:
        raise _unusable(state, f"a dict with the unknown name {unknown[0]!r}")
    if "grad_outputs" not in named:
        raise _unusable(state, "a dict without an entry for grad_outputs")
    first = named["grad_outputs"]
    return (*(first if isinstance(first, tuple) else (first,)), *(named.get(name) for name in names))


def _unusable(state: State, got: str) -> GradientError:
    each = [state.name(index) for index in range(len(state.needs))]
    names = ", ".join(each)
    outputs = len(state.grads)
    first = ["grad_output" if outputs == 1 else f"grad_output_{index}" for index in range(outputs)]
    literal = ", ".join(f'"{name}": …' for name in ("grad_outputs", *each))
    return GradientError(
        "PB220",
        f"{state.plan.definition.name}.double_backward returned what can't be its gradients.",
        expected=f"{outputs + len(state.needs)} entries: one for each of {outputs} grad_outputs, then one for each of "
        f"{names}; or a dict of the arguments' names and grad_outputs",
        got=got,
        remedy=f"Return a tuple of gradients, ({', '.join((*first, *each))}), or a dict: {{{literal}}}.",
    )


def _unreachable(state: State, index: int) -> HigherOrderError:
    return HigherOrderError(
        "PB206",
        f"the gradients of {state.plan.definition.name} are being differentiated, and its argument {state.name(index)} "
        "was not saved, so the graph has no way back to it.",
        expected=f"{state.name(index)} among the saved tensors, or a leaf",
        got="neither",
        remedy=f"Save it: ctx.save_for_backward({state.name(index)}, …).",
    )
