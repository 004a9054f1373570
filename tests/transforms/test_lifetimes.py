"""F7 to F10: no route to higher orders keeps anything alive: seen with the garbage collector off."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import pullback
from pullback.errors import PullbackError
from tests.transforms.derivatives import penalty


def routed(route: str) -> Any:
    """Make x³ whose second derivative comes by one of the routes."""

    class Cube(pullback.Function):
        replayable = route != "guard"

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            square = x * x
            ctx.save_for_backward(x, square)
            ctx.kept = [square] if route == "on_ctx" else None
            return square * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, square = ctx.saved_tensors
            if route == "backward":
                return 3 * x * x * g
            if route in ("double_backward", "reference", "opaque", "opaque_guard"):
                return torch.from_numpy(3 * np.square(x.detach().numpy()) * g.detach().numpy())
            return 3 * (ctx.kept[0] if ctx.kept else square) * g

    if route == "double_backward":
        Cube.double_backward = staticmethod(lambda ctx, gg: 6 * ctx.saved_tensors[0] * gg)
    if route == "reference":
        Cube.reference = staticmethod(lambda x: x**3)
    if route == "opaque_guard":
        Cube.replayable = False
    if route == "once":
        Cube.backward = staticmethod(once_differentiable(lambda ctx, g: 3 * ctx.saved_tensors[1] * g))
    return Cube


ROUTES = ("double_backward", "reference", "backward", "replay", "on_ctx", "opaque", "guard", "opaque_guard", "once")
GUARDED = ("guard", "opaque_guard", "once")
each_route = pytest.mark.parametrize("route", ROUTES)


@pytest.fixture
def _collector_off() -> Iterator[None]:
    """Collect what earlier tests have left, and nothing during this one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(*things: Any) -> list[weakref.ref[Any]]:
    """Return weak references; PyTorch's own nodes take none."""
    return [weakref.ref(thing) for thing in things if hasattr(type(thing), "__weakref__") or isinstance(thing, Tensor)]


def alive(references: list[weakref.ref[Any]]) -> list[int]:
    """Return which of them are still alive."""
    return [place for place, reference in enumerate(references) if reference() is not None]


def third(function: Any, leaf: Tensor) -> list[weakref.ref[Any]]:
    """Take three derivatives, or as many as there are, and return weak references to what took part."""
    x = leaf * 1.5
    y = function.apply(x)
    references = watched(x, y, y.grad_fn)
    try:
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        references += watched(gradient, gradient.grad_fn)
        (second,) = torch.autograd.grad(gradient.sum(), x, create_graph=True)
        references += watched(second)
        if second.requires_grad:
            references += watched(*torch.autograd.grad(second.sum(), x))
    except PullbackError:
        pass
    return references


@pytest.mark.usefixtures("_collector_off")
@each_route
def test_nothing_outlives_its_derivatives(route: str) -> None:
    """F7 to F10: arguments, outputs, nodes and gradients die with the last reference to them, errors included."""
    function = routed(route)
    for _ in range(2):
        leaf = torch.rand(3, dtype=torch.float64, requires_grad=True)
        references = [*third(function, leaf), *watched(leaf)]
        assert len(references) >= 5
        del leaf
        assert alive(references) == []


