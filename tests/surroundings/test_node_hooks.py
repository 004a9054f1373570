"""F15: hooks on tensors, nodes and modules, what can be read off nodes, and the engine's modes, as in PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction
from torch.autograd import graph

import pullback
from tests.surroundings.kind import Called, Kind, assert_right, assert_same, derivatives
from tests.surroundings.kinds import KINDS, each_kind, each_on_torch
from tests.transforms.derivatives import outputs_of, score

BASES = pytest.mark.parametrize("base", [TorchFunction, pullback.Function], ids=["torch", "pullback"])


def first_output(function: Called, leaves: list[Tensor]) -> Tensor:
    """Return the first differentiable output, computed with the same random numbers each time."""
    torch.manual_seed(3)
    return outputs_of(function(*leaves))[0]


# -- Hooks that change what passes -------------------------------------------------------------------------------------


def hooked_outputs(function: Called) -> Called:
    """Double each cotangent of the outputs, differentiably."""

    def called(*leaves: Tensor) -> Any:
        result = function(*leaves)
        for output in outputs_of(result):
            output.register_hook(lambda g: g * 2)
        return result

    return called


def hooked_inputs(function: Called) -> Called:
    """Square each gradient that comes out, differentiably."""

    def called(*leaves: Tensor) -> Any:
        inner = [leaf * 1 for leaf in leaves]
        for tensor in inner:
            tensor.register_hook(lambda g: g**2)
        return function(*inner)

    return called


def node_hooks(function: Called) -> Called:
    """Change gradients before and after the node, on the node."""

    def called(*leaves: Tensor) -> Any:
        result = function(*leaves)
        node: Any = outputs_of(result)[0].grad_fn
        node.register_prehook(lambda grads: tuple(None if g is None else g * 3 for g in grads))
        node.register_hook(lambda gx, grads: tuple(None if g is None else g * 5 for g in gx))
        return result

    return called


@each_kind
def test_tensor_hooks(kind: Kind) -> None:
    """Hooks on outputs and on arguments change gradients of both orders as they do around the formula."""
    for around in (hooked_outputs, hooked_inputs):
        function = around(kind.function())
        for seed in range(2):
            expected = derivatives(around(kind.formula), kind.draw(seed), once=kind.once)
            assert_same(derivatives(function, kind.draw(seed), once=kind.once), expected)


@each_kind
def test_hooks_on_the_node(kind: Kind) -> None:
    """A prehook gets the cotangents, a hook what comes out, for first gradients and for their derivatives."""
    function, hooked = kind.function(), node_hooks
    for seed in range(2):
        plain = derivatives(function, kind.draw(seed), 1, once=True)
        changed = derivatives(hooked(function), kind.draw(seed), 1, once=True)
        assert_same(changed[1:], [[gradient * 15 for gradient in plain[1]]])
        # With the output saved, a second derivative leads through the node again, which changes it again.
        again = kind.name == "saves_output"
        got, expected = (
            second_of(called, kind.draw(seed), factor)
            for called, factor in (
                (hooked(function), 15),
                (hooked(kind.function(TorchFunction)), 15) if again else (kind.formula, 1),
            )
        )
        assert_same([got], [expected])


def second_of(function: Called, leaves: list[Tensor], factor: float) -> list[Tensor]:
    """Return the gradients of a score of the gradients, each divided by a factor."""
    output = first_output(function, leaves)
    firsts = torch.autograd.grad(output.sum(), leaves, create_graph=True)
    total = score([gradient / factor for gradient in firsts], torch.Generator().manual_seed(7))
    return list(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))


@each_on_torch
def test_what_hooks_on_the_node_are_given(kind: Kind) -> None:
    """Prehooks and hooks see the same numbers of gradients, of the same shapes, as on torch's own node."""
    seen: list[list[Any]] = []
    for base in (TorchFunction, pullback.Function):
        function, events = kind.function(base), list[Any]()
        seen.append(events)
        for seed in range(2):
            leaves = kind.draw(seed)
            output = first_output(function, leaves)
            node: Any = output.grad_fn
            node.register_prehook(lambda grads, events=events: events.append(("pre", [_told(g) for g in grads])))
            node.register_hook(lambda gx, grads, events=events: events.append(("post", [_told(g) for g in gx])))
            output.sum().backward()
    assert seen[0] == seen[1]
    assert len(seen[0]) == 4


