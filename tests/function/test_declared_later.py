"""F1, F14: a declaration that is put on a class after its first call holds from the next call on."""

from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import DefinitionError, GradientError, HigherOrderError


def _square() -> Any:
    """Define y = x², which saves its argument."""

    class Square(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Square


def _applied(cls: Any) -> Any:
    """Return the class after a call of it."""
    cls.apply(torch.ones(2, requires_grad=True))
    return cls


def _low() -> Tensor:
    return torch.ones(2, dtype=torch.bfloat16, requires_grad=True)


def test_cast_inputs() -> None:
    """F14: it may come and go; each call goes by what is declared then, and so does a subclass."""
    square = _applied(_square())
    derived = _applied(type("Derived", (square,), {}))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for cls in (square, derived):
            assert cls.apply(_low()).dtype == torch.bfloat16
        square.cast_inputs = torch.float32
        for cls in (square, derived):
            assert cls.apply(_low()).dtype == torch.float32
        del square.cast_inputs
        for cls in (square, derived):
            assert cls.apply(_low()).dtype == torch.bfloat16


def test_keep_autocast() -> None:
    """F14: backward runs under forward's state from then on, and that of a call made before as it was declared then."""
    seen: list[bool] = []
    square = _square()
    backward = square.backward

    def noting(ctx: Any, g: Tensor) -> Any:
        seen.append(torch.is_autocast_enabled("cpu"))
        return backward(ctx, g)

    square.backward = staticmethod(noting)
    x = torch.ones(2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = square.apply(x)
        square.keep_autocast = True
        after = square.apply(x)
    before.sum().backward()
    after.sum().backward()
    assert seen == [False, True]


def test_nondiff_argnames() -> None:
    """F6: a gradient for an argument that has been declared to have none since is refused."""
    square = _applied(_square())
    square.nondiff_argnames = ("x",)
    with pytest.raises(GradientError, match="PB2"):
        square.apply(torch.ones(2, requires_grad=True)).sum().backward()


def test_double_backward() -> None:
    """F7: it is called for calls that are made once it is there."""

    def opaque(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (2 * x * g).detach()

    square = _square()
    square.backward = staticmethod(opaque)
    square.replayable = False
    x = torch.full((2,), 3.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(square.apply(x).sum(), x, create_graph=True)
    with pytest.raises(HigherOrderError):
        torch.autograd.grad(gradient.sum(), x)
    square.double_backward = staticmethod(lambda ctx, gg: 2 * gg)
    (gradient,) = torch.autograd.grad(square.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert second.tolist() == [2, 2]


def test_what_is_no_declaration() -> None:
    """F2: a value that could never be heeded is an error at the next call, and none once it is gone."""
    square = _applied(_square())
    square.cast_inputs = "float32"
    for _ in range(2):
        with pytest.raises(DefinitionError, match="PB106"):
            square.apply(torch.ones(2))
    square.cast_inputs = None
    assert square.apply(torch.ones(2)).tolist() == [1, 1]


def test_other_attributes() -> None:
    """What an author counts on the class changes nothing about how its calls run."""
    square = _applied(_square())
    node = square._backward_cls
    square.calls = 1
    del square.calls
    assert square._backward_cls is node
