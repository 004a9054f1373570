"""F7: double_backward takes one entry for each leaf, and returns one for each, or a dict of nests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pullback
from pullback.errors import DefinitionError, GradientError
from tests.call.nests import KINDS, second_order
from tests.function.kinds import leaf

RESULTS = ("by position", "by name")


def opaque(kind: Any, result: str) -> Any:
    """Define y = a b k, returned in a list, as a Function whose second derivative is its double_backward's alone."""

    def forward(ctx: Any, n: Any, k: float) -> Any:
        a, b = kind.take(n)
        ctx.save_for_backward(a, b)
        ctx.k = k
        return [a * b * k]

    def backward(ctx: Any, g: Any) -> Any:
        with torch.no_grad():
            a, b = ctx.saved_tensors
            gradient = kind.make(g[0] * b * ctx.k, g[0] * a * ctx.k)
            if isinstance(gradient, list) and isinstance(gradient[-1], tuple):
                gradient[-1] = (None, gradient[-1][1])  # the number 2 has no gradient
            return gradient, None

    def double_backward(ctx: Any, *grad_grads: Tensor | None) -> Any:
        # Of the leaves of the two tensors, and of numbers among them and k, which get None.
        assert ctx.needs_input_grad == (True, False)
        tensors = [gradient for gradient in grad_grads if gradient is not None]
        (g,), (a, b) = ctx.grad_outputs[0], ctx.saved_tensors
        first, second = grad_grads[0], grad_grads[-2]
        if kind is KINDS["dict the other way round"]:
            first, second = second, first
        assert len(tensors) == a.requires_grad + b.requires_grad
        ggy = sum(
            (gg * other * ctx.k for gg, other in ((first, b), (second, a)) if gg is not None), torch.zeros_like(a)
        )
        ga = torch.zeros_like(a) if second is None else second * g * ctx.k
        gb = torch.zeros_like(b) if first is None else first * g * ctx.k
        if result == "by name":
            nest = kind.make(ga, gb)
            if isinstance(nest, list) and isinstance(nest[-1], tuple):
                nest[-1] = (None, nest[-1][1])
            return {"grad_outputs": ([ggy],), "n": nest}
        if kind is KINDS["dict the other way round"]:
            ga, gb = gb, ga
        return (ggy, ga, *(None for _ in grad_grads[1:-2]), gb, None)

    body = {"forward": forward, "backward": backward, "double_backward": double_backward}
    return type("Scaled", (pullback.Function,), {name: staticmethod(method) for name, method in body.items()})


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("name", KINDS)
def test_every_kind(name: str, result: str) -> None:
    """F7: second derivatives come from double_backward, whatever holds the leaves; frozen ones count as leaves."""
    kind = KINDS[name]
    made = opaque(kind, result)
    for seed, frozen in enumerate([None, 1, 0, None]):
        tensors = [leaf(3, seed=seed), leaf(3, seed=seed + 5)]
        if frozen is not None:
            tensors[frozen].requires_grad_(False)
        a, b = tensors
        wanted = [x for x in tensors if x.requires_grad]
        got = second_order(lambda: (made.apply(kind.make(a, b), 3.0)[0], torch.zeros(1)), *wanted)  # noqa: B023  # called at once
        due = second_order(lambda: (a * b * 3.0, torch.zeros(1)), *wanted)  # noqa: B023  # called within the turn
        for one, other in zip(got, due, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_third_order() -> None:
    """F7: what double_backward does is differentiated in turn."""
    made, kind = opaque(KINDS["dict"], "by name"), KINDS["dict"]
    a, b = leaf(3, seed=1), leaf(3, seed=2)

    def third(y: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad((y**3).sum(), (a, b), create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (a, b), create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in second), (a, b))

    for got, due in zip(third(made.apply(kind.make(a, b), 3.0)[0]), third(a * b * 3.0), strict=True):
        torch.testing.assert_close(got, due, rtol=1e-11, atol=0)


def test_a_module_has_one_leaf_for_each_parameter() -> None:
    """F7: and none for itself."""

    class Linear(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:
            ctx.save_for_backward(x, layer.weight)
            return layer(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = (saved.detach() for saved in ctx.saved_tensors)
            g = g.detach()
            return g @ w, {"weight": g.t() @ x, "bias": g.sum(0)}

        @staticmethod
        def double_backward(ctx: Any, ggx: Tensor, ggw: Tensor, ggb: Tensor) -> Any:
            x, w = ctx.saved_tensors
            (g,) = ctx.grad_outputs
            return ggx @ w.t() + x @ ggw.t() + ggb, g @ ggw, g.t() @ ggx, None

    for seed in range(2):
        x, layer = leaf(4, 3, seed=seed), nn.Linear(3, 2, dtype=torch.float64)
        leaves = [x, layer.weight, layer.bias]
        got = second_order(lambda: (Linear.apply(x, layer), torch.zeros(1)), *leaves)  # noqa: B023  # called at once
        due = second_order(lambda: (layer(x), torch.zeros(1)), *leaves)  # noqa: B023  # called within the turn
        for one, other in zip(got, due, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


WRONG: dict[str, tuple[Any, str]] = {
    "too few": (lambda gg: (gg, gg), "2 entries"),
    "a list": (lambda gg: [gg, gg, gg, None], "list"),
    "a nest among them": (lambda gg: (gg, [gg, gg], None, None), "an entry of type list"),
    "an unknown name": (lambda gg: {"grad_outputs": gg, "m": gg}, "a dict with the unknown name 'm'"),
    "no grad_outputs": (lambda gg: {"n": [gg, gg]}, "a dict without an entry for grad_outputs"),
    "another nest": (lambda gg: {"grad_outputs": gg, "n": [gg]}, "1 for n"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_used(name: str) -> None:
    """F7: PB220 says how many entries are due, leaf by leaf, or which names."""
    returned, got = WRONG[name]
    body = {
        "forward": staticmethod(lambda ctx, n, k: n[0] * n[1]),
        "backward": staticmethod(lambda ctx, g: ([g.detach() * 2, g.detach()], None)),
        "double_backward": staticmethod(lambda ctx, gga, ggb, ggk: returned(gga)),
    }
    made: Any = type("Odd", (pullback.Function,), body)
    a, b = leaf(3), leaf(3)
    gradients = torch.autograd.grad((made.apply([a, b], 2) ** 2).sum(), (a, b), create_graph=True)
    with pytest.raises(GradientError) as caught:
        torch.autograd.grad(gradients[0].sum(), a)
    assert str(caught.value).splitlines() == [
        "PB220 Odd.double_backward returned what can't be its gradients.",
        "  expected: 4 entries: one for each of 1 grad_outputs, then one for each of n[0], n[1], k; or a dict of the "
        "arguments' names and grad_outputs",
        f"  got: {got}",
        '  remedy: Return a tuple with one gradient for each, or a dict: {"grad_outputs": …, "n": …, "k": …}.',
    ]


def test_parameters_that_do_not_fit_the_leaves() -> None:
    """F3: PB111 names the leaves of the call."""
    body = {
        "forward": staticmethod(lambda ctx, n: n["a"] * n["b"]),
        "backward": staticmethod(lambda ctx, g: ({"a": g.detach(), "b": g.detach()},)),
        "double_backward": staticmethod(lambda ctx, gg: gg),
    }
    made: Any = type("Odd", (pullback.Function,), body)
    a, b = leaf(3), leaf(3)
    gradients = torch.autograd.grad((made.apply({"a": a, "b": b}) ** 2).sum(), (a, b), create_graph=True)
    with pytest.raises(DefinitionError) as caught:
        torch.autograd.grad(gradients[0].sum(), a)
    assert str(caught.value).splitlines() == [
        "PB111 Odd.double_backward can't take what it is called with.",
        "  expected: ctx and one grad_grad_input for each of n['a'], n['b']",
        "  got: double_backward(ctx, gg)",
        "  remedy: Write double_backward(ctx, *grad_grad_inputs).",
    ]
