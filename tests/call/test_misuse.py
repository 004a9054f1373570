"""F4 and F2: calling the class, or applying what can't be applied, is an error with the fix in it."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import CallError, MissingMethodError
from tests.function.kinds import leaf
from tests.tracebacks import files, is_pullbacks, last_function


class Square(pullback.Function):
    """x²."""

    @staticmethod
    def forward(ctx: pullback.Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: pullback.Context, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class Abstract(pullback.Function):
    """No forward."""

    @staticmethod
    def backward(ctx: pullback.Context, g: Tensor) -> Tensor:
        return g


class Undifferentiated(pullback.Function):
    """No backward."""

    @staticmethod
    def forward(ctx: pullback.Context, x: Tensor) -> Tensor:
        return x * 3


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda x: Square(x), "Square(…)"),
        (lambda x: Square(x=x), "Square(…)"),
        (lambda x: Square()(x), "Square()(…)"),
        (lambda x: Square()(x=x), "Square()(…)"),
        (lambda x: Square()(), "Square()(…)"),
    ],
)
def test_calling_the_class_says_what_to_write(call: Callable[[Tensor], Any], got: str) -> None:
    """F4: PB108 names the class, says apply, subclasses what torch raises there, and ends in the caller's frame."""
    with pytest.raises(CallError, match="PB108") as caught:
        call(leaf(2))
    assert str(caught.value).splitlines() == [
        f"PB108 {got} makes an object; a Function runs through apply.",
        "  expected: Square.apply(…)",
        f"  got: {got}",
        "  remedy: Write Square.apply(…).",
    ]
    assert isinstance(caught.value, (RuntimeError, TypeError))
    assert {*files(caught.value)} == {__file__}
    assert last_function(caught.value) == "<lambda>"


def test_calling_an_object_raises_in_torch_too() -> None:
    """F4: torch's own error for Square()(x) is a RuntimeError, and so is pullback's."""
    plain: Any = type("Plain", (torch.autograd.Function,), {})
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = plain()
    with pytest.raises(RuntimeError, match="Legacy autograd function"):
        instance(leaf(2))
    with pytest.raises(RuntimeError, match="PB108"):
        Square()(leaf(2))


def test_applying_an_object_keeps_working() -> None:
    """F4: Square().apply(x) works in PyTorch and works here, without a warning."""
    x = leaf(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = Square().apply(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, 2 * x)


def test_an_authors_own_constructor_keeps_working() -> None:
    """F4: a class with an __init__ and __call__ of its own is left to its author."""

    class Owned(Square):
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def __call__(self, x: Tensor) -> Tensor:
            return self.scale * self.apply(x)

    x = leaf(2)
    assert torch.equal(Owned(3.0)(x), 3 * (x * x))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: Abstract.apply(x),
        lambda x: Abstract.apply(x=x),
        lambda x: Abstract.apply(),
        lambda x: Abstract().apply(x),
    ],
)
def test_applying_an_abstract_class(call: Callable[[Tensor], Any]) -> None:
    """F2: PB107 at apply, not before; torch raises NotImplementedError there, and so does this."""
    for _ in range(2):
        with pytest.raises(MissingMethodError, match="PB107") as caught:
            call(leaf(2))
        assert isinstance(caught.value, NotImplementedError)
        assert str(caught.value).splitlines() == [
            "PB107 Abstract has no forward, so it can't be applied.",
            "  remedy: Define forward, or apply the subclass that does.",
        ]
        assert {*files(caught.value)} == {__file__}
        assert last_function(caught.value) == "<lambda>"


def test_an_abstract_class_that_gets_its_forward_later() -> None:
    """F2: a failed apply leaves nothing behind; once there is a forward, it runs."""
    late: Any = type("Late", (Abstract,), {})
    with pytest.raises(MissingMethodError, match="PB107 Late"):
        late.apply(leaf(2))
    late.forward = staticmethod(lambda ctx, x: x * 1)
    x = leaf(2)
    assert torch.equal(torch.autograd.grad(late.apply(x).sum(), x)[0], torch.ones_like(x))


@pytest.mark.parametrize("create_graph", [False, True], ids=["first order", "to be differentiated"])
def test_a_missing_backward(create_graph: bool) -> None:
    """F2: PB109 when the gradient is asked for, and only then; no frame of pullback in its traceback."""
    x = leaf(2)
    assert torch.equal(Undifferentiated.apply(x).detach(), 3 * x)
    y = Undifferentiated.apply(x).sum()
    with pytest.raises(MissingMethodError, match="PB109") as caught:
        torch.autograd.grad(y, x, create_graph=create_graph)
    assert isinstance(caught.value, NotImplementedError)
    assert str(caught.value).splitlines() == [
        "PB109 Undifferentiated has no backward, and its gradient was asked for.",
        "  remedy: Define backward, or detach the result if no gradient is meant to flow.",
    ]
    assert files(caught.value)[0] == __file__
    assert not any(map(is_pullbacks, files(caught.value)))


def test_call_errors_travel() -> None:
    """F4: an error survives pickling, as it must to leave a worker process."""
    with pytest.raises(CallError) as caught:
        Square(leaf(2))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.rule) == (CallError, str(caught.value), "PB108")