@pytest.mark.usefixtures("_collector_off")
@each_route
def test_nothing_outlives_an_unused_graph(route: str) -> None:
    """F7 to F10: a graph made with create_graph, and never used, dies as well."""
    function = routed(route)
    for _ in range(2):
        x = torch.rand(3, dtype=torch.float64).requires_grad_()
        y = function.apply(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        references = watched(x, y, y.grad_fn, gradient, gradient.grad_fn)
        del x, y, gradient
        assert alive(references) == []


@pytest.mark.usefixtures("_collector_off")
@each_route
def test_backward_with_create_graph(route: str) -> None:
    """F7: after loss.backward(create_graph=True), once x.grad is let go, as PyTorch's own warning asks for."""
    function = routed(route)
    x = torch.rand(3, dtype=torch.float64).requires_grad_()
    y = function.apply(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward")
        y.sum().backward(create_graph=True)
    assert x.grad is not None
    references = watched(x, y, y.grad_fn, x.grad, x.grad.grad_fn)
    x.grad = None
    del x, y
    assert alive(references) == []


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.parametrize("route", GUARDED)
def test_a_guard_keeps_no_tensor_of_the_call(route: str) -> None:
    """F8, F9: the graph that holds a guard holds the argument, to which it leads, and not what forward computed."""
    function = routed(route)
    x = torch.rand(3, dtype=torch.float64).requires_grad_()
    y = function.apply(x)
    references = watched(y, y.grad_fn)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    del y
    assert alive(references) == []
    assert gradient.requires_grad


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.parametrize("route", GUARDED)
def test_an_error_that_was_handled(route: str) -> None:
    """F8, F9: once the error is let go, nothing of the call is alive."""
    function = routed(route)

    def refused() -> list[weakref.ref[Any]]:
        x = torch.rand(3, dtype=torch.float64).requires_grad_()
        found = penalty(function.apply(x), x)
        with pytest.raises(PullbackError):
            torch.autograd.grad(found, x)
        return watched(x, found)

    references = refused()
    assert alive(references) == []


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.parametrize("where", ["double_backward", "reference", "replay"])
def test_an_error_of_the_author(where: str) -> None:
    """F10: an exception inside the author's own code, when it has been handled, keeps nothing alive."""
    runs: list[int] = []

    class Fails(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            runs.append(1)
            if len(runs) > 1:
                raise ValueError("again")
            ctx.save_for_backward(x, x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

    def fails(*_: Any) -> Tensor:
        raise ValueError("inside")

    if where != "replay":
        setattr(Fails, where, staticmethod(fails if where == "double_backward" else lambda x: fails()))

    def refused() -> list[weakref.ref[Any]]:
        x = torch.rand(3, dtype=torch.float64).requires_grad_()
        y = Fails.apply(x)
        references = watched(x, y, y.grad_fn)
        with pytest.raises((ValueError, PullbackError)):
            torch.autograd.grad(penalty(y, x), x)
        return references

    assert alive(refused()) == []


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.parametrize("create_graph", [False, True])
def test_an_error_in_backward(create_graph: bool) -> None:
    """F3: an exception in backward, when it has been handled, keeps nothing alive, at first order neither."""

    class Fails(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            raise ValueError("in backward")

    def refused() -> list[weakref.ref[Any]]:
        x = torch.rand(3, dtype=torch.float64).requires_grad_()
        y = Fails.apply(x)
        references = watched(x, y, y.grad_fn)
        with pytest.raises(ValueError, match="in backward"):
            torch.autograd.grad(y.sum(), x, create_graph=create_graph)
        return references

    assert alive(refused()) == []


@pytest.mark.usefixtures("_collector_off")
def test_a_replay_that_differs() -> None:
    """F10: so does PB221."""
    factors = iter(range(1, 100))

    class Differs(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x, x * next(factors))
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[1]

    def refused() -> list[weakref.ref[Any]]:
        x = torch.rand(3, dtype=torch.float64).requires_grad_()
        y = Differs.apply(x)
        references = watched(x, y, y.grad_fn)
        with pytest.raises(PullbackError, match="PB221"):
            torch.autograd.grad(penalty(y, x), x)
        return references

    assert alive(refused()) == []


def training_steps(function: Any, steps: int) -> Callable[[], int]:
    """Return what runs some steps with a penalty and counts the tensors that are alive after them."""
    weight = torch.rand(3, dtype=torch.float64, requires_grad=True)

    def run() -> int:
        for _ in range(steps):
            x = torch.rand(3, dtype=torch.float64).requires_grad_()
            try:
                loss = penalty(function.apply(x * weight), x)
                loss.backward(inputs=[weight])
            except PullbackError:
                pass
            weight.grad = None
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    return run


@pytest.mark.usefixtures("_collector_off")
@each_route
def test_no_growth(route: str) -> None:
    """F7 to F10: after 200 steps as many tensors are alive as after 20."""
    function = routed(route)
    before = training_steps(function, 20)()
    assert training_steps(function, 200)() <= before + 1  # the weight of the second run
