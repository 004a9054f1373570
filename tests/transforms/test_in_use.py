"""Higher orders as they are used: penalties, Hessians, meta-learning and learned optimisers, on a small network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.transforms.derivatives import Draw, Formula, penalty


class Linear(pullback.Function):
    """x wᵀ + b; saves what the gradients need, and not the bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t() + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        need_x, need_w, need_b = ctx.needs_input_grad
        return g @ w if need_x else None, g.t() @ x if need_w else None, g.sum(0) if need_b else None


class ReferredLinear(Linear):
    """The same with a reference, which can't be run where the bias is neither saved nor a leaf."""

    @staticmethod
    def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x @ w.t() + b


class Softplus(pullback.Function):
    """log(1 + exp(x)); saves the sigmoid beside the argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.sigmoid())
        return torch.log1p(x.exp())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[1]


class OpaqueSoftplus(pullback.Function):
    """The same with a backward in NumPy, and its derivative written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.log1p(x.exp())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(g.detach().numpy() * x.detach().sigmoid().numpy())

    @staticmethod
    def double_backward(ctx: Any, gg: Tensor) -> Tensor:
        s = ctx.saved_tensors[0].sigmoid()
        return s * (1 - s) * gg


class RelatedSoftplus(pullback.Function):
    """The same with a reference, saving the sigmoid alone: its argument must be a leaf, or found in the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.sigmoid())
        return torch.log1p(x.exp())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.from_numpy(g.detach().numpy() * ctx.saved_tensors[1].numpy())

    @staticmethod
    def reference(x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(x)


def plain_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return the layer as a formula."""
    return x @ w.t() + b


NETWORKS: dict[str, tuple[Any, Any]] = {
    "replayed": (Linear, Softplus),
    "double_backward": (Linear, OpaqueSoftplus),
    "reference": (ReferredLinear, RelatedSoftplus),
}
each_network = pytest.mark.parametrize("layer", NETWORKS.values(), ids=NETWORKS)

Network = Callable[[Tensor, Sequence[Tensor]], Tensor]


def network(linear: Formula, activation: Formula) -> Network:
    """Return two layers with an activation between them, as a function of input and parameters."""

    def run(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        w1, b1, w2, b2 = parameters
        out: Tensor = linear(activation(linear(x, w1, b1)), w2, b2)
        return out

    return run


def both(layer: tuple[Any, Any]) -> tuple[Network, Network]:
    """Return the network of Functions and the one of formulas."""
    plain = network(plain_linear, torch.nn.functional.softplus)
    return network(*(function.apply for function in layer)), plain


def parameters(draw: Draw) -> list[Tensor]:
    """Draw the parameters of the network."""
    return [draw.leaf(4, 3, low=-1.0), draw.leaf(4, low=-1.0), draw.leaf(2, 4, low=-1.0), draw.leaf(2, low=-1.0)]


def assert_close(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Require the numbers of autograd, in float64."""
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@each_network
def test_gradient_penalty(layer: tuple[Any, Any], draw: Draw) -> None:
    """F7 to F10: the penalty of a Wasserstein critic, by its parameters and its input."""
    x, weights = draw.leaf(5, 3, low=-1.0), parameters(draw)

    def gradients(run: Network) -> Sequence[Tensor]:
        return torch.autograd.grad(
            penalty(run(x, weights), x), [x, *weights], allow_unused=True, materialize_grads=True
        )

    got, expected = map(gradients, both(layer))
    assert_close(got, expected)


@each_network
def test_hessian_vector_product(layer: tuple[Any, Any], draw: Draw) -> None:
    """F7 to F10: the product of the Hessian by the parameters with a direction."""
    x, weights = draw.constant(5, 3, low=-1.0), parameters(draw)
    directions = [draw.constant(*weight.shape, low=-1.0) for weight in weights]

    def product(run: Network) -> Sequence[Tensor]:
        loss = run(x, weights).square().mean()
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        return torch.autograd.grad(gradients, weights, directions)

    got, expected = map(product, both(layer))
    assert_close(got, expected)


@each_network
def test_hessian(layer: tuple[Any, Any], draw: Draw) -> None:
    """F7 to F10: the whole Hessian by the input, row by row from one graph."""
    weights, start = parameters(draw), draw.constant(3, low=-1.0)

    def hessian(run: Network) -> Sequence[Tensor]:
        found = torch.autograd.functional.hessian(lambda x: run(x[None], weights).square().sum(), start)
        return [found]

    got, expected = map(hessian, both(layer))
    assert_close(got, expected)


@each_network
def test_inner_step_of_meta_learning(layer: tuple[Any, Any], draw: Draw) -> None:
    """F7 to F10: MAML's outer gradient through three inner steps, whose parameters are no leaves."""
    x, y, weights = draw.constant(5, 3, low=-1.0), draw.constant(5, 2), parameters(draw)

    def outer(run: Network) -> Sequence[Tensor]:
        fast = weights
        for _ in range(3):
            loss = (run(x, fast) - y).square().mean()
            gradients = torch.autograd.grad(loss, fast, create_graph=True)
            fast = [weight - 0.3 * gradient for weight, gradient in zip(fast, gradients, strict=True)]
        return torch.autograd.grad((run(x, fast) - y).square().mean(), weights)

    got, expected = map(outer, both(layer))
    assert_close(got, expected)


@each_network
def test_learned_optimizer_step(layer: tuple[Any, Any], draw: Draw) -> None:
    """F7 to F10: a step computed from the gradients by a small network is differentiated by its parameters."""
    x, y, weights = draw.constant(5, 3, low=-1.0), draw.constant(5, 2), parameters(draw)
    rule = [draw.leaf(4, 1, low=-1.0), draw.leaf(4, low=-1.0), draw.leaf(1, 4, low=-1.0), draw.leaf(1, low=-1.0)]

    def meta(run: Network) -> Sequence[Tensor]:
        current = weights
        for _ in range(2):
            gradients = torch.autograd.grad((run(x, current) - y).square().mean(), current, create_graph=True)
            steps = [run(gradient.reshape(-1, 1), rule).reshape(gradient.shape) for gradient in gradients]
            current = [weight - 0.1 * step for weight, step in zip(current, steps, strict=True)]
        return torch.autograd.grad((run(x, current) - y).square().mean(), [*rule, *weights])

    got, expected = map(meta, both(layer))
    assert_close(got, expected)


@each_network
def test_accumulated_penalties(layer: tuple[Any, Any], draw: Draw) -> None:
    """F7: loss and penalty accumulated by backward(), with retain_graph, give the same sums."""
    x, weights = draw.leaf(5, 3, low=-1.0), parameters(draw)

    def accumulated(run: Network) -> list[Tensor]:
        for weight in weights:
            weight.grad = None
        out = run(x, weights)
        out.square().mean().backward(retain_graph=True, inputs=weights)
        penalty(out, x).backward(inputs=weights)
        found = [weight.grad for weight in weights]
        return [gradient for gradient in found if gradient is not None]

    got, expected = map(accumulated, both(layer))
    assert len(got) == len(weights)
    assert_close(got, expected)
