"""F12: vmap over any dimension, over some of the arguments, in chunks, within vmap, with derivatives inside."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.transforms.matrix.agreement import assert_agrees, assert_each_agrees, each_seed
from tests.transforms.matrix.compositions import batched, composed, leaves, refusals
from tests.transforms.matrix.kind import Kind, Point, Program
from tests.transforms.matrix.kinds import KINDS

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
INSIDE = ("values", "vjp", "jvp")
MANY = {name: kind for name, kind in KINDS.items() if len(kind.point(0).tensors) > 1}
RANDOM = {name: kind for name, kind in KINDS.items() if kind.randomness != "error"}


def inside(inner: str) -> tuple[str, ...]:
    """The transforms inside the vmap."""
    return () if inner == "values" else (inner,)


def mapped(in_dims: tuple[int | None, ...], inner: str, **options: Any) -> Callable[[Program, Point], Any]:
    """Take the batch of all tensors that `in_dims` gives a dimension, the others as they are."""

    def taken(program: Program, point: Point) -> Any:
        given = [t if dim is None else batched(t, dim) for t, dim in zip(point.tensors, in_dims, strict=True)]
        transformed = composed(inside(inner), program, point)
        return torch.func.vmap(transformed, in_dims, randomness=point.kind.randomness, **options)(*given)

    return taken


def check(kind: Kind, in_dims: tuple[int | None, ...], seed: int, **options: Any) -> None:
    """Require that vmap gives what it gives for the plain function: values, and derivatives inside."""
    cases = {
        f"vmap of {inner}": (mapped(in_dims, inner, **options), refusals(kind, ("vmap", *inside(inner))))
        for inner in INSIDE
    }
    assert_each_agrees(kind, cases, seed)


@each_seed
@pytest.mark.parametrize("dim", [1, -1])
@each_kind
def test_in_dims(kind: Kind, dim: int, seed: int) -> None:
    """F12: the batch may lie in any dimension of the arguments."""
    check(kind, tuple(dim if tensor.dim() else 0 for tensor in kind.point(seed).tensors), seed)


@each_seed
@pytest.mark.parametrize("shared", [0, -1])
@pytest.mark.parametrize("kind", MANY.values(), ids=MANY)
def test_some_arguments_are_shared(kind: Kind, shared: int, seed: int) -> None:
    """F12: an argument with in_dims None is shared by the batch."""
    in_dims: list[int | None] = [0] * len(kind.point(seed).tensors)
    in_dims[shared] = None
    check(kind, tuple(in_dims), seed)


@each_seed
@each_kind
def test_out_dims(kind: Kind, seed: int) -> None:
    """F12: the batch may come out in another dimension."""
    point = kind.point(seed)
    # A scalar has no dimension for the batch but the first.
    dim = -1 if all(tensor.dim() for tensor in leaves(point.program(kind.plain)(*point.tensors))) else 0
    check(kind, (0,) * len(point.tensors), seed, out_dims=dim)


@each_seed
@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.randomness == "error"], ids=lambda k: k.name)
def test_in_chunks(kind: Kind, seed: int) -> None:
    """F12: a batch may be done in chunks."""
    check(kind, (0,) * len(kind.point(seed).tensors), seed, chunk_size=2)


@each_seed
@each_kind
def test_within_vmap(kind: Kind, seed: int) -> None:
    """F12: three levels, each of which batches other arguments, and a derivative around or inside."""
    point = kind.point(seed)
    choose = random.Random(f"{seed} {kind.name}")

    def taken(program: Program, point: Point) -> Any:
        program = composed(("vjp",), program, point)
        given = list(point.tensors)
        for places in levels:
            in_dims = tuple(choice if k in places else None for k, choice in enumerate(dims))
            program = torch.func.vmap(program, in_dims, randomness=point.kind.randomness)
        for places in reversed(levels):
            given = [batched(t, dims[k]) if k in places else t for k, t in enumerate(given)]
        return program(*given)

    dims = [choose.choice((0, -1)) if tensor.dim() else 0 for tensor in point.tensors]
    everywhere = range(len(point.tensors))
    levels = [{choose.choice(everywhere)}, set(everywhere), {choose.choice(everywhere)}]
    assert_agrees(kind, taken, seed, refusals(kind, ("vmap", "vjp")))


@each_seed
@each_kind
def test_outer_tensor(kind: Kind, seed: int) -> None:
    """F12: a tensor that the batch doesn't hold may be mixed in outside of the Function."""

    def taken(program: Program, point: Point) -> Any:
        first = point.wrt[0]

        def shifted(shift: Tensor) -> Any:
            tensors = list(point.tensors)
            tensors[first] = tensors[first] + shift
            return composed(("grad",), program, point)(*tensors)

        shifts = torch.linspace(0.0, 0.1, 3, dtype=point.tensors[first].dtype)
        return torch.func.vmap(shifted, randomness=point.kind.randomness)(shifts)

    assert_agrees(kind, taken, seed, refusals(kind, ("vmap", "grad")))


@each_seed
@pytest.mark.parametrize("kind", RANDOM.values(), ids=RANDOM)
def test_random_forward_is_asked_for(kind: Kind, seed: int) -> None:
    """F12: without `randomness`, vmap refuses a random forward, as it does in plain PyTorch."""
    point = kind.point(seed)
    for function in (kind.plain, kind.make().apply):
        with pytest.raises(RuntimeError, match="randomness"):
            torch.func.vmap(point.program(function))(*(batched(tensor) for tensor in point.tensors))
