"""F12: torch.func inside PyTorch's plain autograd, batches of cotangents, torch.autograd.functional, modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import functional

from tests.transforms.matrix.agreement import Case, Taken, assert_agrees, assert_each_agrees, each_seed
from tests.transforms.matrix.compositions import (
    TRANSFORMS,
    composed,
    cotangents,
    narrowed,
    parted,
    refusals,
    refusals_of_rows,
    refusals_outside,
    score,
)
from tests.transforms.matrix.kind import Kind, Point, Program
from tests.transforms.matrix.kinds import KINDS
from tests.transforms.matrix.test_dual_numbers import chosen, gradients, tracked

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
# PyTorch's vectorized forward mode fails for plain functions of complex numbers.
COMPLEX = (KINDS["complex_holomorphic"], KINDS["complex_to_real"])
NOT_RANDOM = {name: kind for name, kind in KINDS.items() if kind.randomness == "error"}
# What torch.func.linearize traces of plain code that writes in place is right the first time alone.
LINEARIZED = {name: kind for name, kind in NOT_RANDOM.items() if not kind.in_place}


def through(transform: str, orders: int) -> Taken:
    """Take plain autograd's gradients, and those of a score of them, of what a transform returns."""

    def taken(program: Program, point: Point) -> Any:
        inputs, found = tracked(point), []
        outputs = parted(composed((transform,), program, point)(*inputs))[0]
        for order in range(1, orders + 1):
            outputs = gradients(score(outputs), chosen(point, inputs), create_graph=order < orders)
            found.append(outputs)
        return found

    return taken


@each_seed
@each_kind
def test_backward_through_a_transform(kind: Kind, seed: int) -> None:
    """F12: what a transform returns can be differentiated by tensors outside that require grad, and that once more."""
    twice = {name: (through(name, 2), refusals(kind, ("grad", "grad", name))) for name in TRANSFORMS}
    once = {f"{name}, once": (through(name, 1), refusals(kind, ("grad", name))) for name in ("jvp", "vmap")}
    assert_each_agrees(kind, {**twice, **once}, seed)


@each_seed
@each_kind
def test_captured_tensor_requires_grad(kind: Kind, seed: int) -> None:
    """F12: a transform by the first argument alone leaves the path to the others, which plain autograd then takes."""

    def taken(program: Program, point: Point) -> Any:
        inputs, first = tracked(point), point.wrt[0]

        def by_one(x: Tensor) -> Tensor:
            return score(parted(program(*inputs[:first], x, *inputs[first + 1 :]))[0])

        found = torch.func.grad(by_one)(inputs[first])
        return found, gradients(score((found,)), chosen(point, inputs))

    assert_agrees(kind, taken, seed, refusals(kind, ("grad", "grad")))


@each_seed
@each_kind
def test_each_argument_alone(kind: Kind, seed: int) -> None:
    """F12: argnums of one argument, by grad, jacrev and jacfwd."""

    def taken(program: Program, point: Point) -> Any:
        found = []
        for place in point.wrt:

            def by_one(x: Tensor, place: int = place) -> tuple[Tensor, ...]:
                return parted(program(*point.tensors[:place], x, *point.tensors[place + 1 :]))[0]

            x = point.tensors[place]
            found.append(torch.func.grad(lambda x, by_one=by_one: score(by_one(x)))(x))
            torch.manual_seed(seed)
            found.append(torch.func.jacrev(by_one)(x))
            if not kind.no_forward_mode:
                randomness = "error" if kind.randomness == "error" else "same"
                found.append(torch.func.jacfwd(by_one, randomness=randomness)(x))
        return found

    assert_agrees(kind, taken, seed, refusals(kind, ("jacrev",)))


@each_seed
@each_kind
def test_batch_of_cotangents(kind: Kind, seed: int) -> None:
    """F12: torch.autograd.grad takes a batch of cotangents at once."""

    def taken(program: Program, point: Point) -> Any:
        inputs = tracked(point)
        outputs = [t for t in parted(program(*inputs))[0] if t.requires_grad]
        batches = [torch.stack([t, 2 * t, -t]) for t in cotangents(tuple(t.detach() for t in outputs))]
        by = chosen(point, inputs)
        found = torch.autograd.grad(outputs, by, batches, is_grads_batched=True, allow_unused=True)
        pairs = zip(found, by, strict=True)
        return [torch.zeros(len(batches[0]), *x.shape, dtype=x.dtype) if g is None else g for g, x in pairs]

    assert_agrees(kind, taken, seed, refusals_of_rows(kind))


def jacobian(**options: Any) -> Taken:
    """Take torch.autograd.functional's Jacobian."""

    def taken(program: Program, point: Point) -> Any:
        narrow = narrowed(program, point.wrt, point.tensors)
        return functional.jacobian(lambda *x: narrow(*x)[0], tuple(chosen(point, point.tensors)), **options)

    return taken


