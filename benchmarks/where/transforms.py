"""torch.func and forward mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, func
from torch.autograd import forward_ad

from benchmarks.where.kernels import BATCHED, REFERENCED, SQUARE
from benchmarks.where.operations import CUBE, DROPOUT, SET_UP, SWISH, WITH_JVP
from benchmarks.where.training import IN_PLACE
from benchmarks.where.want import Call, Section, Want, direction, leaf, point


def weighted(f: Call) -> Call:
    """The operation with a number at its end."""
    return lambda x: (f(x) * direction()).sum()


def batch() -> Tensor:
    """Four points."""
    return torch.stack([point() * scale for scale in (1.0, -0.5, 2.0, 0.7)])


def grad(f: Call) -> Tensor:
    """torch.func.grad."""
    return func.grad(weighted(f))(point())


def by_vjp(f: Call) -> tuple[Tensor, ...]:
    """torch.func.vjp: the value and the pullback of a cotangent."""
    value, pull = func.vjp(f, point())
    return (value, *pull(direction()))


def by_jvp(f: Call) -> tuple[Tensor, ...]:
    """torch.func.jvp: the value and the tangent."""
    return func.jvp(f, (point(),), (direction(),))


def jacobian_reverse(f: Call) -> Tensor:
    """torch.func.jacrev."""
    return func.jacrev(f)(point())


def jacobian_forward(f: Call) -> Tensor:
    """torch.func.jacfwd."""
    return func.jacfwd(f)(point())


def hessian(f: Call) -> Tensor:
    """torch.func.hessian, which is forward over reverse."""
    return func.hessian(weighted(f))(point())


def reverse_over_reverse(f: Call) -> Tensor:
    """jacrev of grad."""
    return func.jacrev(func.grad(weighted(f)))(point())


def forward_over_forward(f: Call) -> Tensor:
    """jacfwd of jacfwd."""
    return func.jacfwd(func.jacfwd(f))(point())


def forward_three_times(f: Call) -> Tensor:
    """jvp of jvp of jvp."""
    x, t = point(), direction()

    def once(f: Call) -> Call:
        return lambda x: func.jvp(f, (x,), (t,))[1]

    return once(once(once(f)))(x)


def mapped(f: Call) -> Tensor:
    """torch.func.vmap."""
    return func.vmap(f)(batch())


def mapped_last(f: Call) -> Tensor:
    """vmap over the last axis, put in front."""
    return func.vmap(f, in_dims=1)(batch().t())


def mapped_grad(f: Call) -> Tensor:
    """vmap of grad: a gradient for each sample."""
    return func.vmap(func.grad(weighted(f)))(batch())


def grad_mapped(f: Call) -> Tensor:
    """grad of vmap."""
    return func.grad(lambda x: (func.vmap(f)(x) * direction()).sum())(batch())


def mapped_in_place(f: Call) -> Tensor:
    """vmap of a write to an intermediate."""
    return func.vmap(lambda x: f(x * 1).sin())(batch())


class Scaled(torch.nn.Module):
    """A module that uses the operation on its parameter."""

    def __init__(self, f: Call) -> None:
        super().__init__()
        self.f = f
        self.weight = torch.nn.Parameter(direction())

    def forward(self, x: Tensor) -> Tensor:
        """The operation on the weighted argument."""
        return self.f(x * self.weight)


def by_functional_call(f: Call) -> Tensor:
    """Gradients of a module's parameters, one for each sample."""
    module = Scaled(f)
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return func.functional_call(module, parameters, (x,)).sum()

    return func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, batch())["weight"]


def dual(f: Call) -> Tensor | None:
    """The tangent by dual numbers."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(point(), direction()))).tangent


def dual_over_reverse(f: Call) -> Tensor | None:
    """The tangent of a gradient: a Hessian-vector product."""
    with forward_ad.dual_level():
        x = forward_ad.make_dual(leaf(), direction())
        (gradient,) = torch.autograd.grad((f(x) * direction()).sum(), x)
        return forward_ad.unpack_dual(gradient).tangent


def reverse_over_dual(f: Call) -> Tensor:
    """The gradient of a tangent."""
    x = leaf()
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, direction()))).tangent
        rest = x.sum()  # of the loss, so that a lost tangent doesn't end in an error about the loss
        (gradient,) = torch.autograd.grad((0 if tangent is None else tangent.sum()) + rest, x)
    return gradient


def first(output: Any) -> Tensor:
    """The output, or the first of several."""
    return output[0] if isinstance(output, tuple) else output


def randomly(f: Call) -> Tensor:
    """vmap of grad of a random forward, each sample with its own draw."""
    torch.manual_seed(0)
    return func.vmap(func.grad(lambda x: (first(f(x)) * direction()).sum()), randomness="different")(batch())


TRANSFORMS = Section(
    "torch.func",
    "On an operation in plain style: `forward(ctx, …)` and `backward`, no rule for vmap and no `jvp`.",
    [
        Want("torch.func.grad", CUBE, grad),
        Want("torch.func.vjp", CUBE, by_vjp),
        Want("torch.func.jvp", CUBE, by_jvp),
        Want("torch.func.jacrev", CUBE, jacobian_reverse),
        Want("torch.func.jacfwd", CUBE, jacobian_forward),
        Want("torch.func.hessian", CUBE, hessian),
        Want("torch.func.hessian, an intermediate saved", SWISH, hessian),
        Want("jacrev of grad, an intermediate saved", SWISH, reverse_over_reverse),
        Want("torch.func.vmap", CUBE, mapped),
        Want("vmap over another axis, in_dims=1", CUBE, mapped_last),
        Want("vmap of grad", CUBE, mapped_grad),
        Want("grad of vmap", CUBE, grad_mapped),
        Want("gradients per sample with functional_call", SWISH, by_functional_call),
        Want('vmap of grad of a random forward, randomness="different"', DROPOUT, randomly),
        Want("vmap of grad, setup_context style with generate_vmap_rule", SET_UP, mapped_grad),
        Want("torch.func.grad of a kernel", SQUARE, grad),
        Want("vmap of a kernel, its rule for vmap given", BATCHED, mapped),
        Want("vmap of a kernel, a `reference` given", REFERENCED, mapped),
        Want("vmap of a kernel, nothing more given", SQUARE, mapped),
        Want("vmap of an operation that writes to its argument", IN_PLACE, mapped_in_place),
    ],
)

FORWARD = Section(
    "Forward mode",
    "Dual numbers and nested levels; the first rows of `torch.func` above have one level of it.",
    [
        Want("dual numbers", CUBE, dual),
        Want("dual numbers, an intermediate saved", SWISH, dual),
        Want("forward over reverse in dual numbers", CUBE, dual_over_reverse),
        Want("forward over reverse in dual numbers, an intermediate saved", SWISH, dual_over_reverse),
        Want("reverse over forward in dual numbers", CUBE, reverse_over_dual),
        Want("forward over forward, jacfwd of jacfwd", CUBE, forward_over_forward),
        Want("three nested levels of jvp", CUBE, forward_three_times),
        Want("torch.func.jvp, a `jvp` written by hand", WITH_JVP, by_jvp),
        Want("forward over forward, a `jvp` written by hand", WITH_JVP, forward_over_forward),
        Want("torch.func.jvp of a kernel, a `reference` given", REFERENCED, by_jvp),
        Want("torch.func.jvp of a kernel, nothing more given", SQUARE, by_jvp),
    ],
)
