"""`pullback.adopt`: Functions of other libraries, guarded without a change to their source."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import pullback
from pullback.errors import DefinitionError, HigherOrderError


class Sinh(Function):
    """Somebody else's: right to first order, and silently wrong to second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        up, down = x.exp(), (-x).exp()
        ctx.save_for_backward(up, down)
        return (up - down) / 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        up, down = ctx.saved_tensors
        return g * (up + down) / 2


class Scaled(Function):
    """Somebody else's apply, which fills in an argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.k, None

    @classmethod
    def apply(cls, x: Tensor, k: float = 3.0) -> Any:
        """Apply with k filled in."""
        return super().apply(x, k)


def second_derivative(function: Any, x: Tensor) -> Tensor:
    """Of the sum of the outputs."""
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
    return second


def test_an_adopted_function_is_exact_to_second_order_and_the_original_stays_as_it_is() -> None:
    """The adopted class is a pullback.Function; the library's own is untouched."""
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    adopted = pullback.adopt(Sinh)
    assert issubclass(adopted, pullback.Function)
    assert issubclass(adopted, Sinh)
    torch.testing.assert_close(adopted.apply(x), x.sinh())
    torch.testing.assert_close(second_derivative(adopted.apply, x), x.sinh())
    assert not issubclass(Sinh, pullback.Function)
    assert "forward" in vars(Sinh)
    with pytest.raises(RuntimeError, match="does not require grad"):
        second_derivative(Sinh.apply, x)


def test_it_raises_where_it_cannot_be_exact() -> None:
    """An argument that was not saved and is no leaf can't be had: the named error, not a wrong number."""
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(HigherOrderError, match=r"PB206 .*Sinh"):
        second_derivative(lambda x: pullback.adopt(Sinh).apply(x * 1), x)


def test_adopting_twice_gives_the_same_class() -> None:
    """Classes are cached, so that isinstance, caches and graphs agree; a pullback.Function is its own."""
    adopted = pullback.adopt(Sinh)
    assert pullback.adopt(Sinh) is adopted
    assert pullback.adopt(adopted) is adopted


def test_it_is_named_like_the_original() -> None:
    """Name, module, doc and the name of its nodes are those of the original."""
    adopted = pullback.adopt(Sinh)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(adopted, attribute) == getattr(Sinh, attribute)
    x = torch.ones(1, requires_grad=True)
    assert adopted.apply(x).grad_fn.name() == Sinh.apply(x).grad_fn.name() == "SinhBackward"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_pickles_by_the_name_of_the_original(protocol: int) -> None:
    """Both classes survive pickling as themselves, and so do Functions that nobody adopted."""
    for cls in (pullback.adopt(Sinh), Sinh, Scaled):
        assert pickle.loads(pickle.dumps(cls, protocol)) is cls
        assert copy.deepcopy(cls) is cls


def test_an_apply_of_its_own_goes_on_working() -> None:
    """A class that overrides apply reaches pullback's by super()."""
    x = torch.ones(2, requires_grad=True)
    y = pullback.adopt(Scaled).apply(x)
    y.sum().backward()
    assert x.grad is not None
    assert y.tolist() == x.grad.tolist() == [3.0, 3.0]


def test_check_takes_either() -> None:
    """The original is found wrong to second order; the adopted one is right."""
    samples = ((torch.rand(3, dtype=torch.float64, requires_grad=True),),)
    assert {finding.rule for finding in pullback.check(Sinh, *samples).findings} == {"PB206"}
    assert pullback.check(pullback.adopt(Sinh), *samples).ok


@pytest.mark.parametrize("thing", [Sinh.apply, 3, torch.nn.Linear, lambda x: x])
def test_anything_else_is_refused(thing: Any) -> None:
    """Only a Function class can be adopted."""
    with pytest.raises(TypeError, match=r"adopt takes a torch\.autograd\.Function class; this is"):
        pullback.adopt(thing)


def test_a_class_that_can_never_work_is_refused() -> None:
    """It is judged as if it had been written on pullback.Function."""

    class Both(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 2

        @staticmethod
        def vjp(ctx: Any, g: Tensor) -> Any:
            return g * 2

    with pytest.raises(DefinitionError, match="PB102 Both defines both backward and vjp"):
        pullback.adopt(Both)
