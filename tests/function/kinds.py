"""Kinds of Function, each written once and built on any base class, and what can be observed of one.

A kind is a factory: it takes a base class and returns a Function made from it, so that the very same source runs on
torch's class and on pullback's. The modules beside this one hold them by theme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

Factory = Callable[[type], Any]


def leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Draw a leaf that requires grad, between 0.3 and 1.3, away from kinks."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, dtype=dtype, generator=generator).add_(0.3).requires_grad_()


def one_leaf() -> tuple[Any, ...]:
    """Return the arguments that most kinds are tried with."""
    return (leaf(3),)


def two_leaves() -> tuple[Any, ...]:
    """Return two arguments of one shape."""
    return leaf(3, seed=1), leaf(3, seed=2)


def plain_call(function: Any, *arguments: Any) -> Any:
    """Apply the Function to its arguments by position."""
    return function.apply(*arguments)


@dataclass(frozen=True)
class Kind:
    """One kind of Function and how to try it.

    Attributes:
        name: What it shows.
        make: Builds it on a base class.
        arguments: Makes fresh arguments.
        call: Applies it to them.
        needs: A mark for each thing that torch itself has to be able to do for it.
    """

    name: str
    make: Factory
    arguments: Callable[[], tuple[Any, ...]]
    call: Callable[..., Any]
    needs: tuple[pytest.MarkDecorator, ...] = ()


def each(kinds: Iterable[Kind]) -> list[Any]:
    """Return the kinds as parameters of a test, which passes over those that this torch can't do."""
    return [pytest.param(kind, id=kind.name, marks=kind.needs) for kind in kinds]


class Kinds(list[Kind]):
    """A list of kinds that is filled by decorating their factories."""

    def add(
        self,
        arguments: Callable[[], tuple[Any, ...]] = one_leaf,
        call: Callable[..., Any] = plain_call,
        needs: tuple[pytest.MarkDecorator, ...] = (),
    ) -> Callable[[Factory], Factory]:
        """Return a decorator that appends the factory under its own name."""

        def decorate(make: Factory) -> Factory:
            self.append(Kind(make.__name__, make, arguments, call, needs))
            return make

        return decorate


# -- What can be observed ----------------------------------------------------------------------------------------------


def weights(output: Tensor) -> Tensor:
    """Return a cotangent for an output, no two elements alike."""
    values = torch.linspace(-1, 2, max(output.numel(), 1), dtype=torch.float64)[: output.numel()].reshape(output.shape)
    return (values * (1 + 0.5j) if output.is_complex() else values).to(output.dtype)


def outputs_of(result: Any) -> list[Any]:
    """Return the outputs one by one."""
    return list(result) if isinstance(result, tuple) else [result]


def describe(output: Any, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Say everything about an output that a caller could see."""
    which = [i for i, argument in enumerate(arguments) if argument is output]
    if not isinstance(output, Tensor):
        return type(output), output, which
    node = output.grad_fn
    names = None if node is None else (node.name(), type(node).__name__)
    # What keeps a view's gradient right is its base, so whether there is one is seen too.
    return (
        output.detach().clone(),
        (output.requires_grad, output.is_leaf, output.is_inference(), output._is_view(), output.stride()),
        names,
        which,
    )


def observe(kind: Kind, base: type) -> list[Any]:
    """Build the kind on a base, call it, and return outputs and gradients, taken in each of the usual ways."""
    function = kind.make(base)
    seen: list[Any] = []
    arguments = kind.arguments()
    outputs = outputs_of(kind.call(function, *arguments))
    seen += [describe(output, arguments) for output in outputs]
    if not any(isinstance(output, Tensor) and output.requires_grad for output in outputs):
        return seen
    for only in [None, *range(len(outputs))]:
        for accumulate in (False, True):
            arguments = kind.arguments()
            outputs = outputs_of(kind.call(function, *arguments))
            chosen = outputs if only is None else [outputs[only]]
            differentiable = [o for o in chosen if isinstance(o, Tensor) and o.requires_grad]
            if differentiable:
                seen.append(gradients(differentiable, arguments, accumulate=accumulate))
    return seen


def gradients(outputs: Sequence[Tensor], arguments: Sequence[Any], *, accumulate: bool) -> list[Any]:
    """Return the gradient for each argument that requires one, by `backward` or by `grad`."""
    leaves = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]
    cotangents = [weights(output) for output in outputs]
    if accumulate:
        torch.autograd.backward(outputs, cotangents)
        return [a.grad for a in leaves]
    return list(torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True))


def assert_same(got: Any, expected: Any) -> None:
    """Require that two observations are equal, tensors bit for bit."""
    if isinstance(expected, Tensor):
        assert isinstance(got, Tensor)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True, check_layout=True)
    elif isinstance(expected, (list, tuple)):
        assert type(got) is type(expected)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    else:
        assert got == expected
