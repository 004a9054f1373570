"""F13: where Dynamo breaks its graph, a call is run in Python as if nothing were compiled, guards and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError
from tests.compiled.running import assert_same, results
from tests.function.kinds import leaf


def broken(**attributes: Any) -> Any:
    """Make exp(x) k, with its result saved, in whose forward Dynamo breaks the graph."""

    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        torch._dynamo.graph_break()
        y = x.exp()
        ctx.save_for_backward(y.clone())
        ctx.k = k
        return y * k

    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0] * ctx.k, None

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward), **attributes}
    return type("Broken", (pullback.Function,), body)


def test_gradients_of_both_orders() -> None:
    """F13: values, gradients and second derivatives are eager's, also where an intermediate was saved."""
    made, x = broken(), leaf(3)
    compiled = torch.compile(lambda x: made.apply(x.sin(), 2.0).cos(), backend="aot_eager")
    assert_same(results(compiled, (x,), x), results(lambda x: (x.sin().exp() * 2).cos(), (x,), x))
    outside = torch.compile(lambda x: made.apply(x, 2.0), backend="eager")
    (gradient,) = torch.autograd.grad(outside(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, 2 * x.detach().exp())


def test_a_second_derivative_that_can_t_be_had_still_raises() -> None:
    """F13: what Python runs has eager's guards: no second derivative is wrong in silence."""
    made, x = broken(replayable=False), leaf(3)
    compiled = torch.compile(lambda x: made.apply(x, 2.0), backend="eager")
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    with pytest.raises(HigherOrderError, match="PB206"):
        torch.autograd.grad(gradient.sum(), x)


def test_nests_and_keywords() -> None:
    """F13: a nest is put together again for Python, and so are keyword-only arguments."""

    class Scaled(pullback.Function):
        @staticmethod
        def forward(ctx: Any, state: dict[str, list[Tensor]], *, k: float) -> dict[str, Tensor]:
            torch._dynamo.graph_break()
            ctx.save_for_backward(*state["w"])
            ctx.k = k
            return {"y": state["w"][0] * state["w"][1] * k}

        @staticmethod
        def backward(ctx: Any, g: dict[str, Tensor]) -> Any:
            a, b = ctx.saved_tensors
            return {"state": {"w": [g["y"] * b * ctx.k, g["y"] * a * ctx.k]}}

    a, b = leaf(3), leaf(3, seed=1)
    compiled = torch.compile(lambda a, b: Scaled.apply({"w": [a.sin(), b]}, k=3.0)["y"].cos(), backend="aot_eager")
    due = results(lambda a, b: (a.sin() * b * 3).cos(), (a, b), a, b)
    assert_same(results(compiled, (a, b), a, b), due)


def test_a_branch_on_values() -> None:
    """F13: what depends on data, in forward and in backward, breaks the graph and stays right."""

    class Clipped(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2 if x.sum() > 0 else x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g * 2 if x.sum() > 0 else g * 3

    compiled = torch.compile(lambda x: Clipped.apply(x).sum() * 1.5, backend="aot_eager")
    for sign, factor in ((1, 2.0), (-1, 3.0), (1, 2.0)):
        x = (sign * torch.ones(3)).requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], torch.full((3,), 1.5 * factor))


def test_backward_within_compiled_code() -> None:
    """F13: a step whose backward Python runs amid compiled code has eager's gradients, to second order."""
    made, x = broken(), leaf(3)

    def penalty(x: Tensor) -> Any:
        loss = (made.apply(x, 2.0) ** 2).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        torch._dynamo.graph_break()
        return torch.autograd.grad((first**2).sum(), x)

    with torch._dynamo.config.patch(trace_autograd_ops=False):
        assert_same(torch.compile(penalty, backend="eager")(x), penalty(x))


def test_pullback_s_own_frames_aren_t_compiled() -> None:
    """F13: Dynamo compiles the author's code, and none of the machinery around it."""
    beginnings: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        beginnings.extend(str(node.stack_trace).split("File ")[1] for node in module.graph.nodes if node.stack_trace)
        return module

    made, x = broken(), leaf(3)

    def program(x: Tensor) -> Any:
        y = made.apply(x, 2.0)
        torch._dynamo.graph_break()
        return torch.autograd.grad(y.sum(), x, create_graph=True)

    (first,) = torch.compile(program, backend=backend)(x)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], 2 * x.detach().exp())
    assert any(__file__ in line for line in beginnings)
    package = str(Path(pullback.__file__).parent)
    assert not [line for line in beginnings if package in line]


@pytest.mark.parametrize("depth", [1, 3])
def test_apply_itself_compiled(depth: int) -> None:
    """F13: ``torch.compile(F.apply)``, broken or not, ends, and gives eager's gradient."""
    made, x = broken(), leaf(3)
    compiled = torch.compile(made.apply, backend="eager")
    for _ in range(depth):
        out = compiled(x, 2.0)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], 2 * x.detach().exp())
