"""Arguments guessed from a signature: small float64 tensors, and numbers where an annotation asks for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pullback.battery.leaves import is_float, tensors
from pullback.define.definition import Definition
from pullback.errors import SampleError

_SHAPES = ((2, 3), (3, 3), (3,), (2, 2, 3, 3), ())
_ENOUGH = 2
_VARIADIC_COUNT = 2


def inferred(function: object, definition: Definition | None) -> list[tuple[object, ...]]:
    """Up to two sets of arguments that `function` takes, guessed from its signature.

    Parameters without a default get a tensor, or a number if they are annotated as one; the others keep their default.

    Raises:
        SampleError: If no guess works (PB121).
    """
    parameters = _parameters(function, definition)
    call: Callable[..., Any] = function.apply if isinstance(function, type) else function  # type: ignore[attr-defined, assignment]
    found: list[tuple[object, ...]] = []
    refusal = ""
    for shape in _SHAPES:
        args = tuple(_guesses(parameters, shape))
        try:
            accepted = _differentiable(call(*[_copy(arg) for arg in args]))
        except Exception as error:  # whatever a wrong guess provokes is no fault of the Function
            refusal = refusal or f"{type(error).__name__}: {error}"
            continue
        if accepted and any(isinstance(arg, torch.Tensor) for arg in args):
            found.append(args)
        if len(found) == _ENOUGH:
            break
    if not found:
        names = ", ".join(parameter.name for parameter in parameters) or "no parameters"
        got = (
            f"the last guess was refused with {refusal.splitlines()[0]}" if refusal else "no guess gave a float output"
        )
        raise SampleError("PB121", f"no arguments could be guessed from the signature ({names})", got=got)
    return found


def _parameters(function: object, definition: Definition | None) -> list[inspect.Parameter]:
    try:
        signature = definition.signature if definition is not None else inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise SampleError("PB121", f"the signature can't be read: {error}") from error
    return list(signature.parameters.values())


def _guesses(parameters: list[inspect.Parameter], shape: tuple[int, ...]) -> Iterator[object]:
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (_tensor(shape) for _ in range(_VARIADIC_COUNT))
        elif parameter.default is inspect.Parameter.empty:
            yield _guess(parameter.annotation, shape)
        else:
            return  # what follows has defaults too


def _guess(annotation: object, shape: tuple[int, ...]) -> object:
    numbers: dict[object, object] = {float: 0.5, "float": 0.5, int: 1, "int": 1, bool: False, "bool": False}
    try:
        return numbers[annotation]
    except (KeyError, TypeError):
        return _tensor(shape)


def _tensor(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64).add_(0.3).requires_grad_()


def _copy(value: object) -> object:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _differentiable(output: object) -> bool:
    return any(is_float(tensor) for _, tensor in tensors(output, ""))
