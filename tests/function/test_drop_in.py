"""F1: a Function rebased from torch.autograd.Function on pullback.Function does what it did."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

import pullback
from tests.function.kinds import Kind, assert_same, describe, each, observe, outputs_of
from tests.function.kinds_context import CONTEXT
from tests.function.kinds_surroundings import SURROUNDINGS
from tests.function.kinds_written import WRITTEN

KINDS = [*WRITTEN, *CONTEXT, *SURROUNDINGS]
each_kind = pytest.mark.parametrize("kind", each(KINDS))


@each_kind
def test_values_and_gradients_are_torchs(kind: Kind) -> None:
    """F1: values, the graph's nodes and gradients, for all outputs and for one at a time, are torch's bit for bit."""
    assert_same(observe(kind, pullback.Function), observe(kind, torch.autograd.Function))


@each_kind
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_without_grad_mode_all_is_as_in_torch(kind: Kind, mode: type[AbstractContextManager[None]]) -> None:
    """F1: under no_grad and inference_mode nothing is recorded, and the values are the same."""

    def results(base: type) -> list[Any]:
        function = kind.make(base)
        arguments = kind.arguments()
        with mode():
            outputs = outputs_of(kind.call(function, *arguments))
        return [describe(output, arguments) for output in outputs]

    assert_same(results(pullback.Function), results(torch.autograd.Function))


@each_kind
def test_arguments_that_require_no_grad_give_outputs_that_dont(kind: Kind) -> None:
    """F1: without an argument that requires grad the outputs have no node, as in torch."""

    def results(base: type) -> list[Any]:
        function = kind.make(base)
        arguments = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in kind.arguments())
        return [describe(output, arguments) for output in outputs_of(kind.call(function, *arguments))]

    got = results(pullback.Function)
    assert_same(got, results(torch.autograd.Function))
    assert all(not entry[1][0] for entry in got if isinstance(entry[0], torch.Tensor))


@each_kind
def test_a_second_backward_fails_or_works_as_in_torch(kind: Kind) -> None:
    """F1: with retain_graph a second backward gives the same again; without it, the error is torch's."""

    def results(base: type, *, retain_graph: bool) -> list[Any]:
        function = kind.make(base)
        arguments = kind.arguments()
        leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
        outputs = outputs_of(kind.call(function, *arguments))
        outputs = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        if not outputs:
            return []
        cotangents = [torch.ones_like(o) for o in outputs]
        seen: list[Any] = []
        for _ in range(2):
            try:
                seen += torch.autograd.grad(outputs, leaves, cotangents, retain_graph=retain_graph, allow_unused=True)
            except RuntimeError as error:
                # The first sentence; what follows in torch's own text is advice.
                seen.append(str(error).split(" (")[0])
        return seen

    for retain_graph in (True, False):
        got = results(pullback.Function, retain_graph=retain_graph)
        assert_same(got, results(torch.autograd.Function, retain_graph=retain_graph))


def test_the_class_stays_what_it_was() -> None:
    """F1: its methods can be called by hand, and the node says which class it comes from."""

    class Square(pullback.Function):
        """y = x², with a helper of its own."""

        factor = 2

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return Square.helper(x)

        @staticmethod
        def helper(x: torch.Tensor) -> torch.Tensor:
            return x * x

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return Square.factor * ctx.saved_tensors[0] * g

    class Recorder:
        """A ctx for a call by hand."""

        saved_tensors: tuple[torch.Tensor, ...]

        def save_for_backward(self, *tensors: torch.Tensor) -> None:
            """Keep them."""
            self.saved_tensors = tensors

    ctx, x = Recorder(), torch.tensor([3.0], requires_grad=True)
    assert Square.forward(ctx, x).tolist() == [9]
    assert Square.backward(ctx, torch.ones(1)).tolist() == [6]
    assert issubclass(Square, torch.autograd.Function)
    assert Square.__name__ == "Square"
    assert Square.__doc__ == "y = x², with a helper of its own."
    y = Square.apply(x)
    node = y.grad_fn
    assert isinstance(node, Square._backward_cls)
    assert node.name() == "SquareBackward"
    assert [tensor is x for tensor in node.saved_tensors] == [True]


def test_hooks_on_the_node_run_as_in_torch() -> None:
    """F1: hooks before and after the node, and on its tensors, see and change what they do in torch."""

    def results(base: type) -> list[Any]:
        (kind,) = (kind for kind in KINDS if kind.name == "forward_takes_ctx")
        (x,) = kind.arguments()
        seen: list[Any] = []
        y = kind.make(base).apply(x)
        y.register_hook(lambda g: g * 2)
        x.register_hook(lambda g: seen.append(g.clone()))
        y.grad_fn.register_prehook(lambda grads: (grads[0] + 1,))
        y.grad_fn.register_hook(lambda grad_inputs, grad_outputs: seen.extend([*grad_inputs, *grad_outputs]))
        y.grad_fn.metadata["note"] = "kept"
        y.sum().backward()
        return [*seen, x.grad, y.grad_fn.metadata]

    assert_same(results(pullback.Function), results(torch.autograd.Function))


def test_attributes_of_ctx_are_seen_on_the_node() -> None:
    """F1: what forward keeps on ctx can be read from grad_fn, and changed there before backward."""

    def results(base: type) -> list[Any]:
        class Scale(base):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                ctx.factor = 3
                return x * 3

            @staticmethod
            def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
                return g * ctx.factor

        x = torch.ones(2, requires_grad=True)
        y = Scale.apply(x)
        before = y.grad_fn.factor
        y.grad_fn.factor = 5
        y.sum().backward()
        return [before, x.grad]

    assert_same(results(pullback.Function), results(torch.autograd.Function))
