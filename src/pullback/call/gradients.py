"""What backward returned, brought into the one form that the engine takes, or an error that names the argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from pullback.call.matching import A_LEAF
from pullback.call.nests import is_container
from pullback.define.definition import Definition
from pullback.define.parameters import backward_misfit
from pullback.errors import GradientError, MissingMethodError, PullbackError, SavedTensorError
from pullback.torch_private import raw_saved_tensors, saved_data, unpacked, usable_in_errors


def by_position(definition: Definition, needs_input_grad: Sequence[bool], returned: Any) -> tuple[Any, ...]:
    """One gradient or None for each argument of the call, from whatever backward returned.

    A tuple is by position and may have more Nones at its end; a dict is by argument name; a bare tensor or None stands
    for the gradient of a single argument.

    Raises:
        GradientError: PB201, PB202, PB218 or PB222, naming the arguments.
    """
    names = [definition.argument_name(index) for index in range(len(needs_input_grad))]
    gradients = by_argument(definition, names, needs_input_grad, returned)
    finished = []
    for name, needed, gradient in zip(names, needs_input_grad, gradients, strict=True):
        if gradient is not None and not isinstance(gradient, torch.Tensor):
            # Nothing in the container needs a gradient; what the author computed all the same goes nowhere.
            if needed or not is_container(type(gradient)):
                raise wrong_kind(definition, name, A_LEAF, shown(gradient))
            gradient = None
        if gradient is not None and definition.is_nondiff(name):
            raise undue(definition, name, gradient)
        finished.append(gradient)
    return tuple(finished)


def by_argument(
    definition: Definition, names: Sequence[str], needs: Sequence[bool], returned: Any, nests: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """One entry for each argument, by position or by name; what an entry is, isn't looked at.

    Args:
        definition: What the author wrote.
        names: The arguments of the call.
        needs: For each of them whether it needs a gradient.
        returned: What backward returned.
        nests: For each argument whether it is a nest; empty if none is.

    Raises:
        GradientError: PB201, PB202 or PB218.
    """
    due = len(names)
    if isinstance(returned, dict):
        gradients = _by_name(definition, names, needs, returned, nests)
    elif isinstance(returned, tuple):
        gradients = returned
    elif returned is None or isinstance(returned, torch.Tensor) or (due == 1 and _stands_alone(returned, nests)):
        gradients = (returned,)
    else:
        raise _no_gradients(definition, names, returned)
    if all(gradient is None for gradient in gradients[due:]):
        gradients = gradients[:due]
    if len(gradients) != due:
        raise _wrong_count(definition, names, needs, returned, gradients, nests)
    return gradients


def wrong_kind(definition: Definition, name: str, expected: str, got: str) -> GradientError:
    """The error for a gradient of `name` that is no tensor, or no nest where one is due."""
    return GradientError(
        "PB202",
        f"{definition.backward_label} returned a value of type {got} as the gradient of {name}.",
        expected=expected,
        got=got,
        remedy="" if expected == A_LEAF else f"Return {expected}, or None for all of {name}.",
    )


def undue(definition: Definition, name: str, gradient: Any) -> GradientError:
    """The error for a gradient of an argument that is declared to have none."""
    return GradientError(
        "PB222",
        f"{definition.backward_label} returned a gradient for {name}, which nondiff_argnames declares to have none.",
        expected="None",
        got=shown(gradient),
    )


def missing(definition: Definition, name: str, expected: str, got: str) -> GradientError:
    """The error for a dict of gradients that has no entry for `name`."""
    return GradientError(
        "PB218",
        f"{definition.backward_label} returned no entry for {name}, which needs a gradient.",
        expected=expected,
        got=got,
        remedy=f'Add "{name}": its gradient, or None on purpose.',
    )


def _stands_alone(returned: Any, nests: Sequence[Any]) -> bool:
    """Whether what is neither tuple nor dict may be the gradient of a single argument, or all but."""
    return isinstance(returned, list) if any(nests) else not isinstance(returned, list)


def _by_name(
    definition: Definition, names: Sequence[str], needs: Sequence[bool], named: Mapping[Any, Any], nests: Sequence[Any]
) -> tuple[Any, ...]:
    known = (*names, *definition.parameters, *definition.keyword_only)
    unknown = [name for name in named if name not in known]
    if unknown:
        wrapped = f'The gradient of a single nest is wrapped: ({{…}},) or {{"{names[0]}": {{…}}}}.' if nests else ""
        raise GradientError(
            "PB218",
            f"{definition.backward_label} returned a gradient for {unknown[0]!r}, which is no argument of forward.",
            expected=f"names among {', '.join(names)}",
            got=", ".join(map(repr, named)),
            remedy=wrapped if len(names) == 1 else "",
        )
    for name, needed in zip(names, needs, strict=True):
        if needed and name not in named and not definition.is_nondiff(name):
            due = ", ".join(other for other, wanted in zip(names, needs, strict=True) if wanted)
            got = ", ".join(map(repr, named)) or "an empty dict"
            raise missing(definition, name, f"an entry for each of {due}", got)
    return tuple(named.get(name) for name in names)


def _no_gradients(definition: Definition, names: Sequence[str], returned: Any) -> PullbackError:
    form = f"({', '.join(names)}{',' if len(names) == 1 else ''})"
    return GradientError(
        "PB202",
        f"{definition.backward_label} returned a value of type {shown(returned)} as its gradients.",
        expected=f"a tuple with one entry for each of {form}, or a dict by argument name",
        got=shown(returned),
        remedy=f"Return a tuple: {form}, each a tensor or None.",
    )


def _wrong_count(
    definition: Definition,
    names: Sequence[str],
    needs: Sequence[bool],
    returned: Any,
    gradients: tuple[Any, ...],
    nests: Sequence[Any],
) -> PullbackError:
    declared = [definition.is_nondiff(name) for name in names]
    named = [(name, needed and not without) for name, needed, without in zip(names, needs, declared, strict=True)]
    entries = [
        f"{name}: {'None' if without else 'gradient' if needed else 'gradient or None'}"
        for (name, needed), without in zip(named, declared, strict=True)
    ]
    given = ", ".join(shown(gradient) for gradient in gradients)
    wrapped = f'The gradient of a single nest is wrapped: ((…),) or {{"{names[0]}": (…)}}.' if any(nests) else ""
    return GradientError(
        "PB201",
        f"{definition.backward_label} returned an incorrect number of gradients (expected {len(names)}, "
        f"got {len(gradients)}).",
        expected=f"({', '.join(entries)})",
        got=f"({given})" if isinstance(returned, tuple) else given,
        remedy=wrapped if len(names) == 1 and wrapped else _how_to_count(named, len(gradients)),
    )


def _how_to_count(named: Sequence[tuple[str, bool]], got: int) -> str:
    """Which entries are missing, as far as their number tells."""
    due, without = len(named), [name for name, needed in named if not needed]
    order = f"in the order ({', '.join(name for name, _ in named)})"
    if got > due:
        return f"Return {due} {'entry' if due == 1 else 'entries'}, {order}; only Nones may follow."
    if len(without) == due - got:
        verb = "needs" if len(without) == 1 else "need"
        return f"Return None for {_listed(without)} too, which {verb} no gradient, {order}."
    return f"Return {due - got} more, {order}{f'; None will do for {_listed(without)}' if without else ''}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def explained(
    definition: Definition, method: str, ctx: Any, grads: Sequence[Any], error: Exception, origins: Sequence[str]
) -> Exception:
    """`error`, raised by the author's backward, or the error that says more where its cause is known.

    Args:
        definition: What the author wrote.
        method: The name under which backward was written.
        ctx: The node's ctx.
        grads: What backward was given.
        error: What backward raised.
        origins: For each saved tensor, what it is: ``argument x``, ``output 0``, ``an intermediate``.
    """
    if definition.backward is None and isinstance(error, NotImplementedError):
        return MissingMethodError("PB109", f"{definition.name} has no backward, and its gradient was asked for.")
    if isinstance(error, TypeError):
        return backward_misfit(definition, method, len(grads)) or error
    if not isinstance(error, RuntimeError) or "modified by an inplace operation" not in str(error):
        return error
    if not usable_in_errors():
        return error
    index = _changed(ctx, _reason(error), origins)
    if index is None:
        return error
    origin = origins[index] if index < len(origins) else "a tensor"
    kept: Any = saved_data(raw_saved_tensors(ctx)[index])
    what = shown(kept) if isinstance(kept, torch.Tensor) else "the tensor that forward saved"  # a checkpoint's own
    return SavedTensorError(
        "PB301",
        f"saved tensor {index} of {definition.name} ({origin}) has been modified by an inplace operation between "
        "forward and backward.",
        expected=f"{what}, unchanged since forward",
        got=_reason(error).partition("inplace operation: ")[2],
    )


def _changed(ctx: Any, reason: str, origins: Sequence[str]) -> int | None:
    """Which saved tensor of the node `ctx` it is that can't be unpacked for `reason`; None if it is none of them."""
    if _reason(_failure(lambda: ctx.saved_tensors)) != reason:
        return None
    outputs = []
    for index, raw in enumerate(raw_saved_tensors(ctx)):
        failure = _failure(partial(unpacked, raw))
        if _reason(failure) == reason:
            return index
        if failure is not None:  # an output can't be unpacked by itself: it needs the node that made it
            outputs.append(index)
    number = reason.partition("which is output ")[2].partition(" ")[0]
    fitting = [index for index in outputs if index < len(origins) and origins[index] == f"output {number}"] or outputs
    return fitting[0] if fitting else None


def _failure(read: Callable[[], Any]) -> RuntimeError | None:
    try:
        read()
    except RuntimeError as error:
        return error
    return None


def _reason(error: Exception | None) -> str:
    return str(error).partition("Hint:")[0].strip()


def shown(value: Any) -> str:
    """A value in an error: what kind of tensor it is, or its type."""
    if isinstance(value, torch.Tensor):
        return f"Tensor{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return "None" if value is None else type(value).__name__
