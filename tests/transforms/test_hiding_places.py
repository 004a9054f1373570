"""F8, F9: where an intermediate may hide, and what a replay may not do: exact, or a named error."""

from __future__ import annotations

import collections
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

import pullback
from pullback.errors import HigherOrderError
from tests.transforms.derivatives import Draw, penalty


def made(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Make a Function of the two methods."""
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Made", (pullback.Function,), body)


class Slotted:
    """Keeps its tensor in a slot, where no __dict__ has it."""

    __slots__ = ("t",)

    def __init__(self, t: Tensor) -> None:
        """Keep `t`."""
        self.t = t


class Buffered(torch.nn.Module):
    """Keeps its tensor as a buffer."""

    def __init__(self, t: Tensor) -> None:
        """Keep `t`."""
        super().__init__()
        self.register_buffer("t", t)


def by_keyword_default(t: Tensor) -> Callable[[Tensor], Tensor]:
    """Keep the tensor as the default of a keyword-only parameter."""

    def backward(g: Tensor, *, t: Tensor = t) -> Tensor:
        return g * t

    return backward


TWICE = "one list in two places"

KEPT: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "deque": (lambda t: collections.deque([t]), lambda kept: kept[0]),
    "slots": (Slotted, lambda kept: kept.t),
    "module": (Buffered, lambda kept: kept.t),
    "keyword_default": (by_keyword_default, lambda kept: kept(torch.ones(()))),
    TWICE: (lambda t: (lambda twice: {"a": twice, "b": twice})([t]), lambda kept: kept["b"][0]),
}


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_containers_of_every_kind(case: Any, draw: Draw) -> None:
    """F8: a tensor that is kept on ctx is found and connected, whatever keeps it."""
    keep, read = case

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = keep(x.exp())
        return x.exp()

    function = made(forward, lambda ctx, g: g * read(ctx.kept))
    x = draw.leaf(3)
    torch.testing.assert_close(torch.autograd.grad(penalty(function.apply(x), x), x)[0], 2 * (2 * x).exp())


NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "array": lambda x: np.exp(x.detach().numpy()),
    "numpy_scalar": lambda x: np.float32(x.sum().item()),
    "complex": lambda x: complex(x.sum().item()),
}


@pytest.mark.parametrize("read", NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_every_kind(read: Callable[[Tensor], Any], draw: Draw) -> None:
    """F8: what was read from a tensor into NumPy or Python can't be connected, and raises."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.n = read(x)
        return x * float(np.sum(np.real(ctx.n)))

    function = made(forward, lambda ctx, g: g * float(np.sum(np.real(ctx.n))))
    x = draw.leaf(3)
    with pytest.raises(HigherOrderError, match=r"PB206 .*depends on ctx\.n.*a Python number has no place in a graph"):
        torch.autograd.grad(penalty(function.apply(x), x), x)


def test_a_number_in_a_call_that_was_not_watched(draw: Draw) -> None:
    """F8: a class that reads numbers in one call is not trusted with them in another."""

    class Scaled(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor | None = None) -> Tensor:
            ctx.s, ctx.arity = x.sum().item(), 1 if w is None else 2
            ctx.save_for_backward(x)
            return x * x.sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return (g * ctx.s + (g * x).sum(), None)[: ctx.arity]

    x = draw.leaf(3)
    Scaled.apply(x)
    with pytest.raises(HigherOrderError, match=r"PB206 .*depends on ctx\.s"):
        torch.autograd.grad(penalty(Scaled.apply(x, draw.leaf(2)), x), x)


PARTLY: dict[str, Callable[[Tensor], Any]] = {
    "detach": lambda x: x.detach().norm(),
    "data": lambda x: x.data.norm(),
    "no_grad": torch.no_grad()(torch.linalg.vector_norm),
}


@pytest.mark.parametrize("norm", PARTLY.values(), ids=PARTLY)
@pytest.mark.parametrize("inner", [False, True], ids=["leaf", "inner"])
def test_an_intermediate_that_is_detached_in_part(norm: Callable[[Tensor], Any], inner: bool, draw: Draw) -> None:
    """F8: forward runs without a graph, so detach means nothing there; a replay isn't cut off by it."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        u = x / norm(x)
        ctx.save_for_backward(x, u)
        return (x * x).sum().sqrt()

    function = made(forward, lambda ctx, g: g * ctx.saved_tensors[1])
    leaf = draw.leaf(3)
    x = leaf * 1 if inner else leaf
    found = torch.autograd.grad(penalty(function.apply(x), x), leaf)[0]
    torch.testing.assert_close(found, torch.autograd.grad(penalty(leaf.norm(), leaf), leaf)[0])


def test_a_slice_of_the_detached_argument(draw: Draw) -> None:
    """F8: it lies in the argument's memory, and varies with it."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.detach()[1:])
        return x[1:] ** 3

    function = made(forward, lambda ctx, g: F.pad(3 * ctx.saved_tensors[0] ** 2 * g, (1, 0)))
    x = draw.leaf(4)
    expected = torch.autograd.grad(penalty(x[1:] ** 3, x), x)[0]
    torch.testing.assert_close(torch.autograd.grad(penalty(function.apply(x), x), x)[0], expected)


def test_a_constant_that_lies_in_the_memory_of_an_argument(draw: Draw) -> None:
    """F8: the detached argument passed beside it is a constant; it raises rather than count as the argument."""

    def forward(ctx: Any, x: Tensor, held: list[Tensor]) -> Tensor:
        ctx.save_for_backward(x, held[0])
        return x * held[0]

    function = made(forward, lambda ctx, g: (g * ctx.saved_tensors[1], None))
    x = draw.leaf(3)
    with pytest.raises(HigherOrderError, match=r"PB206 .*depends on saved tensor 1"):
        torch.autograd.grad(penalty(function.apply(x, [x.detach()]), x), x)


def test_running_statistics_are_updated_once(draw: Draw) -> None:
    """F10: forward is not run again if that would write to what outlives the call."""

    class Statistics:
        mean = torch.zeros((), dtype=torch.float64)

    def forward(ctx: Any, x: Tensor, statistics: Statistics) -> Tensor:
        statistics.mean.mul_(0.9).add_(x.mean())
        t = x.exp()
        ctx.save_for_backward(x, t)
        return t * 1

    function = made(forward, lambda ctx, g: (g * ctx.saved_tensors[1], None))
    x, statistics = draw.leaf(3), Statistics()
    y = function.apply(x, statistics)
    with pytest.raises(HigherOrderError, match=r"PB206 .*writes to a tensor from outside the call, so it can't be run"):
        torch.autograd.grad(penalty(y, x), x)
    torch.testing.assert_close(statistics.mean, x.detach().mean())


def test_a_float_flag_steers_too(draw: Draw) -> None:
    """F8: zero is another branch: what was flat there isn't taken to be flat elsewhere."""

    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        t = torch.ones_like(x) if p == 0 else (p * x).exp()
        ctx.save_for_backward(t)
        return t / p if p else x * 1

    function = made(forward, lambda ctx, g: (g * ctx.saved_tensors[0], None))
    x = draw.leaf(3)
    function.apply(x * 1, 0.0)
    with pytest.raises(HigherOrderError, match=r"PB206 .*depends on saved tensor 0"):
        torch.autograd.grad(penalty(function.apply(x * 1, 2.0), x), x)


def test_plain_arguments_are_there_for_a_replay(draw: Draw) -> None:
    """F9: an opaque backward is differentiated through forward, with the numbers that forward was given."""

    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.k = k
        return x**k

    def backward(ctx: Any, g: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().numpy()
        return torch.from_numpy(ctx.k * x ** (ctx.k - 1) * g.detach().numpy()), None

    function = made(forward, backward)
    x = draw.leaf(3)
    expected = torch.autograd.grad(penalty(x**3.0, x), x)[0]
    torch.testing.assert_close(torch.autograd.grad(penalty(function.apply(x, 3.0), x), x)[0], expected)


def test_backward_that_cannot_take_a_cotangent_that_requires_grad(draw: Draw) -> None:
    """F8: create_graph alone never raises, though PyTorch's own tutorial calls numpy() on the cotangent."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.from_numpy(2 * ctx.saved_tensors[0].detach().numpy() * g.numpy())

    function = made(forward, backward)
    x = draw.leaf(3)
    (gradient,) = torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), 2 * x.detach())
    with pytest.raises(HigherOrderError, match=r"PB207 .*autograd can't follow"):
        torch.autograd.grad(gradient.sum(), x)


def test_the_class_keeps_no_argument_alive(draw: Draw) -> None:
    """F15: an argument that isn't a tensor dies with its last owner, not with the next call."""

    class Large:
        pass

    def forward(ctx: Any, x: Tensor, large: Large, flag: bool) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    function = made(forward, lambda ctx, g: (2 * g * ctx.saved_tensors[0], None, None))
    x = draw.leaf(3)
    gc.disable()
    try:
        for _ in range(3):
            large = Large()
            alive = weakref.ref(large)
            function.apply(x, large, True)
            del large
            assert alive() is None
    finally:
        gc.enable()


def test_the_first_call_may_be_a_fake_one() -> None:
    """F15: shapes are propagated through a class that has never run on real tensors."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.exp())
        return x.exp()

    function = made(forward, lambda ctx, g: g * ctx.saved_tensors[0])
    with FakeTensorMode():
        assert function.apply(torch.ones(3, requires_grad=True)).shape == (3,)


def test_a_function_on_ctx_that_other_tensors_cannot_be_put_into(draw: Draw) -> None:
    """F9: first gradients are the author's own, whatever a probe on what is kept on ctx would give."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        y, ctx.vjp = torch.func.vjp(lambda x: x**3, x.detach())
        return y

    function = made(forward, lambda ctx, g: ctx.vjp(g)[0])
    x = draw.leaf(3)
    (gradient,) = torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), 3 * x.detach() ** 2)
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x)[0], 6 * x.detach())


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "nested": lambda x: torch.nested.nested_tensor([x.detach(), x.detach()[:1]], layout=torch.jagged).requires_grad_(),
    "sparse": lambda x: x.detach().to_sparse().requires_grad_(),
    "meta": lambda x: x.detach().to("meta").requires_grad_(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("other", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("hidden", [False, True], ids=["argument", "intermediate"])
def test_tensors_of_other_layouts(other: Callable[[Tensor], Tensor], hidden: bool, draw: Draw) -> None:
    """F8: create_graph alone never raises, for tensors that few operations take either."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x * 2 if hidden else x)
        return x * 3

    function = made(forward, lambda ctx, g: g * 3)
    x = other(draw.leaf(3))
    y = function.apply(x)
    (gradient,) = torch.autograd.grad(y, x, y.detach(), create_graph=True)
    assert gradient.shape == x.shape
