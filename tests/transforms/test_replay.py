"""F10: forward run again supplies higher orders: under forward's own state, and never wrongly."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import HigherOrderError
from tests.transforms.derivatives import Draw, assert_exact, outputs_of, penalty
from tests.transforms.test_reference import made, numpy, tensor


def noisy_forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
    """Multiply by noise, and save the product."""
    y = x * (1 + scale * torch.randn_like(x))
    s = y.sin()
    ctx.save_for_backward(x, s, y.cos() * y / x)
    return s


def noisy_backward(ctx: Any, g: Tensor) -> Any:
    """Differentiate sin(x(1 + noise))."""
    return g * ctx.saved_tensors[2], None


def noisy_formula(x: Tensor, scale: float) -> Tensor:
    """Return the formula, with the noise of the moment."""
    return (x * (1 + scale * torch.randn_like(x))).sin()


def test_random_forward(draw: Draw) -> None:
    """F10: a forward that draws random numbers is replayed under those it drew."""
    function = made(noisy_forward, noisy_backward)
    for seed in range(3):

        def seeded(inner: Callable[..., Any], seed: int = seed) -> Callable[..., Any]:
            def call(x: Tensor) -> Any:
                torch.manual_seed(seed)
                return inner(x, 0.1)

            return call

        assert_exact(seeded(function.apply), seeded(noisy_formula), [draw.leaf(4)])


def test_the_random_numbers_outside_are_undisturbed(draw: Draw) -> None:
    """F10: taking a second derivative draws no random number, whether forward's state is known or not."""
    function = made(noisy_forward, noisy_backward)
    x = draw.leaf(4)
    for _ in range(2):
        found = function.apply(x, 0.1)
        before = torch.get_rng_state()
        torch.autograd.grad(penalty(found, x), x)
        assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("reference", [False, True])
def test_forward_under_autocast(reference: bool, draw: Draw) -> None:
    """F10: forward ran under autocast, the second derivative is taken outside: the replay runs as forward did."""

    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        ctx.save_for_backward(x, w, y)
        return y.float() ** 2

    def backward(ctx: Any, g: Tensor) -> Any:
        x, w, y = ctx.saved_tensors
        inner = 2 * y.float() * g
        return inner @ w.t(), x.t() @ inner

    companion = {"reference": lambda x, w: (x @ w).float() ** 2} if reference else {}
    function = made(forward, backward, **companion)
    x, w = (draw.leaf(3, 3, dtype=torch.float32) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = function.apply(x, w)
        plain = (x @ w).float() ** 2
    got = torch.autograd.grad(penalty(y.double(), x), [x, w])
    expected = torch.autograd.grad(penalty(plain.double(), x), [x, w])
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.5)  # bfloat16 has two digits


def test_a_forward_that_writes_to_its_argument_is_never_replayed(draw: Draw) -> None:
    """F10: buffers that forward updates are updated once, whether the first call or a later one writes."""
    calls: list[int] = []

    class Normalise(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, running: Tensor, training: bool) -> Tensor:
            calls.append(1)
            mean = x.mean().expand(1) if training else running.clone()
            if training:
                running.mul_(0.9).add_(0.1 * mean)
            ctx.save_for_backward(x, mean)
            ctx.training = training
            return (x - mean) ** 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, mean = ctx.saved_tensors
            inner = 2 * (x - mean) * g
            return inner - inner.mean() if ctx.training else inner, None, None

    for order in ((False, True), (True, True)):
        function = type("Normalise", (Normalise,), {})
        for training in order:
            running, x = torch.zeros(1, dtype=torch.float64), draw.leaf(4)
            y = function.apply(x, running, training)
            after, count = running.clone(), len(calls)
            if training:
                with pytest.raises(HigherOrderError, match=r"PB206 .*forward writes to an argument"):
                    torch.autograd.grad(penalty(y, x), x)
                assert len(calls) <= count + 1
            else:
                found = torch.autograd.grad(penalty(y, x), x)[0]
                torch.testing.assert_close(found, 8 * (x - running))
            assert torch.equal(running, after)