def _told(gradient: Tensor | None) -> Any:
    return None if gradient is None else (tuple(gradient.shape), gradient.dtype, gradient.tolist())


@each_kind
def test_removed_hooks(kind: Kind) -> None:
    """A handle takes a hook off again."""
    function = kind.function()
    for seed in range(2):
        leaves = kind.draw(seed)
        output = first_output(function, leaves)
        node: Any = output.grad_fn
        handles = [node.register_hook(_never), node.register_prehook(_never), output.register_hook(_never)]
        for handle in handles:
            handle.remove()
        expected = torch.autograd.grad(first_output(kind.formula, leaves).sum(), leaves)
        assert_same([torch.autograd.grad(output.sum(), leaves)], [expected])


def _never(*_: Any) -> None:
    raise AssertionError("a hook ran that was removed")


@each_kind
def test_hooks_after_accumulation(kind: Kind) -> None:
    """register_post_accumulate_grad_hook sees the finished gradient of each leaf, once."""
    function = kind.function()
    for seed in range(2):
        leaves, seen = kind.draw(seed), list[tuple[int, Tensor]]()
        for place, leaf in enumerate(leaves):
            leaf.register_post_accumulate_grad_hook(lambda p, at=place, seen=seen: seen.append((at, p.grad.clone())))
        first_output(function, leaves).sum().backward()
        assert sorted(place for place, _ in seen) == list(range(len(leaves)))
        expected = torch.autograd.grad(first_output(kind.formula, leaves).sum(), leaves)
        for place, gradient in seen:
            torch.testing.assert_close(gradient, expected[place], rtol=1e-10, atol=1e-12)


@each_kind
def test_retain_grad(kind: Kind) -> None:
    """Inner arguments and outputs keep their gradients when they are told to."""
    function = kind.function()
    for seed in range(2):
        found = []
        for called in (function, kind.formula):
            leaves = kind.draw(seed)
            inner = [leaf * 1 for leaf in leaves]
            output = first_output(called, inner)
            for tensor in (*inner, output):
                tensor.retain_grad()
            (output**2).sum().backward()
            found.append([tensor.grad for tensor in (*leaves, *inner, output)])
        assert_same([found[0]], [found[1]])


@each_kind
def test_multi_grad_hooks(kind: Kind) -> None:
    """register_multi_grad_hook runs once, with all gradients, or with the first of them."""
    function = kind.function()
    for mode in ("all", "any"):
        leaves, seen = kind.draw(), list[Any]()
        output = first_output(function, leaves)
        handle = graph.register_multi_grad_hook(leaves, seen.append, mode=mode)
        output.sum().backward()
        handle.remove()
        assert len(seen) == 1
        gradients = seen[0] if mode == "all" else [seen[0]]
        assert all(gradient is not None for gradient in gradients)


# -- Modules -----------------------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """A weight and a function of two tensors."""

    def __init__(self, function: Called) -> None:
        """Keep the function."""
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to the argument and the weight."""
        result = self.function(x, self.weight)
        return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.leaves == 2])
def test_backward_hooks_of_modules(name: str) -> None:
    """Full backward hooks and prehooks of a module get the formula's gradients, and may change them."""
    kind, found = KINDS[name], []
    for called in (kind.function(), kind.formula):
        for seed in range(2):
            layer, seen = Layer(called), list[Any]()
            layer.register_full_backward_pre_hook(lambda module, g, seen=seen: (seen.append(g), (g[0] * 2,))[1])
            layer.register_full_backward_hook(lambda module, gx, g, seen=seen: (seen.extend((gx, g)), (gx[0] * 3,))[1])
            (x, _) = kind.draw(seed)
            (layer(x) ** 2).sum().backward()
            assert len(seen) == 3
            found.append([x.grad, layer.weight.grad, *(entry[0] for entry in seen)])
    assert_same(found[:2], found[2:])


# -- What can be read off a node ---------------------------------------------------------------------------------------


