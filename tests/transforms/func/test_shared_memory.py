"""F12: what was saved has the values of the call, whatever is written afterwards to memory that it shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from pullback.errors import SavedTensorError
from tests.transforms.derivatives import Draw
from tests.transforms.func.levels import assert_as_plain

UNDER = ("grad", "vjp", "jvp", "jacrev", "jacfwd", "grad of grad", "jvp of grad", "grad of jvp", "vmap of grad")


def saving(make: Callable[[Tensor], Tensor], read: Callable[[Tensor], Tensor]) -> Any:
    """Make the square, which saves a view of its argument and reads it back."""

    class Square(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(make(x))
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * read(ctx.saved_tensors[0])

    return Square


def keeping(make: Callable[[Tensor], Tensor], read: Callable[[Tensor], Tensor]) -> Any:
    """Make the same with the view on ctx."""

    class Square(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.kept = {"view": make(x)}
            return x**2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * read(ctx.kept["view"])

    return Square


VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "unsqueezed": (lambda x: x[None], lambda view: view[0]),
    "transposed": (lambda x: x.reshape(1, -1).t(), lambda view: view.t()[0]),
    "expanded": (lambda x: x.expand(2, *x.shape), lambda view: view[1]),
    "detached": (lambda x: x.detach(), lambda view: view),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("make", [saving, keeping])
def test_the_argument_is_written_to_after_the_call(make: Any, view: str, draw: Draw) -> None:
    """Under transforms its saved view has the values of the call."""
    square = make(*VIEWS[view])

    def program(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            inner = x * 1
            output = function(inner)
            inner.zero_()
            return output

        return call

    # The derivative of a tangent reads the argument's tangent, which is written to as well; PyTorch refuses that.
    compositions = [name for name in UNDER if name != "grad of jvp"]
    assert_as_plain(program(square.apply), lambda x: x**2, draw.constant(3), compositions)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("make", [saving, keeping])
def test_a_saved_view_is_connected(make: Any, view: str, draw: Draw) -> None:
    """A view of the argument, detached or not, is no constant: all compositions are the formula's, never less."""
    assert_as_plain(make(*VIEWS[view]).apply, lambda x: x**2, draw.constant(3))


class Views(pullback.Function):
    """Returns a view of its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The same in reverse order of dimensions."""
        return x.t()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """And back."""
        return g.t()


@pytest.mark.parametrize("written", ["argument", "output"])
def test_an_output_that_is_a_view_is_a_copy_under_transforms(written: str, draw: Draw) -> None:
    """What is written to the one doesn't reach the other; values and derivatives are those of a copy."""

    def program(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            inner = x.sin()
            output = function(inner)
            (inner if written == "argument" else output).mul_(3)
            return inner.t() * output

        return call

    assert_as_plain(program(Views.apply), program(lambda x: x.t().clone()), draw.constant(2, 3), UNDER)


def test_tangents_share_no_memory(draw: Draw) -> None:
    """Where a tangent goes through as it is, a write to the argument's doesn't reach the output's."""

    class Same(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    class SameByJvp(Same):
        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return t

    def program(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            inner = x.sin()
            output = function(inner)
            inner.mul_(3)
            return inner * output

        return call

    for function in (Same, SameByJvp):
        # An author's jvp is differentiated at the tangent that it was given, so that one must not be written to.
        compositions = [name for name in (*UNDER, "dual", "jvp of jvp") if name != "grad of jvp"]
        assert_as_plain(program(function.apply), program(Tensor.clone), draw.constant(3), compositions)


def test_outputs_that_share_memory(draw: Draw) -> None:
    """Two outputs on the same memory are two tensors under transforms: each has its own derivative."""

    class Halves(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.exp()
            ctx.save_for_backward(y)
            return y, y.view_as(y)

        @staticmethod
        def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            return (a + b) * ctx.saved_tensors[0]

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), x.exp()

    def program(function: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            one, other = function(x)
            other = other * 2
            return one * other.sin()

        return call

    assert_as_plain(program(Halves.apply), program(plain), draw.constant(3))


@pytest.mark.parametrize("level", ["grad", "hessian", "vmap of grad"])
@pytest.mark.parametrize("which", ["argument", "output"])
def test_a_saved_tensor_is_written_to(level: str, which: str, draw: Draw) -> None:
    """What was saved as it is and written to since is refused as in eager mode: PB301 names the class."""

    class Exponential(pullback.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = x.exp()
            ctx.save_for_backward(x if which == "argument" else y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (saved,) = ctx.saved_tensors
            return g * (saved.exp() if which == "argument" else saved)

    def call(x: Tensor) -> Tensor:
        inner = x * 1
        output = Exponential.apply(inner)
        total = output.sum()
        (inner if which == "argument" else output).mul_(2)
        return total

    x = draw.constant(3)
    taken = {
        "grad": lambda: torch.func.grad(call)(x),
        "hessian": lambda: torch.func.hessian(call)(x),
        "vmap of grad": lambda: torch.func.vmap(torch.func.grad(call))(x[None]),
    }
    with pytest.raises(SavedTensorError) as caught:
        taken[level]()
    assert caught.value.rule == "PB301"
    assert "Exponential" in str(caught.value)
    assert "modified by an inplace operation" in str(caught.value)
    assert caught.value.remedy in str(caught.value)
