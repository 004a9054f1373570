"""F12: what an author's vmap is told about the level of vmap that calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import assert_as_plain

ROWS, COLUMNS = 4, 3


def told(seen: list[Any]) -> Any:
    """Make the sine with a rule for batches that writes down what it is told."""

    class Sine(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0].cos()

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
            seen.append((info.batch_size, info.randomness, x.shape[in_dims[0]]))
            return Sine.apply(x.movedim(in_dims[0], 0)), 0

    return Sine


SINGLE: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]] = {
    "vmap": torch.func.vmap,
    "columns": lambda function: torch.func.vmap(function, in_dims=1, out_dims=1),
    "jacrev of vmap": lambda function: torch.func.jacrev(torch.func.vmap(function)),
    "jacfwd of vmap": lambda function: torch.func.jacfwd(torch.func.vmap(function)),
    "grad of vmap": lambda function: torch.func.grad(lambda x: torch.func.vmap(function)(x).sin().sum()),
    "hessian of vmap": lambda function: torch.func.hessian(lambda x: torch.func.vmap(function)(x).sin().sum()),
}


@pytest.mark.parametrize("kind", SINGLE)
def test_one_level(kind: str, draw: Draw) -> None:
    """With one vmap in the program, its size is told, whatever batches jacrev and jacfwd make outside of it."""
    seen: list[Any] = []
    x = draw.constant(ROWS, COLUMNS)
    found = SINGLE[kind](told(seen).apply)(x)
    torch.testing.assert_close(found, SINGLE[kind](torch.sin)(x))
    size = COLUMNS if kind == "columns" else ROWS
    assert seen
    assert {(told_size, entries) for told_size, _, entries in seen} == {(size, size)}


@pytest.mark.parametrize("kind", ["vmap", "grad", "jacrev", "jacfwd"])
def test_the_size_is_that_of_the_level_that_calls(kind: str, draw: Draw) -> None:
    """With levels inside each other, each call is told the size of the batch that it is given."""
    seen: list[Any] = []
    x = draw.constant(ROWS, COLUMNS)
    inner = {
        "vmap": torch.func.vmap,
        "grad": lambda function: torch.func.grad(lambda x: function(x).sin().sum()),
        "jacrev": torch.func.jacrev,
        "jacfwd": torch.func.jacfwd,
    }[kind]
    found = torch.func.vmap(inner(told(seen).apply))(x)
    torch.testing.assert_close(found, torch.func.vmap(inner(torch.sin))(x))
    assert ROWS in {size for size, _, _ in seen}
    assert all(size == entries for size, _, entries in seen)


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_randomness(randomness: str, draw: Draw) -> None:
    """The randomness of the level is passed on."""
    seen: list[Any] = []
    torch.func.vmap(told(seen).apply, randomness=randomness)(draw.constant(ROWS, COLUMNS))
    assert seen == [(ROWS, randomness, ROWS)]


def test_all_compositions(draw: Draw) -> None:
    """A rule for batches changes no number."""
    assert_as_plain(told([]).apply, torch.sin, draw.constant(3))