def test_in_place_functions(draw: Draw) -> None:
    """F10: an in-place Function that saves its output is exact; one that needs a replay raises."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    function = made(forward, lambda ctx, g: g * ctx.saved_tensors[0], reference=lambda x: x.exp())
    assert_exact(lambda x: function.apply(x * 1.5), lambda x: (x * 1.5).exp(), [draw.leaf(3)])

    def cutting(ctx: Any, x: Tensor) -> Tensor:
        e = x.exp()
        ctx.save_for_backward(e)
        x.copy_(e)
        ctx.mark_dirty(x)
        return x

    function = made(cutting, lambda ctx, g: g * ctx.saved_tensors[0])
    inner = draw.inner(3)
    with pytest.raises(HigherOrderError, match=r"PB206 .*depends on saved tensor 0"):
        penalty(function.apply(inner * 1.0), inner)


def test_a_replay_that_gives_other_values(draw: Draw) -> None:
    """F10: forward depends on something outside the call: PB221 says what was saved and what came instead."""
    state = {"factor": 2.0}

    def forward(ctx: Any, x: Tensor) -> Tensor:
        scaled = x * state["factor"]
        ctx.save_for_backward(x, scaled)
        return scaled * x / 2

    function = made(forward, lambda ctx, g: g * ctx.saved_tensors[1])
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64, requires_grad=True)
    y = function.apply(x)
    state["factor"] = 3.0
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), 2 * x.detach())
    with pytest.raises(HigherOrderError) as caught:
        torch.autograd.grad(gradient.sum(), x)
    assert str(caught.value).splitlines()[:3] == [
        "PB221 Made: saved tensor 1 differs when forward is run again on the same arguments.",
        "  expected: what forward saved: (4,) float64 [2, 4, 6, …]",
        "  got: (4,) float64 [3, 6, 9, …]",
    ]
    assert "remedy: " in str(caught.value)


def test_an_error_in_the_replay_is_named_and_chained(draw: Draw) -> None:
    """F10: an error inside a kernel is never swallowed: it is in the text, and the cause of what is raised."""
    runs: list[int] = []

    def forward(ctx: Any, x: Tensor) -> Tensor:
        runs.append(1)
        if len(runs) > 1:
            raise MemoryError("the kernel ran out of something")
        ctx.save_for_backward(x, x.exp())
        return x.exp()

    for backward in (
        lambda ctx, g: g * ctx.saved_tensors[1],
        lambda ctx, g: tensor(numpy(g) * numpy(ctx.saved_tensors[1])),
    ):
        runs.clear()
        function = made(forward, backward)
        x = draw.leaf(3)
        with pytest.raises(HigherOrderError, match=r"PB20[67] .*forward raised MemoryError\('the kernel ran") as caught:
            torch.autograd.grad(penalty(function.apply(x), x), x)
        assert isinstance(caught.value.__cause__, MemoryError)


def test_replayable_false(draw: Draw) -> None:
    """F10: replayable = False forbids it, and forward runs once."""
    runs: list[int] = []

    def forward(ctx: Any, x: Tensor) -> Tensor:
        runs.append(1)
        ctx.save_for_backward(x, x.exp())
        return x.exp()

    for opaque in (False, True):
        runs.clear()
        backward = (
            (lambda ctx, g: tensor(numpy(g) * numpy(ctx.saved_tensors[1])))
            if opaque
            else (lambda ctx, g: g * ctx.saved_tensors[1])
        )
        function = made(forward, backward, replayable=False)
        x = draw.leaf(3)
        with pytest.raises(HigherOrderError, match="replayable = False forbids running forward again"):
            torch.autograd.grad(penalty(function.apply(x), x), x)
        assert len(runs) == 1


def test_arguments_that_are_not_tensors(draw: Draw) -> None:
    """F10: numbers, strings, None, lists and defaults are given to the replay as forward had them."""

    def forward(ctx: Any, x: Tensor, mode: str, powers: list[int], bias: Any = None, *, _: Any = None) -> Tensor:
        t = sum(x**power for power in powers) + (0 if bias is None else bias)
        ctx.save_for_backward(x, t)
        ctx.mode, ctx.powers = mode, powers
        return t.sin() if mode == "sin" else t * t

    def backward(ctx: Any, g: Tensor) -> Any:
        x, t = ctx.saved_tensors
        outer = t.cos() if ctx.mode == "sin" else 2 * t
        inner = sum(power * x ** (power - 1) for power in ctx.powers)
        return (g * outer * inner, None, None, None)

    function = made(forward, backward)
    for mode, powers, bias in (("sin", [1, 2], None), ("square", [3], 0.5), ("sin", [2], 1.5), ("square", [1], None)):

        def formula(x: Tensor, mode: str = mode, powers: list[int] = powers, bias: Any = bias) -> Tensor:
            t = sum(x**power for power in powers) + (0 if bias is None else bias)
            return t.sin() if mode == "sin" else t * t

        for rest in ((bias,),) if bias is not None else ((), (None,)):
            assert_exact(
                lambda x, m=mode, p=powers, r=rest: function.apply(x, m, p, *r), formula, [draw.leaf(3)], order=2
            )


def test_custom_fwd_and_custom_bwd(draw: Draw) -> None:
    """F10: forward and backward wrapped for autocast are replayed and differentiated like any other."""

    class Wrapped(pullback.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, x.exp())
            return x.exp()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

    assert_exact(Wrapped.apply, torch.exp, [draw.leaf(3)], order=4)


def test_non_differentiable_outputs_take_part(draw: Draw) -> None:
    """F10: a float output that is marked non-differentiable and saved is connected by a replay."""

    def forward(ctx: Any, x: Tensor) -> Any:
        slope, order = x.cos(), x.argsort()
        ctx.mark_non_differentiable(slope, order)
        ctx.save_for_backward(x, slope)
        return x.sin(), slope, order

    function = made(forward, lambda ctx, g, *_: g * ctx.saved_tensors[1])
    assert_exact(lambda x: outputs_of(function.apply(x))[0], torch.sin, [draw.leaf(3)], order=4)


def test_outputs_that_are_not_tensors(draw: Draw) -> None:
    """F10: numbers, strings and None among the outputs are in nobody's way."""

    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x, x.cos())
        return "a", x.sin(), 3, None

    function = made(forward, lambda ctx, _, g, *rest: g * ctx.saved_tensors[1])
    assert_exact(lambda x: function.apply(x)[1], torch.sin, [draw.leaf(3)], order=4)


