"""The parts of an experiment: ways to write an operation, an operation in each of them, and what is wanted of it."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, library

import pullback

FUNCTION = "pullback.Function"
CUSTOM_VJP = "pullback.custom_vjp"
TORCH = "torch.autograd.Function"
CUSTOM_OP = "PyTorch's custom_op"
WAYS = (FUNCTION, CUSTOM_VJP, TORCH, CUSTOM_OP)
"""The ways to write a derivative by hand that are run here, in the order of the table's columns."""

Call = Callable[..., Any]
"""An operation that is ready to be called on its arguments."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Operation:
    """One operation, written by hand in each way that has room for it.

    Attributes:
        name: What an error has to call it.
        plain: The same in plain PyTorch, which autograd differentiates: the truth.
        written: For each way, what makes the operation; a way that isn't there has nothing to write it with. Making it
            is part of the experiment, since a library may refuse it there.
    """

    name: str
    plain: Call
    written: Mapping[str, Callable[[], Call]]


def classes(make: Callable[[type], Any]) -> dict[str, Callable[[], Call]]:
    """The two class columns: one source, which `make` puts on the base that it is given."""
    return {FUNCTION: lambda: make(pullback.Function).apply, TORCH: lambda: make(torch.autograd.Function).apply}


def declared(make: Callable[[type], Any]) -> dict[str, Callable[[], Call]]:
    """pullback's class alone: `make` writes something that PyTorch's class has no place for."""
    return {FUNCTION: classes(make)[FUNCTION]}


def vjp(name: str, function: Call, fwd: Call, bwd: Call, **declared: Any) -> dict[str, Callable[[], Call]]:
    """The column of pullback's decorator; the function is called `name`, as if it had been written with it."""

    def make() -> Call:
        parts = (function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
        renamed = types.FunctionType(*parts)
        renamed.__kwdefaults__ = function.__kwdefaults__
        decorated = pullback.custom_vjp(renamed, **declared)
        decorated.defvjp(fwd, bwd)
        return decorated

    return {CUSTOM_VJP: make}


def custom_op(
    name: str,
    schema: str | None,
    forward: Call,
    backward: Call,
    setup_context: Call | None = None,
    *,
    fake: Call | None = None,
    vmap: Call | None = None,
) -> dict[str, Callable[[], Call]]:
    """The column of PyTorch's operator registry: custom_op with register_autograd, and what else it has room for.

    Without a schema PyTorch derives one from the annotations of `forward`, or says that it can't.
    """

    def make() -> Call:
        # A name is taken for good once it is registered.
        full = f"what_works_where::{name}_{next(_numbers)}"
        op = library.custom_op(full, forward, mutates_args=(), schema=schema)
        op.register_autograd(backward, setup_context=setup_context)
        if fake is not None:
            op.register_fake(fake)
        if vmap is not None:
            op.register_vmap(vmap)
        return op

    return {CUSTOM_OP: make}


@dataclass(frozen=True)
class Want:
    """One row: something that is wanted of an operation.

    Attributes:
        title: What is wanted, as the table says it.
        operation: What it is wanted of.
        measure: Calls the operation, as it stands after its library has it, and returns the numbers that are wanted.
        error: If the only right answer is an error: what it has to name. The truth isn't asked then.
        compiled: Whether the compiler is at work, which takes its time.
    """

    title: str
    operation: Operation
    measure: Callable[[Call], Any]
    error: tuple[str, ...] = ()
    compiled: bool = False


@dataclass(frozen=True)
class Section:
    """Rows of one theme, under a heading."""

    heading: str
    text: str
    wants: list[Want] = field(default_factory=list)


def point() -> Tensor:
    """Where derivatives are taken: float64, away from kinks, of both signs."""
    return torch.tensor([0.3, -0.8, 1.7], dtype=torch.float64)


def direction() -> Tensor:
    """A tangent, or the weights of a sum: dense, and no two alike."""
    return torch.tensor([0.9, 0.4, -1.1], dtype=torch.float64)


def leaf() -> Tensor:
    """The point, as a leaf that requires grad."""
    return point().requires_grad_()


def pair_gradients(pair: tuple[Tensor, Tensor], output: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of a loss in which the pair stands elsewhere too, so that a lost one doesn't end in an error."""
    loss = (output * direction()).sum() + sum(tensor.sum() for tensor in pair)
    return torch.autograd.grad(loss, pair, allow_unused=True)
