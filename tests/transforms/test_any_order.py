"""Derivatives of every order through Functions: autograd's numbers for the plain formula, however they are taken."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pullback
from tests.torch_features import BOXES
from tests.transforms.derivatives import Draw, assert_exact, outputs_of, penalty, tower
from tests.transforms.operations import EXACT, Operation

each_operation = pytest.mark.parametrize("operation", EXACT.values(), ids=EXACT)
ONE_REAL = {name: o for name, o in EXACT.items() if len(o.shapes) == 1 and not o.dtype.is_complex}
ONE = {name: o for name, o in EXACT.items() if len(o.shapes) == 1}
each_unary = pytest.mark.parametrize("operation", ONE.values(), ids=ONE)
each_of_one = pytest.mark.parametrize("operation", ONE_REAL.values(), ids=ONE_REAL)


def first(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return the function that gives the first output alone."""

    def call(*arguments: Any) -> Tensor:
        return outputs_of(function(*arguments))[0]

    return call


@each_operation
def test_four_orders(operation: Operation, draw: Draw) -> None:
    """F7 to F10: up to the fourth derivative the numbers are those of the formula."""
    assert_exact(operation.make().apply, operation.formula, operation.leaves(draw), order=4)


@each_operation
def test_first_call_without_grad(operation: Operation, draw: Draw) -> None:
    """F8: a class whose first calls ran under no_grad, or on tensors that require no grad, is no less exact."""
    function = operation.make()
    with torch.no_grad():
        function.apply(*operation.leaves(draw))
    function.apply(*(leaf.detach() for leaf in operation.leaves(draw)))
    assert_exact(function.apply, operation.formula, operation.leaves(draw))


@each_operation
def test_repeated_calls_of_one_class(operation: Operation, draw: Draw) -> None:
    """F8: the calls after the first one, which isn't watched as closely, are as exact."""
    function = operation.make()
    for _ in range(3):
        assert_exact(function.apply, operation.formula, operation.leaves(draw), order=2)


@each_unary
def test_arguments_inside_the_graph(operation: Operation, draw: Draw) -> None:
    """F7 to F10: arguments that are no leaves, and a loss that reaches them on other paths too."""
    function = operation.make()

    def around(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*leaves: Tensor) -> Any:
            arguments = [leaf * 1.25 for leaf in leaves]
            others = sum((argument**3).sum() for argument in arguments)
            return *outputs_of(inner(*arguments)), others

        return call

    assert_exact(around(function.apply), around(operation.formula), operation.leaves(draw))


@each_operation
def test_every_subset_of_arguments(operation: Operation, draw: Draw) -> None:
    """F8: each subset of the arguments may require grad, the others being constants."""
    for needed in product((True, False), repeat=len(operation.shapes)):
        if any(needed):
            function = operation.make()
            leaves = operation.leaves(draw)
            wanted = [leaf for leaf, need in zip(leaves, needed, strict=True) if need]
            fixed = [leaf if need else leaf.detach() for leaf, need in zip(leaves, needed, strict=True)]

            def on(inner: Callable[..., Any], fixed: list[Tensor] = fixed) -> Callable[..., Any]:
                return lambda *_: inner(*fixed)

            assert_exact(on(function.apply), on(operation.formula), wanted)


@each_operation
def test_one_output_alone(operation: Operation, draw: Draw) -> None:
    """F7: an output that nothing uses sends no gradient back, and the others are exact."""
    for place in range(len(outputs_of(operation.formula(*operation.leaves(draw))))):

        def only(inner: Callable[..., Any], place: int = place) -> Callable[..., Any]:
            return lambda *arguments: outputs_of(inner(*arguments))[place]

        assert_exact(only(operation.make().apply), only(operation.formula), operation.leaves(draw))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (2, 1, 3)], ids=str)
@each_of_one
def test_shapes(operation: Operation, shape: tuple[int, ...], draw: Draw) -> None:
    """F7 to F10: no dimension, no element, several dimensions."""
    assert_exact(operation.make().apply, operation.formula, [draw.leaf(*shape)])


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t(),
    "expanded": lambda x: x[:1].expand(4, 3),
    "sliced": lambda x: x[:, ::2],
    "offset": lambda x: x.flatten()[1:],
    "flipped": lambda x: x.flip(0),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@each_of_one
def test_views(operation: Operation, layout: Callable[[Tensor], Tensor], draw: Draw) -> None:
    """F7 to F10: an argument that is a view of something else, with any strides."""
    function = operation.make()
    assert_exact(lambda x: function.apply(layout(x)), lambda x: operation.formula(layout(x)), [draw.leaf(2, 3)])


