"""F12: forward mode outside of torch.func, by dual numbers: alone, over reverse, under reverse, within torch.func."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from tests.transforms.matrix.agreement import Taken, assert_agrees, assert_each_agrees, each_seed
from tests.transforms.matrix.compositions import (
    composed,
    cotangents,
    leaves,
    parted,
    refusals,
    refusals_outside,
    score,
)
from tests.transforms.matrix.kind import Kind, Point, Program
from tests.transforms.matrix.kinds import KINDS

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def dual(point: Point, tensors: tuple[Tensor, ...], only: tuple[int, ...] | None = None) -> list[Tensor]:
    """The tensors, with tangents on those that derivatives are taken by."""
    given = list(tensors)
    for k in point.wrt if only is None else only:
        given[k] = forward_ad.make_dual(given[k], cotangents((point.tensors[k],))[0])
    return given


def unpacked(tree: Any) -> list[Tensor]:
    """Values and tangents; no tangent is a tangent of zeros."""
    found: list[Tensor] = []
    for tensor in leaves(tree):
        primal, tangent = forward_ad.unpack_dual(tensor)
        found.append(primal)
        if tensor.is_floating_point():
            found.append(torch.zeros_like(primal) if tangent is None else tangent)
    return found


def tracked(point: Point) -> tuple[Tensor, ...]:
    """The tensors as leaves that require grad, where derivatives are taken by them."""
    return tuple(t.clone().requires_grad_() if k in point.wrt else t for k, t in enumerate(point.tensors))


def chosen(point: Point, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Those that derivatives are taken by."""
    return [tensors[k] for k in point.wrt]


def gradients(result: Tensor, inputs: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    """Gradients, zeros for what isn't reached: autograd refuses what nothing is reached from, torch.func doesn't."""
    if not result.requires_grad:
        return tuple(torch.zeros_like(tensor) for tensor in inputs)
    return torch.autograd.grad(result, inputs, allow_unused=True, materialize_grads=True, **options)


@each_seed
@each_kind
def test_dual_numbers(kind: Kind, seed: int) -> None:
    """F12: a dual argument gives dual outputs."""

    def taken(program: Program, point: Point) -> Any:
        with forward_ad.dual_level():
            return unpacked(program(*dual(point, point.tensors)))

    assert_agrees(kind, taken, seed, refusals(kind, ("jvp",)))


@each_seed
@each_kind
def test_one_tangent(kind: Kind, seed: int) -> None:
    """F12: with a tangent on one argument alone, in either grad mode, the others count as constant."""

    def pushed(place: int, grad: bool) -> Taken:
        def taken(program: Program, point: Point) -> Any:
            with torch.set_grad_enabled(grad), forward_ad.dual_level():
                return unpacked(program(*dual(point, point.tensors, (place,))))

        return taken

    may = refusals(kind, ("jvp",))
    places = kind.point(seed).wrt
    cases = {f"tensor {k}, grad mode {on}": (pushed(k, on), may) for k in places for on in (False, True)}
    assert_each_agrees(kind, cases, seed)


@each_seed
@each_kind
def test_reverse_over_forward(kind: Kind, seed: int) -> None:
    """F12: the tangents of outputs can be differentiated by what requires grad."""

    def taken(program: Program, point: Point) -> Any:
        inputs = tracked(point)
        with forward_ad.dual_level():
            found = parted(unpacked(program(*dual(point, inputs))))[0]
            return gradients(score(found), chosen(point, inputs))

    assert_agrees(kind, taken, seed, refusals(kind, ("grad", "jvp")))


@each_seed
@each_kind
def test_forward_over_reverse(kind: Kind, seed: int) -> None:
    """F12: gradients, whether or not with create_graph, have tangents: Hessian-vector products."""

    def with_graph(create_graph: bool) -> Taken:
        def taken(program: Program, point: Point) -> Any:
            inputs = tracked(point)
            with forward_ad.dual_level():
                given = tuple(dual(point, inputs))
                outputs = parted(program(*given))[0]
                return unpacked(gradients(score(outputs), chosen(point, given), create_graph=create_graph))

        return taken

    may = refusals_outside(kind, ("jvp", "grad"))
    cases = {f"create_graph={create_graph}": (with_graph(create_graph), may) for create_graph in (False, True)}
    assert_each_agrees(kind, cases, seed)


@each_seed
@each_kind
def test_forward_over_reverse_over_reverse(kind: Kind, seed: int) -> None:
    """F12: the tangent of a second derivative."""

    def taken(program: Program, point: Point) -> Any:
        inputs = tracked(point)
        with forward_ad.dual_level():
            given = tuple(dual(point, inputs))
            outputs = parted(program(*given))[0]
            first = gradients(score(outputs), chosen(point, given), create_graph=True)
            return unpacked(gradients(score(first), chosen(point, given)))

    assert_agrees(kind, taken, seed, refusals_outside(kind, ("jvp", "grad", "grad")))


@each_seed
@each_kind
def test_around_torch_func(kind: Kind, seed: int) -> None:
    """F12: dual numbers go into the transforms of torch.func that take them in PyTorch: those without forward mode."""

    def pushed(transform: str) -> Taken:
        def taken(program: Program, point: Point) -> Any:
            with forward_ad.dual_level():
                return unpacked(composed((transform,), program, point)(*dual(point, point.tensors)))

        return taken

    cases = {name: (pushed(name), refusals(kind, ("jvp", name))) for name in ("grad", "vjp", "jacrev", "vmap")}
    assert_each_agrees(kind, cases, seed)