def hessian(**options: Any) -> Taken:
    """Take torch.autograd.functional's Hessian."""

    def taken(program: Program, point: Point) -> Any:
        narrow = narrowed(program, point.wrt, point.tensors)
        return functional.hessian(lambda *x: score(narrow(*x)[0]), tuple(chosen(point, point.tensors)), **options)

    return taken


@each_seed
@pytest.mark.parametrize("kind", NOT_RANDOM.values(), ids=NOT_RANDOM)
def test_functional_jacobian(kind: Kind, seed: int) -> None:
    """F12: torch.autograd.functional.jacobian, row by row, all rows at once, and by columns."""
    cases: dict[str, Case] = {
        "by rows": (jacobian(), frozenset()),
        "all rows": (jacobian(vectorize=True), refusals_of_rows(kind)),
    }
    if kind not in COMPLEX:
        forward = jacobian(vectorize=True, strategy="forward-mode")
        cases["by columns"] = forward, refusals(kind, ("jacfwd",))
    assert_each_agrees(kind, cases, seed)


@each_seed
@pytest.mark.parametrize("kind", NOT_RANDOM.values(), ids=NOT_RANDOM)
def test_functional_hessian(kind: Kind, seed: int) -> None:
    """F12: torch.autograd.functional.hessian, row by row, all rows at once, and with forward mode outside."""
    may = refusals_outside(kind, ("grad", "grad"))
    cases: dict[str, Case] = {
        "by rows": (hessian(), may),
        "all rows": (hessian(vectorize=True), may | refusals_of_rows(kind)),
    }
    if kind not in COMPLEX:
        forward = hessian(vectorize=True, outer_jacobian_strategy="forward-mode")
        cases["by columns"] = forward, refusals_outside(kind, ("hessian",))
    assert_each_agrees(kind, cases, seed)


# It traces the linear map, and torch.fx warns of the constants in it.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@each_seed
@pytest.mark.parametrize("kind", LINEARIZED.values(), ids=LINEARIZED)
def test_linearize(kind: Kind, seed: int) -> None:
    """F12: torch.func.linearize, whose linear map is used twice, where PyTorch can trace the plain function."""

    def taken(program: Program, point: Point) -> Any:
        narrow = narrowed(program, point.wrt, point.tensors)
        inputs = chosen(point, point.tensors)
        output, push = torch.func.linearize(lambda *x: narrow(*x)[0], *inputs)
        tangents = cotangents(tuple(inputs))
        return output, push(*tangents), push(*(2 * tangent for tangent in tangents))

    # What NumPy computes of a tangent would be written down as a constant.
    may = refusals(kind, ("jvp",)) | ({"PB512"} if kind.opaque_backward else set())
    assert_agrees(kind, taken, seed, may)


class Layer(nn.Module):
    """A module whose parameters are the arguments of a program."""

    def __init__(self, program: Program, point: Point) -> None:
        """Make a parameter of each tensor that derivatives are taken by."""
        super().__init__()
        self.program = program
        self.places = point.wrt
        self.tensors = point.tensors
        self.weights = nn.ParameterList(nn.Parameter(tensor.clone()) for tensor in chosen(point, point.tensors))

    def forward(self, scale: Tensor) -> Tensor:
        """The score of the outputs, times `scale`."""
        full = list(self.tensors)
        for place, weight in zip(self.places, self.weights, strict=True):
            full[place] = weight
        return scale * score(parted(self.program(*full))[0])


@each_seed
@each_kind
def test_functional_call(kind: Kind, seed: int) -> None:
    """F12: a module that uses the Function, under functional_call: gradients, and per-sample gradients by vmap."""

    def taken(program: Program, point: Point) -> Any:
        layer = Layer(program, point)
        parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

        def loss(parameters: dict[str, Tensor], scale: Tensor) -> Tensor:
            return torch.func.functional_call(layer, parameters, (scale,))

        one = torch.ones((), dtype=point.tensors[point.wrt[0]].dtype)
        found = torch.func.grad(loss)(parameters, one)
        scales = torch.stack([one, 2 * one])
        per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0), randomness="same")(parameters, scales)
        return [*found.values()], [*per_sample.values()]

    assert_agrees(kind, taken, seed, refusals(kind, ("vmap", "grad")))


@each_seed
@each_kind
def test_one_class_many_transforms(kind: Kind, seed: int) -> None:
    """F12: what a class has learned from one transform serves the others: one class under all, plain calls between."""
    function = kind.make()
    for _ in range(2):
        for transform in ("grad", "vmap", "jvp", "jacrev"):

            def taken(program: Program, point: Point, transform: str = transform) -> Any:
                inputs = tracked(point)
                plain = gradients(score(parted(program(*inputs))[0]), chosen(point, inputs))
                return plain, composed((transform,), program, point)(*point.tensors)

            assert_agrees(kind, taken, seed, refusals(kind, (transform,)), function=function)
