"""What backward returned, brought into the one form that the engine takes, or an error that names the argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pullback.define.definition import Definition
from pullback.errors import GradientError, MissingMethodError, PullbackError, SavedTensorError
from pullback.torch_private import raw_saved_tensors


def by_position(definition: Definition, needs_input_grad: Sequence[bool], returned: Any) -> tuple[Any, ...]:
    """One gradient or None for each argument of the call, from whatever backward returned.

    A tuple is by position and may have more Nones at its end; a dict is by argument name; anything else stands for the
    gradient of a single argument.

    Raises:
        GradientError: PB201, PB202, PB218 or PB222, naming the arguments.
    """
    due = len(needs_input_grad)
    if isinstance(returned, dict):
        gradients = _by_name(definition, needs_input_grad, returned)
    else:
        gradients = returned if isinstance(returned, tuple) else (returned,)
    while len(gradients) > due and gradients[-1] is None:
        gradients = gradients[:-1]
    if len(gradients) != due:
        raise _wrong_count(definition, due, gradients, needs_input_grad)
    for index, gradient in enumerate(gradients):
        if gradient is not None and not isinstance(gradient, torch.Tensor):
            raise GradientError(
                "PB202",
                f"{definition.name}.backward returned {_kind(gradient)} as the gradient of "
                f"{definition.argument_name(index)}.",
                expected="a tensor or None",
                got=_shown(gradient),
            )
        if gradient is not None and definition.nondiff_argnames:
            if definition.argument_name(index) in definition.nondiff_argnames:
                raise GradientError(
                    "PB222",
                    f"{definition.name}.backward returned a gradient for {definition.argument_name(index)}, which "
                    "nondiff_argnames declares to have none.",
                    expected="None",
                    got=_shown(gradient),
                )
    return gradients


def _by_name(definition: Definition, needs: Sequence[bool], named: Mapping[Any, Any]) -> tuple[Any, ...]:
    names = [definition.argument_name(index) for index in range(len(needs))]
    unknown = [name for name in named if name not in names and name not in definition.parameters]
    if unknown:
        raise GradientError(
            "PB218",
            f"{definition.name}.backward returned a gradient for {unknown[0]!r}, which is no argument of forward.",
            expected=f"names among {', '.join(names)}",
            got=", ".join(map(repr, named)),
        )
    missing = [
        name
        for name, needed in zip(names, needs, strict=True)
        if needed and name not in named and name not in definition.nondiff_argnames
    ]
    if missing:
        raise GradientError(
            "PB218",
            f"{definition.name}.backward returned no entry for {missing[0]}, which needs a gradient.",
            expected=f"an entry for each of {', '.join(n for n, needed in zip(names, needs, strict=True) if needed)}",
            got=", ".join(map(repr, named)) or "an empty dict",
            remedy=f'Add "{missing[0]}": its gradient, or None on purpose.',
        )
    return tuple(named.get(name) for name in names)


def _wrong_count(
    definition: Definition, due: int, gradients: tuple[Any, ...], needs_input_grad: Sequence[bool]
) -> PullbackError:
    names = [definition.argument_name(index) for index in range(due)]
    expected = ", ".join(
        f"{name}: {'gradient' if needed else 'gradient or None'}"
        for name, needed in zip(names, needs_input_grad, strict=True)
    )
    if len(gradients) < due:
        missing = names[len(gradients) :]
        left = [name for name, needed in zip(names, needs_input_grad, strict=True) if not needed and name in missing]
        what = (
            f"Return one more entry for {missing[0]}" if len(missing) == 1 else f"Add entries for {', '.join(missing)}"
        )
        remedy = f"{what}{': None, as it needs no gradient' if left == missing else ''}."
    else:
        remedy = f"Return {due} entr{'y' if due == 1 else 'ies'}; only Nones may follow."
    return GradientError(
        "PB201",
        f"{definition.name}.backward returned an incorrect number of gradients (expected {due}, got {len(gradients)}).",
        expected=f"({expected})",
        got=f"({', '.join(_shown(gradient) for gradient in gradients)})",
        remedy=remedy,
    )


def explained(definition: Definition, ctx: Any, error: Exception, origins: Sequence[str]) -> Exception:
    """`error`, raised by the author's backward, or the error that says more where its cause is known.

    Args:
        definition: What the author wrote.
        ctx: The node's ctx.
        error: What backward raised.
        origins: For each saved tensor, what it is: ``argument x``, ``output 0``, ``an intermediate``.
    """
    if definition.backward is None and isinstance(error, NotImplementedError):
        return MissingMethodError("PB109", f"{definition.name} has no backward, and its gradient was asked for.")
    if not isinstance(error, RuntimeError) or "modified by an inplace operation" not in str(error):
        return error
    for index, raw in enumerate(raw_saved_tensors(ctx)):
        try:
            raw.unpack()
        except RuntimeError as cause:
            if str(cause).split("Hint:")[0] != str(error).split("Hint:")[0]:
                continue
            origin = origins[index] if index < len(origins) else "a tensor"
            return SavedTensorError(
                "PB301",
                f"saved tensor {index} of {definition.name} ({origin}) has been modified by an inplace operation "
                "between forward and backward.",
                expected=f"{_shown(raw.data)}, unchanged since forward",
                got=str(cause)
                .split("Hint:")[0]
                .strip()
                .replace(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: ",
                    "",
                ),
            )
    return error


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"Tensor{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return "None" if value is None else type(value).__name__
