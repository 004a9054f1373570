"""F13: ``torch.compile`` over a transform: PyTorch compiles other gradients in silence, and pullback doesn't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pullback
from tests.compiled.running import fully
from tests.function.kinds import leaf


class Tenfold(pullback.Function):
    """Sine, with ten times its gradient: what follows forward is told from what runs backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Take the sine."""
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Return ten times the gradient."""
        (x,) = ctx.saved_tensors
        return 10 * g * x.cos()


class TenfoldBothWays(Tenfold):
    """The same with a jvp."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Take the sine."""
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x.sin()

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        """Return ten times the tangent."""
        (x,) = ctx.saved_tensors
        return 10 * t * x.cos()


@pullback.custom_vjp
def tenfold(x: Tensor) -> Tensor:
    """Take the sine."""
    return x.sin()


tenfold.defvjp(lambda x: (x.sin(), x), lambda x, g: (10 * g * x.cos(),))


@pullback.custom_jvp
def tenfold_by_tangents(x: Tensor) -> Tensor:
    """Take the sine."""
    return x.sin()


@tenfold_by_tangents.defjvp
def _tenfold_rule(primals: Any, tangents: Any) -> Any:
    return tenfold_by_tangents(primals[0]), 10 * tangents[0] * primals[0].cos()


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "Tenfold": Tenfold.apply,
    "TenfoldBothWays": TenfoldBothWays.apply,
    "tenfold": tenfold,
    "tenfold_by_tangents": tenfold_by_tangents,
}


def under(transform: str, call: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    """Return what a transform makes of the call at `x`."""

    def total(y: Tensor) -> Tensor:
        return call(y).sum()

    if transform == "grad":
        return torch.func.grad(total)(x)
    if transform == "vjp":
        return torch.func.vjp(call, x)[1](torch.ones_like(x))[0]
    if transform == "jvp":
        return torch.func.jvp(call, (x,), (torch.ones_like(x),))[1]
    if transform == "vmap of grad":
        return torch.func.vmap(torch.func.grad(total))(x)
    diagonal: Tensor = getattr(torch.func, transform)(call)(x).diagonal()
    return diagonal


TRANSFORMS = ("grad", "vjp", "jvp", "jacrev", "jacfwd", "vmap of grad")

each_call = pytest.mark.parametrize("name", CALLS)
each_transform = pytest.mark.parametrize("transform", TRANSFORMS)


@each_transform
@each_call
def test_whole_it_is_refused_by_name(name: str, transform: str) -> None:
    """PB516 with fullgraph=True the error names the operation and says what to do."""
    with pytest.raises(torch._dynamo.exc.Unsupported, match=rf"PB516 {name}.apply under a torch.func transform, or"):
        fully(lambda x: under(transform, CALLS[name], x))(leaf(3).detach())


@each_transform
@each_call
def test_otherwise_it_is_right(name: str, transform: str) -> None:
    """F13: without fullgraph the call is left to Python, and the derivative is the one that was written.

    The backend "eager", which is for finding faults, goes on compiling after a break within a transform, and fails.
    """
    x = leaf(3).detach()
    compiled = torch.compile(lambda x: under(transform, CALLS[name], x.exp()).cos(), backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), (10 * x.exp().cos()).cos())


@each_call
def test_second_order_of_transforms(name: str) -> None:
    """F13: a transform of a transform in compiled code is as in eager mode."""

    def program(x: Tensor) -> Tensor:
        return torch.func.hessian(lambda y: CALLS[name](y).sum())(x)

    x = leaf(3).detach()
    torch.testing.assert_close(torch.compile(program, backend="aot_eager")(x), program(x))


@each_call
def test_a_transform_of_compiled_code(name: str) -> None:
    """F13: a transform outside of the compiled function sees the derivative that was written, too."""
    x, compiled = leaf(3).detach(), torch.compile(CALLS[name], backend="aot_eager")
    compiled(x)  # compiled code without a transform is there already
    torch.testing.assert_close(torch.func.grad(lambda y: compiled(y).sum())(x), 10 * x.cos())


def dual(x: Tensor, t: Tensor) -> Any:
    """Return the tangent of Tenfold at x."""
    with torch.autograd.forward_ad.dual_level():
        made = torch.autograd.forward_ad.make_dual(x, t)
        return torch.autograd.forward_ad.unpack_dual(Tenfold.apply(made)).tangent


def test_dual_numbers() -> None:
    """PB516, F13: within a level of dual numbers a call isn't compiled without its tangent, in silence."""
    x, t = leaf(3).detach(), leaf(3, seed=1).detach()
    torch.testing.assert_close(torch.compile(dual, backend="aot_eager")(x, t), 10 * t * x.cos())
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"PB516 Tenfold.apply .* or in forward mode, can't"):
        fully(dual)(x, t)
