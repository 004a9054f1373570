"""Higher orders for a batch of cotangents at once, whose graph PyTorch hides: exact, or a named error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError
from tests.transforms.derivatives import Draw, outputs_of
from tests.transforms.operations import EXACT, Operation
from tests.transforms.test_opaque_backward import once, recomputing, square

ONE_REAL = {name: o for name, o in EXACT.items() if len(o.shapes) == 1 and not o.dtype.is_complex}
each_of_one = pytest.mark.parametrize("operation", ONE_REAL.values(), ids=ONE_REAL)


def by_is_grads_batched(output: Tensor, x: Tensor) -> Tensor:
    """Return the Jacobian, by the batching of torch.autograd.grad itself."""
    rows = torch.eye(len(output), dtype=output.dtype)
    return torch.autograd.grad(output, x, rows, is_grads_batched=True, create_graph=True)[0]


def by_vmap(output: Tensor, x: Tensor) -> Tensor:
    """Return the Jacobian, by vmap around torch.autograd.grad."""

    def row(cotangent: Tensor) -> Tensor:
        return torch.autograd.grad(output, x, cotangent, create_graph=True, retain_graph=True)[0]

    found: Tensor = torch.func.vmap(row)(torch.eye(len(output), dtype=output.dtype))
    return found


BATCHINGS = (by_is_grads_batched, by_vmap)
each_batching = pytest.mark.parametrize("jacobian", BATCHINGS)


def curvature(function: Callable[..., Any], x: Tensor, jacobian: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the derivative of a penalty on the Jacobian, in which x takes part on another path too."""
    rows = jacobian(outputs_of(function(x))[0], x)
    return torch.autograd.grad((rows * rows).sum() + (x**3).sum(), x)[0]


@each_batching
@each_of_one
def test_exact_operations(operation: Operation, jacobian: Callable[[Tensor, Tensor], Tensor], draw: Draw) -> None:
    """F7 to F10: what is exact for one cotangent is so for a batch, save where PyTorch refuses what backward does."""
    x = draw.leaf(3)
    expected = curvature(operation.formula, x, jacobian)
    if jacobian is by_vmap and operation is EXACT["autograd_inside"]:
        with pytest.raises(RuntimeError, match="requires_grad_"):  # backward calls it, which vmap refuses
            curvature(operation.make().apply, x, jacobian)
    else:
        torch.testing.assert_close(curvature(operation.make().apply, x, jacobian), expected)


@each_of_one
def test_vectorised_hessian(operation: Operation, draw: Draw) -> None:
    """F7 to F10: torch.autograd.functional.hessian with vectorize=True."""

    def hessian(inner: Callable[..., Any], *, vectorize: bool) -> Tensor:
        def loss(x: Tensor) -> Tensor:
            return outputs_of(inner(x))[0].square().sum()

        found: Tensor = torch.autograd.functional.hessian(loss, start, vectorize=vectorize)
        return found

    start = draw.constant(3)
    got = hessian(operation.make().apply, vectorize=True)
    torch.testing.assert_close(got, hessian(operation.formula, vectorize=False))


@each_batching
def test_reference(jacobian: Callable[[Tensor, Tensor], Tensor], draw: Draw) -> None:
    """F10: the derivative of a batch comes from the reference, the values from backward."""

    class Cube(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * g

        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x**3

    x = draw.leaf(3)
    expected = curvature(Cube.reference, x, jacobian)
    torch.testing.assert_close(curvature(Cube.apply, x, jacobian), expected)

    class Detached(Cube):
        @staticmethod
        def reference(x: Tensor) -> Tensor:
            return x.detach() ** 3

    with pytest.raises(HigherOrderError, match=r"PB207 .*the reference doesn't depend on x"):
        curvature(Detached.apply, x, jacobian)


def hidden_in_numpy() -> Any:
    """Make exp with an intermediate that nothing can connect."""

    class Exp(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, torch.from_numpy(x.detach().exp().numpy()))
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

    return Exp


REFUSED: dict[str, tuple[Any, str]] = {
    "double_backward": (square(forward_in_numpy=True, double_backward=lambda ctx, gg: 2 * gg), "PB207"),
    "once_differentiable": (once(), "PB207"),
    "opaque": (square(forward_in_numpy=True), "PB207"),
    "detached_copy": (recomputing(connected=True, forward_in_numpy=True), "PB207"),
    "cut_off": (hidden_in_numpy(), "PB206"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_connected_is_refused(case: tuple[Any, str], draw: Draw) -> None:
    """F8, F9: no guard would hold on a batch, so it raises when the gradients are asked for."""
    function, code = case
    x = draw.leaf(3)
    with pytest.raises(HigherOrderError, match=code):
        by_is_grads_batched(function.apply(x), x)


def test_the_text_of_a_refusal(draw: Draw) -> None:
    """F9: the error says what was asked, and to ask for it in a loop."""
    x = draw.leaf(3)
    with pytest.raises(HigherOrderError) as caught:
        by_is_grads_batched(once().apply(x), x)
    assert str(caught.value).splitlines() == [
        "PB207 the gradients of Once are asked for a batch of cotangents, to be differentiated; once_differentiable "
        "needs a node that is dropped there.",
        "  expected: one cotangent at a time, or gradients that aren't differentiated",
        "  got: is_grads_batched with create_graph",
        "  remedy: Take the gradients in a loop over the cotangents.",
    ]


@pytest.mark.parametrize("function", [function for function, _ in REFUSED.values()], ids=REFUSED)
def test_first_order_batches_are_untouched(function: Any, draw: Draw) -> None:
    """F1: without create_graph a batch runs as in PyTorch, wherever backward can."""
    x = draw.leaf(3)
    output = function.apply(x)
    rows = torch.eye(3, dtype=x.dtype)
    if function.__name__ == "OpaqueBackward":  # it detaches the cotangent, for which PyTorch's batching has no rule
        with pytest.raises(RuntimeError, match="Batching rule not implemented for aten::detach"):
            torch.autograd.grad(output, x, rows, is_grads_batched=True)
        return
    (rows,) = torch.autograd.grad(output, x, rows, is_grads_batched=True)
    expected = [torch.autograd.grad(function.apply(x), x, row)[0] for row in torch.eye(3, dtype=x.dtype)]
    torch.testing.assert_close(rows, torch.stack(expected))