@pytest.mark.parametrize("inside", [False, True], ids=["leaf", "inside"])
def test_the_same_tensor_twice(inside: bool, draw: Draw) -> None:
    """F7 to F10: one tensor passed as two arguments gets both gradients, at every order."""
    function = EXACT["vjp_for_backward"].make()

    def twice(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x: product(*(2 * (x * 1.5 if inside else x,)))

    assert_exact(twice(function.apply), twice(torch.mul), [draw.leaf(3)], order=4)


@each_unary
def test_chained_with_itself(operation: Operation, draw: Draw) -> None:
    """F7 to F10: the output of one call as the argument of the next."""
    function = first(operation.make().apply)
    formula = first(operation.formula)

    def scaled(inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x: inner(inner(x) / 4)

    assert_exact(scaled(function), scaled(formula), operation.leaves(draw))


@each_of_one
def test_cotangents_that_require_grad(operation: Operation, draw: Draw) -> None:
    """F7: a cotangent that isn't 1 and requires grad itself is differentiated too."""

    def pulled(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: Tensor, v: Tensor) -> Tensor:
            y = first(inner)(x)
            return torch.autograd.grad(y, x, v * v, create_graph=True)[0]

        return call

    leaves = [draw.leaf(3), draw.leaf(3, low=-1.0)]
    assert_exact(pulled(operation.make().apply), pulled(operation.formula), leaves, order=2)


@each_of_one
def test_second_derivative_for_the_cotangent_alone(operation: Operation, draw: Draw) -> None:
    """F7: the second derivative may be asked for grad_output alone, which gives the forward-mode product."""

    def product(inner: Callable[..., Any], x: Tensor, t: Tensor) -> Tensor:
        y = first(inner)(x)
        v = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, x, v, create_graph=True)
        return torch.autograd.grad(pulled, v, t)[0]

    x, t = draw.leaf(3), draw.constant(3, low=-1.0)
    torch.testing.assert_close(product(operation.make().apply, x, t), product(operation.formula, x, t))


@each_of_one
def test_retain_graph_both_ways(operation: Operation, draw: Draw) -> None:
    """F7: with retain_graph the penalty can be differentiated again; without, a second time is torch's error."""
    x = draw.leaf(3)
    expected = torch.autograd.grad(penalty(first(operation.formula)(x), x), x)[0]
    found = penalty(first(operation.make().apply)(x), x)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(found, x, retain_graph=True)[0], expected)
    torch.testing.assert_close(torch.autograd.grad(found, x, retain_graph=False)[0], expected)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(found, x)


@each_of_one
def test_backward_that_accumulates(operation: Operation, draw: Draw) -> None:
    """F7: backward() of a penalty accumulates what grad() returns."""
    x = draw.leaf(3)
    expected = torch.autograd.grad(penalty(first(operation.formula)(x), x), x)[0]
    penalty(first(operation.make().apply)(x), x).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected)


@each_of_one
def test_backward_with_create_graph(operation: Operation, draw: Draw) -> None:
    """F7: gradients that loss.backward(create_graph=True) has accumulated can be differentiated."""

    def taken(inner: Callable[..., Any], x: Tensor) -> Tensor:
        first(inner)(x).sum().backward(create_graph=True, inputs=[x])
        assert x.grad is not None
        (found,) = torch.autograd.grad(x.grad.square().sum(), x)
        x.grad = None  # it holds the graph, which holds x
        return found

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward")
        x = draw.leaf(3)
        torch.testing.assert_close(taken(operation.make().apply, x), taken(operation.formula, x))


@pytest.mark.parametrize("boxed", [False, True])
def test_saved_tensors_that_are_cleared(boxed: bool, draw: Draw) -> None:
    """F7: a class that clears its saved tensors as they are read is differentiated twice, and read once."""

    class Cube(pullback.Function):
        boxed_grads_call = boxed
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, x * x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grads: Any) -> Tensor:
            return 3 * ctx.saved_tensors[1] * (grads.pop() if boxed and BOXES else grads)

    x = draw.leaf(3)
    found = torch.autograd.grad(penalty(Cube.apply(x), x), x)[0]
    torch.testing.assert_close(found, torch.autograd.grad(penalty(x**3, x), x)[0])


@each_of_one
def test_inside_a_checkpoint(operation: Operation, draw: Draw) -> None:
    """F15: the Function inside a non-reentrant checkpoint, differentiated three times."""
    function = first(operation.make().apply)

    def checkpointed(x: Tensor) -> Any:
        return checkpoint(lambda t: function(t * 1.5), x, use_reentrant=False)

    assert_exact(checkpointed, lambda x: first(operation.formula)(x * 1.5), [draw.leaf(3)])


@each_of_one
@pytest.mark.parametrize("inside", [False, True], ids=["leaf", "inside"])
def test_saved_tensor_hooks(operation: Operation, inside: bool, draw: Draw) -> None:
    """F15: saved tensors that a hook has taken away and brought back are connected as before."""
    function = first(operation.make().apply)

    def offloaded(x: Tensor) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t.clone()):
            return function(x * 1.5 if inside else x)

    assert_exact(offloaded, lambda x: first(operation.formula)(x * 1.5 if inside else x), [draw.leaf(3)])


@pytest.mark.parametrize("name", ["argument_saved", "output_saved"])
def test_hooks_on_tensors_and_nodes(name: str, draw: Draw) -> None:
    """F15: hooks on the argument, the output and the node see and change gradients as for the formula."""
    operation = EXACT[name]

    def hooked(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(leaf: Tensor) -> Tensor:
            x = leaf * 1.5
            x.register_hook(lambda g: g * 2)
            y = inner(x)
            y.register_hook(lambda g: g * g)
            y.grad_fn.register_hook(lambda given, _: tuple(None if g is None else 3 * g for g in given))
            return y

        return call

    assert_exact(hooked(operation.make().apply), hooked(operation.formula), [draw.leaf(3)], order=2)


def test_float32_is_as_close_as_its_digits(draw: Draw) -> None:
    """F10: in float32 a replay agrees within rounding, and the second derivative has float32's accuracy."""
    x = draw.leaf(64)
    expected = tower(torch.sinh, [x], 2)
    got = tower(EXACT["intermediate_saved"].make().apply, [x.detach().float().requires_grad_()], 2)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours[0].double(), theirs[0], rtol=1e-5, atol=1e-5)