def test_any_number_of_arguments(draw: Draw) -> None:
    """F10: a forward with *args is replayed with as many as it was called with."""

    def forward(ctx: Any, *xs: Tensor) -> Tensor:
        total = sum((x * x for x in xs), torch.zeros(()))
        ctx.save_for_backward(*xs, total)
        return total.sin()

    def backward(ctx: Any, g: Tensor) -> Any:
        *xs, total = ctx.saved_tensors
        return tuple(2 * x * total.cos() * g for x in xs)

    function = made(forward, backward)
    for count in (1, 3, 2, 4):
        leaves = [draw.leaf(3) for _ in range(count)]
        assert_exact(function.apply, lambda *xs: sum(x * x for x in xs).sin(), leaves, order=2)


def test_a_backward_that_writes_to_its_gradient(draw: Draw) -> None:
    """F10: backward runs again on the replay; that it wrote to its gradient the first time changes no value."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.exp())
        return x.exp()

    function = made(forward, lambda ctx, g: g.mul_(ctx.saved_tensors[1]))
    x, weights = draw.leaf(3), draw.constant(3)
    (gradient,) = torch.autograd.grad(function.apply(x), x, weights.clone(), create_graph=True)
    torch.testing.assert_close(gradient, weights * x.exp())
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x)[0], weights * x.exp())


def test_a_graph_that_forward_has_left_on_ctx(draw: Draw) -> None:
    """F8, F10: first gradients through such a graph are right, and what can't be differentiated further raises."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x.sin()
        ctx.save_for_backward(x)
        return ctx.y.detach()

    for connected in (False, True):

        def backward(ctx: Any, g: Tensor, connected: bool = connected) -> Tensor:
            return torch.autograd.grad(ctx.y, ctx.x, g, create_graph=connected)[0]

        x = draw.leaf(3)
        (gradient,) = torch.autograd.grad(made(forward, backward).apply(x).sum(), x, create_graph=True)
        torch.testing.assert_close(gradient.detach(), x.detach().cos())
        with pytest.raises(HigherOrderError, match=r"PB206 .*depends on ctx\.x, ctx\.y"):
            torch.autograd.grad(gradient.sum() + (x**3).sum(), x)


def test_calls_from_several_threads(draw: Draw) -> None:
    """F15: classes are first called, and differentiated three times, by several threads at once."""
    leaves = [draw.leaf(3) for _ in range(6)]

    def work(function: Any, leaf: Tensor) -> None:
        for _ in range(5):
            assert_exact(lambda x: function.apply(x, 0.0), lambda x: noisy_formula(x, 0.0), [leaf])

    function = made(noisy_forward, noisy_backward)
    with ThreadPoolExecutor(len(leaves)) as pool:
        for done in [pool.submit(work, function, leaf) for leaf in leaves]:
            done.result()


def test_generators_of_python_and_numpy(draw: Draw) -> None:
    """F10: what forward draws elsewhere can't be drawn again: PB221, and those generators are left as they were."""
    for drawn in (random.random, np.random.rand):

        def forward(ctx: Any, x: Tensor, drawn: Callable[[], float] = drawn) -> Tensor:
            y = x * drawn()
            ctx.save_for_backward(x, y)
            return y * x / 2

        function = made(forward, lambda ctx, g: g * ctx.saved_tensors[1])
        x = draw.leaf(3)
        y = function.apply(x)
        before = random.getstate(), np.random.get_state()[2]
        with pytest.raises(HigherOrderError, match="PB221"):
            torch.autograd.grad(penalty(y, x), x)
        assert (random.getstate(), np.random.get_state()[2]) == before
