"""F16: decorated functions as people use functions: names, pickle, copies, threads, checkpoint, modules, autocast."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pullback
from tests.call.test_threads import THREADS, at_once
from tests.custom.rules import MADE, drawn, number, orders, plain, same


@pullback.custom_vjp
def shared(x: Tensor, scale: float = 2.0) -> Tensor:
    """x times a number."""
    return x * scale


shared.defvjp(lambda x, scale: (x * scale, scale), lambda scale, g: (g * scale, None))


def test_it_looks_like_the_function() -> None:
    """Name, documentation, annotations and signature are those of the function."""
    assert shared.__name__ == "shared"
    assert shared.__doc__ == "x times a number."
    assert shared.__module__ == __name__
    assert inspect.signature(shared) == inspect.signature(shared.fn)
    assert repr(shared) == "<CustomVJP of shared>"
    assert shared(number(3.0)).grad_fn.name() == "sharedBackward"
    assert issubclass(shared.function, pullback.Function)
    assert (shared.function.__name__, shared.function.__module__) == ("shared", __name__)


def test_pickle_and_copy_by_name() -> None:
    """It is pickled by its name, and copied as itself, as functions are."""
    assert pickle.loads(pickle.dumps(shared)) is shared
    assert copy.copy(shared) is shared
    assert copy.deepcopy(shared) is shared

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation = shared

    assert copy.deepcopy(Model()).activation is shared


@pytest.mark.parametrize("kind", MADE)
def test_threads(kind: str) -> None:
    """First calls may come from several threads at once."""
    for seed in range(4):
        function, leaves = MADE[kind](), (drawn(3, seed=seed), drawn(3, seed=seed + 9))
        expected = orders(plain, leaves)

        def work(function: Any = function, leaves: Any = leaves) -> Any:
            return orders(function, [leaf.detach().clone().requires_grad_() for leaf in leaves])

        results = at_once(work)
        assert len(results) == THREADS
        for result in results:
            same(result, expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", MADE)
def test_checkpoint(kind: str, reentrant: bool) -> None:
    """Under checkpoint, of either kind, gradients are the same."""
    function, x, y = MADE[kind](), drawn(3, seed=1), drawn(3, seed=2)
    result = checkpoint(lambda x, y: function(x * 2, y).sum(), x, y, use_reentrant=reentrant)
    gradients = torch.autograd.grad(result, (x, y)) if not reentrant else None
    if gradients is None:
        result.backward()
        gradients = (x.grad, y.grad)
    same(gradients, torch.autograd.grad(plain(x * 2, y).sum(), (x, y)))


@pytest.mark.parametrize("kind", MADE)
def test_backward_twice_with_a_retained_graph(kind: str) -> None:
    """retain_graph works, and without it a second backward is PyTorch's error."""
    function, x, y = MADE[kind](), drawn(3, seed=1), drawn(3, seed=2)
    result = function(x, y).sum()
    first = torch.autograd.grad(result, x, retain_graph=True)
    same(torch.autograd.grad(result, x), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result, x)


@pytest.mark.parametrize("kind", MADE)
def test_the_graph_is_freed(kind: str) -> None:
    """Nothing of a call outlives its graph, without the garbage collector's help."""
    function = MADE[kind]()
    gc.collect()
    gc.disable()
    try:
        x, y = drawn(3, seed=1), drawn(3, seed=2)
        inner = y * 1.0
        alive = weakref.ref(inner)
        result = function(x, inner).sum()
        torch.autograd.grad(result, x)
        del inner, result
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", MADE)
def test_gradcheck(kind: str) -> None:
    """PyTorch's own checks, first and second order, with batched gradients, agree."""
    leaves = drawn(3, seed=1), drawn(3, seed=2)
    assert torch.autograd.gradcheck(MADE[kind](), leaves, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(MADE[kind](), leaves)


def test_in_a_module_that_is_trained() -> None:
    """A module's parameter gets its gradient when it is passed as an argument."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = MADE["vjp"]()(x, self.weight)
            return result

    module, x = Scale(), drawn(3).detach()
    module(x).sum().backward()
    assert module.weight.grad is not None
    same(module.weight.grad, torch.sin(x))


# Dynamo makes an object of the class, and looks at .grad of what it traces, which PyTorch warns of.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
@pytest.mark.parametrize(("kind", "fullgraph"), [("vjp", True), ("vjp", False), ("jvp", False)])
def test_compiled(kind: str, fullgraph: bool) -> None:
    """Compiled, values and gradients are the eager ones; custom_vjp in one graph."""
    function, x, y = MADE[kind](), drawn(3, seed=1), drawn(3, seed=2)
    torch.compiler.reset()
    compiled = torch.compile(lambda x, y: function(x, y) * 2, fullgraph=fullgraph, backend="aot_eager")
    result = compiled(x, y)
    same(result.detach(), 2 * plain(x, y).detach())
    same(torch.autograd.grad(result.sum(), (x, y)), torch.autograd.grad(2 * plain(x, y).sum(), (x, y)))


def test_complex_numbers() -> None:
    """Gradients of complex functions follow PyTorch's convention, by either rule."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, dtype=torch.complex128, generator=generator).requires_grad_()

    @pullback.custom_jvp
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.defjvps(lambda x_dot, result, x: 3 * x**2 * x_dot)

    @pullback.custom_vjp
    def square(x: Tensor) -> Tensor:
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: ((2 * x).conj() * g,))
    for function, formula in ((cube, lambda x: x**3), (square, lambda x: x**2)):
        expected = torch.autograd.grad(torch.view_as_real(formula(x)).sum(), x)
        same(torch.autograd.grad(torch.view_as_real(function(x)).sum(), x), expected)
