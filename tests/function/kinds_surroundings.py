"""Kinds of Function by what they return, by other Functions within them, and by what is done to them afterwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd

from tests.function.kinds import Kinds, leaf, two_leaves

SURROUNDINGS = Kinds()


def _triple(base: type) -> Any:
    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    return Triple


@SURROUNDINGS.add()
def outputs_that_are_no_tensors(base: type) -> Any:
    """A number, text and None beside a tensor."""

    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return x * 3, 7, "text", None

        @staticmethod
        def backward(ctx: Any, g: Tensor, *others: None) -> Tensor:
            assert others == (None, None, None)
            return g * 3

    return Triple


@SURROUNDINGS.add()
def only_a_number_returned(base: type) -> Any:
    """No tensor at all comes out."""

    class Count(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> int:
            return x.numel()

        @staticmethod
        def backward(ctx: Any, g: Any) -> None:
            return None

    return Count


@SURROUNDINGS.add()
def tuple_of_one(base: type) -> Any:
    """A tuple with one output stays a tuple."""

    class Triple(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return (x * 3,)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    return Triple


@SURROUNDINGS.add(arguments=lambda: (leaf(3), torch.tensor([2, 0, 1])))
def integer_argument(base: type) -> Any:
    """Integers go in, and an integer output comes out unmarked."""

    class Gather(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, index: Tensor) -> Any:
            ctx.save_for_backward(index)
            return x[index], index + 1

        @staticmethod
        def backward(ctx: Any, g: Tensor, unused: Any) -> Any:
            return torch.zeros_like(g).index_add_(0, ctx.saved_tensors[0], g), None

    return Gather


@SURROUNDINGS.add(arguments=lambda: (leaf(2, 3),))
def view_returned(base: type) -> Any:
    """The output is a view of the argument."""

    class Flat(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g.view(2, 3) * 2

    return Flat


@SURROUNDINGS.add()
def argument_returned_as_it_is(base: type) -> Any:
    """The argument itself is the output."""

    class Reverse(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return -g

    return Reverse


@SURROUNDINGS.add(arguments=two_leaves)
def argument_returned_beside_another_output(base: type) -> Any:
    """An argument comes back unchanged beside a computed output."""

    class Pass(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
            return x, x + y

        @staticmethod
        def backward(ctx: Any, gx: Tensor, g: Tensor) -> Any:
            return gx + g, g

    return Pass


@SURROUNDINGS.add(arguments=lambda: (leaf(3, dtype=torch.complex128),))
def complex_tensors(base: type) -> Any:
    """Complex numbers, with the conjugate where PyTorch has it."""

    class Square(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0].conj() * g

    return Square


@SURROUNDINGS.add(arguments=lambda: (leaf(3, dtype=torch.complex128),))
def real_of_complex(base: type) -> Any:
    """A complex argument with a real output."""

    class SquaredNorm(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.abs().square()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g * ctx.saved_tensors[0]

    return SquaredNorm


@SURROUNDINGS.add()
def another_dtype_returned(base: type) -> Any:
    """A lower dtype comes out; the engine casts the gradient back."""

    class Single(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.float() * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    return Single


@SURROUNDINGS.add(arguments=lambda: (leaf(0, 3),))
def no_elements(base: type) -> Any:
    """An empty tensor."""
    return _triple(base)


@SURROUNDINGS.add(arguments=lambda: (leaf(),))
def zero_dimensional(base: type) -> Any:
    """A scalar tensor."""
    return _triple(base)


@SURROUNDINGS.add(call=lambda function, x: function.apply(function.apply(x)) + function.apply(x))
def applied_several_times(base: type) -> Any:
    """One class applied in a chain and in parallel."""
    return _triple(base)


@SURROUNDINGS.add(arguments=lambda: (torch.nn.Parameter(leaf(3).detach()),))
def parameter(base: type) -> Any:
    """A module's parameter as the argument."""
    return _triple(base)


@SURROUNDINGS.add(arguments=lambda: (3, torch.float64))
def tensor_made_within(base: type) -> Any:
    """No tensor goes in, one comes out."""

    class Ones(base):
        @staticmethod
        def forward(ctx: Any, size: int, dtype: torch.dtype) -> Tensor:
            return torch.ones(size, dtype=dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return None, None

    return Ones


@SURROUNDINGS.add()
def function_within_forward_and_backward(base: type) -> Any:
    """One Function calls another, in both directions."""
    inner = _triple(base)

    class Outer(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return inner.apply(x) * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return inner.apply(g) * 2

    return Outer


@SURROUNDINGS.add()
def graph_within_backward(base: type) -> Any:
    """backward differentiates a recomputation, as checkpointing does."""

    class Sine(base):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                (gx,) = torch.autograd.grad(x.sin(), x, g)
            return gx

    return Sine


def _under_autocast(function: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return function.apply(x)


@SURROUNDINGS.add(arguments=lambda: (leaf(3, 3, dtype=torch.float32),), call=_under_autocast)
def custom_forward_and_backward_under_autocast(base: type) -> Any:
    """torch.amp's decorators: backward runs under forward's autocast state."""

    class Gram(base):
        @staticmethod
        @custom_fwd(device_type="cpu")
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return (g @ x.mT + x.mT @ g).float()

    return Gram


@SURROUNDINGS.add(arguments=lambda: (leaf(3, 3, dtype=torch.float32),), call=_under_autocast)
def custom_forward_with_cast_inputs(base: type) -> Any:
    """torch.amp's decorator that casts the arguments and turns autocast off."""

    class Gram(base):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g @ x.mT + x.mT @ g

    return Gram


@SURROUNDINGS.add()
def backward_replaced_afterwards(base: type) -> Any:
    """backward assigned to the class after it was defined."""
    triple = _triple(base)
    triple.backward = staticmethod(lambda ctx, g: g * 5)
    return triple


@SURROUNDINGS.add()
def forward_replaced_after_a_call(base: type) -> Any:
    """forward and backward assigned after the class was already used."""
    triple = _triple(base)
    triple.apply(leaf(2)).sum().backward()

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 7
        return x * 7

    triple.forward = staticmethod(forward)
    triple.backward = staticmethod(lambda ctx, g: g * ctx.factor)
    return triple


@SURROUNDINGS.add()
def parents_backward_replaced_afterwards(base: type) -> Any:
    """A parent's backward replaced after its child was defined and used."""
    triple = _triple(base)
    child = type("Child", (triple,), {})
    child.apply(leaf(2)).sum().backward()
    triple.backward = staticmethod(lambda ctx, g: g * 5)
    return child