@each_on_torch
def test_what_a_node_shows(kind: Kind) -> None:
    """Name, next functions, input metadata and metadata are those of torch's own node."""
    shown = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        for seed in range(2):
            leaves = kind.draw(seed)
            output = first_output(function, leaves)
            node: Any = output.grad_fn
            assert isinstance(node, graph.Node)
            node.metadata["key"] = "value"
            # Nodes are looked up anew, and what was put on one is still there.
            assert output.grad_fn.metadata == {"key": "value"}
            shown.append(
                [
                    node.name(),
                    [None if n is None else (n.name(), number) for n, number in node.next_functions],
                    [(m.shape, m.dtype, m.device) for m in node._input_metadata],
                    type(node).__name__,
                    node._sequence_nr() >= 0,
                ]
            )
    assert shown[:2] == shown[2:]


@each_kind
def test_gradient_edges(kind: Kind) -> None:
    """Gradients can be taken with respect to edges and from edges, at both orders."""
    function = kind.function()
    for seed in range(2):
        leaves = kind.draw(seed)
        inner = [leaf * 1 for leaf in leaves]
        edges = [graph.get_gradient_edge(tensor) for tensor in inner]
        output = first_output(function, inner)
        assert graph.get_gradient_edge(output).node is output.grad_fn
        total = output.sum()
        got = torch.autograd.grad(graph.get_gradient_edge(total), edges, retain_graph=not kind.once)
        expected = torch.autograd.grad(first_output(kind.formula, leaves).sum(), leaves)
        assert_same([got], [expected])


# -- The engine's modes ------------------------------------------------------------------------------------------------


def one_thread(function: Called) -> Called:
    """Take derivatives on the calling thread."""

    def called(*leaves: Tensor) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return function(*leaves)

    return called


@each_kind
def test_one_thread(kind: Kind) -> None:
    """With set_multithreading_enabled(False) both orders are the formula's."""
    with torch.autograd.set_multithreading_enabled(False):
        assert_right(kind, one_thread)


@each_kind
def test_anomaly_mode(kind: Kind) -> None:
    """With set_detect_anomaly both orders are the formula's, and nothing warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        with torch.autograd.set_detect_anomaly(True):
            assert_right(kind, lambda function: function)


def nan_in_backward(base: Any) -> Called:
    """Make a Function whose backward returns NaN."""

    class Broken(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * float("nan")

    return Broken.apply


@BASES
def test_anomaly_mode_finds_the_function(base: Any) -> None:
    """A NaN that a backward returns is reported by the node's name, with the caller's line in the trace."""
    function = nan_in_backward(base)
    for _ in range(2):
        (x,) = KINDS["saves_output"].draw()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.autograd.set_detect_anomaly(True):
                y = function(x)
                with pytest.raises(RuntimeError, match="'BrokenBackward' returned nan values in its 0th output"):
                    y.sum().backward()
        told = "".join(str(warning.message) for warning in caught)
        assert "y = function(x)" in told


# -- Saved tensors that are written to ---------------------------------------------------------------------------------


@each_on_torch
def test_writes_to_saved_tensors_that_are_allowed(kind: Kind) -> None:
    """Under allow_mutation_on_saved_tensors a Function's saved tensors are copied before they are written to."""
    found = []
    for base in (TorchFunction, pullback.Function):
        function = kind.function(base)
        for seed in range(2):
            leaves = kind.draw(seed)
            with graph.allow_mutation_on_saved_tensors():
                inner = [leaf * 1 for leaf in leaves]
                output = first_output(function, inner)
                with torch.no_grad():
                    for tensor in inner:
                        tensor.zero_()
                found.append(list(torch.autograd.grad(output.sum(), leaves)))
    assert_same(found[2:], found[:2])


def test_derivatives_after_allowed_writes() -> None:
    """The second derivative is that at the point where the call was made."""
    kind = KINDS["saves_inputs"]
    for seed in range(2):
        results = []
        for called in (kind.function(), kind.formula):
            leaves = kind.draw(seed)
            with graph.allow_mutation_on_saved_tensors():
                inner = [leaf * 1 for leaf in leaves]
                output = first_output(called, inner)
                with torch.no_grad():
                    inner[1].mul_(3)
                firsts = torch.autograd.grad(output.sum(), leaves, create_graph=True)
                results.append(torch.autograd.grad(score(firsts, torch.Generator().manual_seed(1)), leaves))
        assert_same([results[0]], [results[1]])
